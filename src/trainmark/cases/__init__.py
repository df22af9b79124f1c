"""The workloads, called cases. A case is a folder whose modules are found by their names.

``case.py`` (what is trained), ``data`` (``generate``, ``check``), ``job`` (``load_data``,
``build``; the only one with torch) and, where there is something to prepare, ``prepare``
(``prepare``); each of the last three may be a package. A case with additional figures also
has ``figures`` (``compute``), one that MLPerf has too ``export`` (``mlperf``).

Owns how cases are found: in the folders next to this file, in packages with an entry point in
the group ``trainmark.cases``, and in the folders that the environment variable
``TRAINMARK_CASE_PATH`` lists. No other module names a case.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trainmark.errors import UsageError, nearest
from trainmark.plugins import offered
from trainmark.spec import MESSAGES_FILE, PAGE_FILE, read_messages, read_page

if TYPE_CHECKING:
    from types import ModuleType

    from trainmark.recipe import Recipe
    from trainmark.spec import Case

ENTRY_POINT_GROUP = "trainmark.cases"
PATH_VARIABLE = "TRAINMARK_CASE_PATH"
_OUTSIDE_PACKAGE = "trainmark_outside_case_"
Part = Literal["data", "export", "figures", "job", "prepare"]


def _packages() -> dict[str, Path | str]:
    """Return each case's folder, or its package where an entry point names it."""
    found: dict[str, Path | str] = {entry.name: entry.value for entry in offered(ENTRY_POINT_GROUP)}
    roots = [Path(item) for item in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if item]
    for root in (*roots, Path(__file__).parent):
        if not root.is_dir():
            raise UsageError(
                f"{root} is not a folder", where=PATH_VARIABLE, remedy="name folders of cases"
            )
        for file in root.glob("*/case.py"):
            found[file.parent.name] = file.parent
    return found


def names() -> list[str]:
    """Return the names of all cases, sorted."""
    return sorted(_packages())


def _package(name: str) -> str:
    """Return the name under which a case's modules are imported."""
    place = _packages()[name]
    if isinstance(place, str):
        return place
    if place.parent == Path(__file__).parent:
        return f"{__name__}.{name}"
    package = _OUTSIDE_PACKAGE + name
    if package not in sys.modules:
        spec = importlib.util.spec_from_loader(package, loader=None, is_package=True)
        assert spec is not None
        spec.submodule_search_locations = [str(place)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return package


def has_part(name: str, part: Part) -> bool:
    """Tell whether the case called ``name`` has the module ``part``."""
    return importlib.util.find_spec(f"{_package(name)}.{part}") is not None


def part(name: str, part: Part) -> ModuleType:
    """Import a module of the case called ``name``.

    Raises:
        UsageError: the case has no such module.
    """
    if not has_part(name, part):
        raise UsageError(
            f"case {name} has no module {part!r}",
            where=str(folder(name)),
            rule="a case has modules or packages called data and job, some prepare and figures",
            remedy=f"add {part}.py; docs/adding-a-case.md shows a complete case",
        )
    return importlib.import_module(f"{_package(name)}.{part}")


def generated_folder(case: Case, recipe: Recipe, root: Path) -> Path:
    """Return the folder with ``recipe``'s generated data; see ``data.generated``."""
    from trainmark.data import generated

    generate, sources = part(case.name, "data").generate, folder(case.name)
    return generated.generated_folder(case, recipe, root, generate=generate, sources=sources)


def folder(name: str) -> Path:
    """Return the folder of the case called ``name``, with its README and reference figures."""
    file = importlib.import_module(f"{_package(name)}.case").__file__
    assert file is not None
    return Path(file).parent


def load(name: str) -> Case:
    """Return the case with the name or alias ``name``, with its messages and page.

    Raises:
        UsageError: no such case, or one of its files cannot be read.
    """
    known = names()
    if name in known:
        return _with_tables(_load(name))
    loaded, _ = load_all()
    aliases = {alias: case for case in loaded for alias in case.aliases}
    if name in aliases:
        return _with_tables(aliases[name])
    raise UsageError(
        f"unknown case {name!r}", where="CASE", remedy=nearest(name, [*known, *aliases])
    )


def load_all() -> tuple[list[Case], list[UsageError]]:
    """Return every case that can be read, and an error for each that cannot.

    Messages and pages are not read, because lists of cases do not need them.
    """
    loaded, faults = [], []
    for name in names():
        try:
            loaded.append(_load(name))
        except UsageError as error:
            faults.append(error)
    return loaded, faults


def _load(name: str) -> Case:
    """Return one case from its ``case.py``; raise UsageError if that is not valid."""
    file = f"{_packages()[name]}/case.py"
    try:
        case: Case = importlib.import_module(f"{_package(name)}.case").CASE
    except Exception as error:  # a case's file may raise anything on import
        raise UsageError(
            f"cannot be read as a case: {type(error).__name__}: {error}",
            where=file,
            rule="a case.py defines CASE and can be imported without an error",
            remedy="correct the file; docs/adding-a-case.md shows a complete one",
        ) from error
    if case.name != name:
        raise UsageError(
            f"CASE.name is {case.name!r} in the folder {name!r}",
            where=file,
            rule="a case has the name of its folder",
            remedy=f"write name={name!r}, or rename the folder",
        )
    return case


def _with_tables(case: Case) -> Case:
    """Return ``case`` with the messages and the page from its ``.toml`` files."""
    place = folder(case.name)
    sentences, page = place / MESSAGES_FILE, place / PAGE_FILE
    if sentences.is_file():
        case = replace(case, messages={**case.messages, **read_messages(sentences)})
    return replace(case, page=read_page(page)) if page.is_file() else case
