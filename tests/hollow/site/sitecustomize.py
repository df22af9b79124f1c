"""Have every Python process of a test see the device file of a card in ``HOLLOW_DEVICE_NODES``.

Python imports this module when it starts. The driver of a real card makes the file in ``/dev``.
"""

import os
from pathlib import Path

if "HOLLOW_DEVICE_NODES" in os.environ:
    try:
        from trainmark.devices.vendors.nvidia import driver
    except ImportError:  # tools of Python itself, such as pip
        pass
    else:
        driver.DEVICE_NODES = Path(os.environ["HOLLOW_DEVICE_NODES"])
