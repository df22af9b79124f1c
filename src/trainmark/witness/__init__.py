"""A probe inside an unmodified program, which writes the events that a rank of a case writes.

``site/sitecustomize.py`` is loaded by the program's interpreter and waits for torch; ``hooks``
then hooks torch; ``process`` finds out whether this process is a rank; ``rank`` measures it, with
``batches`` (what it reads) and ``weights`` (what it changes). ``printed`` reads afterwards what the
program says of its speed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_DIR_VARIABLE = "TRAINMARK_WITNESS"  # folder of the run, for the probe
_SITE_DIR = Path(__file__).with_name("site")


def probe_variables(run_dir: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which an interpreter loads the probe.

    Args:
        variables: of the environment in which the program starts.
    """
    paths = [str(_SITE_DIR)]
    if variables.get("PYTHONPATH"):
        paths.append(variables["PYTHONPATH"])
    return {RUN_DIR_VARIABLE: str(run_dir), "PYTHONPATH": os.pathsep.join(paths)}
