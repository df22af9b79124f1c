"""Write the files of a new case: the example of docs/adding-a-case.md under another name.

The files are in ``new_case_files``; a test checks that the code of the guide is the same.
"""

from __future__ import annotations

import re
from pathlib import Path

from trainmark import cases
from trainmark.cases import write_folder
from trainmark.errors import UsageError

EXAMPLE = "line"  # name of the case that the files have
_FILES = Path(__file__).with_name("new_case_files")
_ENDING = ".txt"  # so that linters and type checkers do not take them for code of this package


def read_example_files() -> dict[str, str]:
    """Return the text of each file of the example case by its name.

    The order is that of ``docs/adding-a-case.md``. In this package the names have an additional
    ending, so that linters do not take the files for code of the package.
    """
    order = ("case.py", "data.py", "job.py", "prepare.py", "figures.py", "page.toml")
    return {name: (_FILES / f"{name}{_ENDING}").read_text(encoding="utf-8") for name in order}


def write_new_case(name: str, folder: Path) -> Path:
    """Write the example as a case called ``name`` into ``folder``; return the case's folder.

    Raises:
        UsageError: not a name of a case, a name that is in use, or files are there already.
        EnvironmentFault: the folder cannot be written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        rule = (
            "a name must start with a lower-case letter and contain only lower-case letters, "
            "digits and _"
        )
        raise UsageError(f"{name!r} is not a valid case name", where="CASE", rule=rule)
    if name in cases.list_names():
        raise UsageError(
            f"a case named {name} already exists", where="CASE", fix="choose another name"
        )
    target = folder / name
    if target.exists():
        what = "a file or folder with this name already exists"
        raise UsageError(what, where=str(target), fix="choose another name or folder")

    def write_files(staging: Path) -> None:
        """Write the files of the case to a folder, which then becomes ``target``."""
        for file, text in read_example_files().items():
            named_text = text.replace(f'name="{EXAMPLE}"', f'name="{name}"')
            (staging / file).write_text(named_text, encoding="utf-8")

    write_folder(target, write_files)
    return target
