"""The workloads, called cases. A case is a folder whose modules are found by their names.

``case.py`` (what is trained), ``data`` (``generate``, ``check``), ``job`` (``load_data``,
``build``; the only one with torch) and, where there is something to prepare, ``prepare``
(``prepare``); each of the last three may be a package. A case with additional figures also
has ``figures`` (``compute``), one whose model's size follows from its recipe ``sizes``
(``find_sizes``).

Owns how cases are found: in the folders next to this file, in packages with an entry point in
the group ``trainmark.cases``, and in the folders that the environment variable
``TRAINMARK_CASE_PATH`` lists; and where generated data lies, whole or not at all. No other module
names a case.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import traceback
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from inspect import getfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from trainmark.errors import (
    CaseError,
    EnvironmentFault,
    TrainmarkError,
    UsageError,
    suggest_nearest,
)
from trainmark.plugins import find_entry_points
from trainmark.spec import MESSAGES_FILE, PAGE_FILE, DataFacts, read_messages, read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from trainmark.recipe import Recipe
    from trainmark.spec import Case, RankMemory

ENTRY_POINT_GROUP = "trainmark.cases"
PATH_VARIABLE = "TRAINMARK_CASE_PATH"
ROOT_VARIABLE = "TRAINMARK_CACHE"
_OUTSIDE_PACKAGE = "trainmark_outside_case_"
Part = Literal["data", "figures", "job", "prepare", "sizes"]


def _find_packages() -> dict[str, Path | str]:
    """Return each case's folder, or its package where an entry point names it."""
    packages: dict[str, Path | str] = {
        entry.name: entry.value for entry in find_entry_points(ENTRY_POINT_GROUP)
    }
    roots = [Path(item) for item in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if item]
    for root in (*roots, Path(__file__).parent):
        if not root.is_dir():
            raise UsageError(
                f"{root} is not a folder", where=PATH_VARIABLE, fix="name folders of cases"
            )
        for file in root.glob("*/case.py"):
            packages[file.parent.name] = file.parent
    return packages


def list_names() -> list[str]:
    """Return the names of all cases, sorted."""
    return sorted(_find_packages())


def _resolve_package(name: str) -> str:
    """Return the name under which a case's modules are imported."""
    place = _find_packages()[name]
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


def is_shipped(name: str) -> bool:
    """Tell whether the case called ``name`` is one of ours, the same in each installation."""
    # Which no other package can take; a name from a record may be any text.
    return name.isidentifier() and (Path(__file__).parent / name / "case.py").is_file()


def has_part(name: str, part: Part) -> bool:
    """Tell whether the case called ``name`` has the module ``part``."""
    return importlib.util.find_spec(f"{_resolve_package(name)}.{part}") is not None


def import_part(name: str, part: Part) -> ModuleType:
    """Import a module of the case called ``name``.

    Raises:
        UsageError: the case has no such module, or it cannot be imported.
        ModuleNotFoundError: a package that it needs is not installed.
    """
    if not has_part(name, part):
        raise UsageError(
            f"case {name} has no module {part!r}",
            where=str(get_folder(name)),
            rule="a case has modules or packages called data and job, some prepare, figures, sizes",
            fix=f"add {part}.py; docs/adding-a-case.md shows a complete case",
        )
    try:
        return importlib.import_module(f"{_resolve_package(name)}.{part}")
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a case's file may raise anything on import
        raise UsageError(
            f"cannot be imported: {type(error).__name__}: {error}",
            where=f"case {name}, module {part}",
            rule="the modules of a case can be imported without an error",
            fix="correct the module; docs/adding-a-case.md shows a complete case",
        ) from error


def get_cache_root() -> Path:
    """Return the cache folder: ``$TRAINMARK_CACHE``, or ``trainmark`` in the user's cache."""
    chosen = os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainmark"


@contextmanager
def wrap_case_errors(name: str, place: str) -> Iterator[None]:
    """Run code of a case in the block.

    Args:
        name: of the case.
        place: which part of it, for the error.

    Raises:
        CaseError: it raised something that is no error of ours.
    """
    try:
        yield
    except TrainmarkError:
        raise
    except (Exception, SystemExit) as error:
        calls = traceback.extract_tb(error.__traceback__)
        of_case = [call for call in calls if Path(call.filename).is_relative_to(get_folder(name))]
        innermost = (of_case or calls)[-1]
        source = f"{innermost.filename}:{innermost.lineno}"
        raise CaseError(error, case=name, place=place, source=source) from error


def check_data(name: str, folder: Path, recipe: Recipe) -> DataFacts:
    """Return what the case called ``name`` finds in a folder with its data.

    Raises:
        DataError: the data is not as it must be.
        CaseError: the case failed to check it.
    """
    check = import_part(name, "data").check
    with wrap_case_errors(name, "data_check"):
        facts: DataFacts = check(folder, recipe)
        if not isinstance(facts, DataFacts):
            raise TypeError(f"check returned {type(facts).__name__}, not DataFacts")
    return facts


