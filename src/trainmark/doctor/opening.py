"""Import torch and open devices: ``python -m trainmark.doctor.opening VENDOR RANKS``.

A process of its own, because either may crash or hang. Prints a line of JSON: what was found, the
remedy if a device does not open, and the precisions that an open device refuses, with the reason.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from importlib.metadata import version
from typing import get_args

from trainmark import devices
from trainmark.errors import TrainmarkError
from trainmark.spec import Precision


def opened(name: str, ranks: int) -> tuple[str, str, dict[str, str]]:
    """Open the device of each rank; return what the process prints."""
    start_s = time.perf_counter()
    names, refused = Counter[str](), {}
    try:
        vendor = devices.choose(name)
        for rank in range(1 if vendor.counts_cores else ranks):
            device = vendor.open(rank, ranks)
            names[str(device.describe()["name"])] += 1
            for precision in get_args(Precision):
                try:
                    device.set_precision(precision)
                except TrainmarkError as fault:
                    refused[precision] = fault.what
    except TrainmarkError as fault:
        return fault.what, fault.remedy or "see the vendor's tool", {}
    told = ", ".join(f"{count} x {one}" for one, count in names.items())
    seconds = time.perf_counter() - start_s
    return f"torch {version('torch')} opened {told} in {seconds:.1f} s", "", refused


if __name__ == "__main__":
    print(json.dumps(opened(sys.argv[1], int(sys.argv[2]))))
