"""Import torch and open devices: ``python -m trainmark.doctor.opening VENDOR RANKS``.

A process of its own, because either may crash or hang. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from importlib.metadata import version
from typing import Any, get_args

from trainmark import devices
from trainmark.errors import TrainmarkError
from trainmark.spec import Precision


def opened(name: str, ranks: int) -> dict[str, Any]:
    """Open the device of each rank; return what was opened and the precisions refused."""
    start_s = time.perf_counter()
    vendor = devices.choose(name)
    names, refused = [], {}
    for rank in range(1 if vendor.counts_cores else ranks):
        device = vendor.open(rank, ranks)
        names.append(str(device.describe()["name"]))
        for precision in get_args(Precision):
            try:
                device.set_precision(precision)
            except TrainmarkError as fault:
                refused[precision] = fault.what
    seconds = time.perf_counter() - start_s
    told = ", ".join(f"{count} x {one}" for one, count in Counter(names).items())
    what = f"torch {version('torch')} opened {told} in {seconds:.1f} s"
    return {"what": what, "refused": refused}


if __name__ == "__main__":
    try:
        print(json.dumps(opened(sys.argv[1], int(sys.argv[2]))))
    except TrainmarkError as fault:
        print(json.dumps({"what": fault.what, "remedy": fault.remedy or "see the vendor's tool"}))