def check_fit(
    name: str, folder: Path, recipe: Recipe, world_size: int, memory: RankMemory
) -> int | None:
    """Return how many bytes of a rank's memory training needs at the least; None: not known.

    Raises:
        EnvironmentFault: a rank has less.
        CaseError: the case failed to compute it.
    """
    data = import_part(name, "data")
    if not hasattr(data, "check_fit"):
        return None
    with wrap_case_errors(name, "data_check_fit"):
        needed: int | None = data.check_fit(folder, recipe, world_size, memory)
    return needed


def ensure_generated_data(case: Case, recipe: Recipe, root: Path) -> Path:
    """Return the folder with ``recipe``'s generated data, generating it when it is missing.

    Raises:
        EnvironmentFault: it cannot be written.
        CaseError: the generator failed.
    """
    made = locate_generated_data(case, recipe, root)
    if not made.is_dir():
        generate = import_part(case.name, "data").generate
        fields = SimpleNamespace(**_select_data_fields(case, recipe))
        with wrap_case_errors(case.name, "data_generate"):
            write_folder(made, lambda place: generate(place, fields))
    return made


def _select_data_fields(case: Case, recipe: Recipe) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in case.data_fields}


def locate_generated_data(case: Case, recipe: Recipe, root: Path) -> Path:
    """Return where ``recipe``'s generated data lies, or would.

    The name holds a digest of the case's sources and of the recipe fields that the data
    depends on (``Case.data_fields``), so that a changed generator never meets old data and
    any other field finds the same data again. A generator can read no other field.
    """
    generate, sources = import_part(case.name, "data").generate, get_folder(case.name)
    # A case may borrow the generator of another one. Words to draw from may stand in a table.
    folders, kinds = {sources, Path(getfile(generate)).parent}, ("*.py", "*.toml")
    files = sorted({file for place in folders for kind in kinds for file in place.rglob(kind)})
    text = json.dumps(_select_data_fields(case, recipe), sort_keys=True) + "".join(
        file.read_text(encoding="utf-8") for file in files
    )
    return root / f"{case.name}-{sha256(text.encode()).hexdigest()[:16]}"


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Create ``folder`` with what ``fill`` writes: whole, or not at all.

    Raises:
        EnvironmentFault: the parent folder cannot be written.
    """
    staging: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        fill(staging)
        staging.chmod(0o755)
        staging.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else somebody finished the same content first: use theirs
            raise EnvironmentFault(
                f"cannot write there: {error.strerror or error}",
                where=str(folder.parent),
                fix=f"free some space, or set {ROOT_VARIABLE} to a folder you may write to",
            ) from error
    finally:
        if staging:
            shutil.rmtree(staging, ignore_errors=True)


def get_folder(name: str) -> Path:
    """Return the folder of the case called ``name``, with its README and reference figures."""
    file = importlib.import_module(f"{_resolve_package(name)}.case").__file__
    assert file is not None
    return Path(file).parent


def load(name: str) -> Case:
    """Return the case with the name or alias ``name``, with its messages and page.

    Raises:
        UsageError: no such case, or one of its files cannot be read.
    """
    known = list_names()
    if name in known:
        return _add_messages_and_page(_load(name))
    loaded, _ = load_all()
    aliases = {alias: case for case in loaded for alias in case.aliases}
    if name in aliases:
        return _add_messages_and_page(aliases[name])
    raise UsageError(
        f"unknown case {name!r}", where="CASE", fix=suggest_nearest(name, [*known, *aliases])
    )


def load_all() -> tuple[list[Case], list[UsageError]]:
    """Return every case that can be read, and an error for each that cannot.

    Messages and pages are not read, because lists of cases do not need them.
    """
    loaded, faults = [], []
    for name in list_names():
        try:
            loaded.append(_load(name))
        except UsageError as error:
            faults.append(error)
    return loaded, faults


def _load(name: str) -> Case:
    """Return one case from its ``case.py``; raise UsageError if that is not valid."""
    file = f"{_find_packages()[name]}/case.py"
    try:
        case: Case = importlib.import_module(f"{_resolve_package(name)}.case").CASE
    except Exception as error:  # a case's file may raise anything on import
        raise UsageError(
            f"cannot be read as a case: {type(error).__name__}: {error}",
            where=file,
            rule="a case.py defines CASE and can be imported without an error",
            fix="correct the file; docs/adding-a-case.md shows a complete one",
        ) from error
    if case.name != name:
        raise UsageError(
            f"CASE.name is {case.name!r} in the folder {name!r}",
            where=file,
            rule="a case has the name of its folder",
            fix=f"write name={name!r}, or rename the folder",
        )
    return case


def _add_messages_and_page(case: Case) -> Case:
    """Return ``case`` with the messages and the page from its ``.toml`` files."""
    place = get_folder(case.name)
    sentences, page = place / MESSAGES_FILE, place / PAGE_FILE
    if sentences.is_file():
        case = replace(case, messages={**case.messages, **read_messages(sentences)})
    return replace(case, page=read_page(page)) if page.is_file() else case
