"""A probe inside an unmodified program, which writes the same events as a rank of a case.

The program's interpreter loads ``site/sitecustomize.py``, which waits for torch. Then ``hooks``
hooks torch, ``process`` finds out whether this process is a rank, and ``rank`` measures it, with
``batches`` (the batches that it reads) and ``weights`` (the tensors that it changes). Afterwards
``printed`` reads the speed that the program printed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_DIR_VARIABLE = "TRAINMARK_WITNESS"  # folder of the run, for the probe
_SITE_DIR = Path(__file__).with_name("site")


def make_probe_variables(run_dir: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make a Python interpreter load the probe.

    The probe is the code of this package that measures a user's own program from inside.

    Args:
        run_dir: folder to which the probe writes what it measures.
        variables: the environment in which the program is started.
    """
    paths = [str(_SITE_DIR)]  # first, so that Python imports the ``sitecustomize`` in it
    if variables.get("PYTHONPATH"):
        paths.append(variables["PYTHONPATH"])
    return {RUN_DIR_VARIABLE: str(run_dir), "PYTHONPATH": os.pathsep.join(paths)}
