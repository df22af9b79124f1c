"""Find, load and check the workloads, called cases.

A case is a folder with modules of fixed names:

``case.py`` (the recipes), ``data`` (``generate``, ``check``), ``job`` (``load_data``, ``build``;
the only one that imports torch) and, if its data must be prepared, ``prepare`` (``prepare``). Each
of the last three may be a package. A case with figures of its own also has ``figures``
(``compute``); one whose model size follows from its recipe has ``sizes`` (``find_sizes``).

Cases are found in the folders next to this file, in packages with an entry point in the group
``trainmark.cases``, and in the folders that the environment variable ``TRAINMARK_CASE_PATH`` lists.
This module also caches generated data. No other module names a case.
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
from trainmark.spec import MESSAGES_FILE, PAGE_FILE, Case, DataFacts, read_messages, read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from trainmark.recipe import Recipe
    from trainmark.spec import RankMemory

ENTRY_POINT_GROUP = "trainmark.cases"
PATH_VARIABLE = "TRAINMARK_CASE_PATH"
ROOT_VARIABLE = "TRAINMARK_CACHE"
# Begins the package name of a case from a folder of ``TRAINMARK_CASE_PATH``.
_OUTSIDE_PREFIX = "trainmark_outside_case_"
Part = Literal["data", "figures", "job", "prepare", "sizes"]


def _locate_cases() -> dict[str, Path | str]:
    """Return the folder of each case by name, or its package's name if an entry point names it.

    If several cases have the same name, the one of this package is taken; else the one of the last
    folder of ``TRAINMARK_CASE_PATH`` that has it; else that of the entry point.

    Raises:
        UsageError: ``TRAINMARK_CASE_PATH`` has something that is not a folder.
    """
    locations: dict[str, Path | str] = {
        entry.name: entry.value for entry in find_entry_points(ENTRY_POINT_GROUP)
    }
    roots = [Path(item) for item in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if item]
    for root in (*roots, Path(__file__).parent):  # a later root replaces cases of earlier ones
        if not root.is_dir():
            raise UsageError(
                f"{root} is not a folder",
                where=PATH_VARIABLE,
                fix=f"set {PATH_VARIABLE} to folders that contain cases",
            )
        for file in root.glob("*/case.py"):
            locations[file.parent.name] = file.parent
    return locations


def list_names() -> list[str]:
    """Return the names of all cases, sorted."""
    return sorted(_locate_cases())


def _resolve_package(name: str) -> str:
    """Return the package name under which a case's modules are imported."""
    location = _locate_cases()[name]
    if isinstance(location, str):  # an entry point names the package
        return location
    if location.parent == Path(__file__).parent:  # a case of this package
        return f"{__name__}.{name}"
    # A folder of ``TRAINMARK_CASE_PATH`` is not on the import path. So its case gets a package of
    # its own: it has no code, and its modules are the files of the folder.
    package = _OUTSIDE_PREFIX + name
    if package not in sys.modules:
        spec = importlib.util.spec_from_loader(package, loader=None, is_package=True)
        assert spec is not None
        spec.submodule_search_locations = [str(location)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return package


def is_shipped(name: str) -> bool:
    """Return whether the case ``name`` is part of this package."""
    # The name may come from a record and be any text, also a path out of this folder.
    return name.isidentifier() and (Path(__file__).parent / name / "case.py").is_file()


def has_part(name: str, part: Part) -> bool:
    """Return whether the case ``name`` has the module ``part``."""
    return importlib.util.find_spec(f"{_resolve_package(name)}.{part}") is not None


def import_part(name: str, part: Part) -> ModuleType:
    """Import a module of the case ``name``.

    Raises:
        UsageError: the case has no such module, or the module cannot be imported.
        ModuleNotFoundError: the module needs another one, not of the case, that is not installed.
    """
    if not has_part(name, part):
        raise UsageError(
            f"case {name} has no module {part!r}",
            where=str(get_folder(name)),
            rule="a case must contain the modules or packages `data` and `job`; `prepare`, "
            "`figures` and `sizes` are optional",
            fix=f"add {part}.py; see docs/adding-a-case.md for a complete case",
        )
    package = _resolve_package(name)
    try:
        return importlib.import_module(f"{package}.{part}")
    except (Exception, SystemExit) as error:  # a case's file may raise anything on import
        # A module that is not found may be of a package to install: the command says so, with the
        # module's name, which also shows if it is only misspelled. But the case's own modules, all
        # of which are in ``package``, cannot be installed.
        if isinstance(error, ModuleNotFoundError):
            is_of_case = (error.name or "").startswith(f"{package}.")
            if not is_of_case:
                raise
        raise UsageError(
            f"cannot be imported: {type(error).__name__}: {error}",
            where=f"case {name}, module {part}",
            rule="the modules of a case must be importable",
            fix="correct the module; see docs/adding-a-case.md for a complete case",
        ) from error


def get_cache_root() -> Path:
    """Return the cache folder: ``$TRAINMARK_CACHE``, or ``trainmark`` in the user's cache."""
    chosen = os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainmark"


@contextmanager
def wrap_case_errors(name: str, place: str) -> Iterator[None]:
    """Turn an exception from the case's code in the block into a ``CaseError``.

    Args:
        name: of the case.
        place: what runs in the block, such as ``data_check`` for ``check`` in ``data.py``; the
            error names it.

    Raises:
        CaseError: the block raised an exception that is not a ``TrainmarkError``.
    """
    try:
        yield
    except TrainmarkError:
        raise
    except (Exception, SystemExit) as error:  # a case must not end the program either
        calls = traceback.extract_tb(error.__traceback__)
        folder = get_folder(name)
        # The innermost call in the case's own files; if there is none, the innermost of all.
        case_calls = [call for call in calls if Path(call.filename).is_relative_to(folder)]
        innermost = case_calls[-1] if case_calls else calls[-1]
        source = f"{innermost.filename}:{innermost.lineno}"
        raise CaseError(error, case=name, place=place, source=source) from error


def check_data(name: str, folder: Path, recipe: Recipe) -> DataFacts:
    """Check a folder with data of the case ``name``; return the facts of the data.

    Raises:
        DataError: the data is invalid.
        CaseError: the check itself failed.
    """
    check = import_part(name, "data").check
    with wrap_case_errors(name, "data_check"):
        facts: DataFacts = check(folder, recipe)
        if not isinstance(facts, DataFacts):
            raise TypeError(f"check() returned {type(facts).__name__}, not DataFacts")
    return facts


def check_fit(
    name: str, folder: Path, recipe: Recipe, world_size: int, memory: RankMemory
) -> int | None:
    """Check that a run with ``recipe`` on ``world_size`` ranks fits the memory of a rank.

    Args:
        folder: the data of the run.
        memory: the memory that a rank has.

    Returns:
        The memory in bytes that a rank is predicted to need at least; None: the case does not
        predict it, and nothing was checked.

    Raises:
        EnvironmentFault: a rank has less memory than it is predicted to need.
        CaseError: the prediction failed.
    """
    data = import_part(name, "data")
    if not hasattr(data, "check_fit"):
        return None
    with wrap_case_errors(name, "data_check_fit"):
        needed_bytes: int | None = data.check_fit(folder, recipe, world_size, memory)
    return needed_bytes


def ensure_generated_data(case: Case, recipe: Recipe, root: Path) -> Path:
    """Return the folder with ``recipe``'s generated data; generate it if it is missing.

    Args:
        root: parent folder of all generated data.

    Raises:
        EnvironmentFault: the folder cannot be written.
        CaseError: the generator failed.
    """
    folder = locate_generated_data(case, recipe, root)
    if not folder.is_dir():
        generate = import_part(case.name, "data").generate
        # The generator gets only the fields that the folder's name depends on, not the recipe. So
        # the data cannot depend on a field that the name does not cover.
        fields = SimpleNamespace(**_select_data_fields(case, recipe))
        with wrap_case_errors(case.name, "data_generate"):
            write_folder(folder, lambda staging: generate(staging, fields))
    return folder


def _select_data_fields(case: Case, recipe: Recipe) -> dict[str, Any]:
    """Return the recipe fields that generated data depends on."""
    return {name: getattr(recipe, name) for name in case.data_fields}


def locate_generated_data(case: Case, recipe: Recipe, root: Path) -> Path:
    """Return the path of ``recipe``'s generated data, whether it exists or not.

    The name contains a digest of the case's sources and of the recipe fields that the data depends
    on (``Case.data_fields``). So a changed generator never uses old data, and recipes that differ
    in other fields share their data.
    """
    from hashlib import sha256  # slow to import: `trainmark list` does without it

    generate = import_part(case.name, "data").generate
    # The generator's folder is added because a case may use the generator of another case.
    folders = (get_folder(case.name), Path(getfile(generate)).parent)
    source_files: set[Path] = set()  # a set, because the second folder may lie in the first
    for folder in folders:
        source_files.update(folder.rglob("*.py"))
        source_files.update(folder.rglob("*.toml"))  # may have the words to draw from
    digest = sha256(json.dumps(_select_data_fields(case, recipe), sort_keys=True).encode())
    for file in sorted(source_files):
        # As text, so that line ends of another system do not change the digest.
        digest.update(file.read_text(encoding="utf-8").encode())
    return root / f"{case.name}-{digest.hexdigest()[:16]}"


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Create ``folder`` with the files that ``fill`` writes, completely or not at all.

    If another process completes the folder first, that one is kept.

    Args:
        fill: gets the path of the folder to write into. It should read no other files: whatever
            ``OSError`` it raises is reported as a failure to write.

    Raises:
        EnvironmentFault: the parent folder cannot be written, or ``fill`` raised an ``OSError``.
    """
    staging: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        fill(staging)
        staging.chmod(0o755)  # ``mkdtemp`` gives access to the owner alone
        staging.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # if it is there, another process has completed it first
            raise EnvironmentFault(
                f"cannot write to this folder: {error.strerror or error}",
                where=str(folder.parent),
                fix=f"free some space, or set {ROOT_VARIABLE} to a writable folder",
            ) from error
    finally:
        if staging is not None:  # after success it is renamed, and there is nothing to remove
            shutil.rmtree(staging, ignore_errors=True)


def get_folder(name: str) -> Path:
    """Return the folder of the case ``name``, which contains its README and reference figures."""
    # An entry point gives only the name of a package, not its folder; the import finds the folder.
    file = importlib.import_module(f"{_resolve_package(name)}.case").__file__
    assert file is not None  # it is None only for modules without a file
    return Path(file).parent


def load(name: str) -> Case:
    """Return the case with the name or alias ``name``.

    It has the sentences of its messages and its part of the result page, which ``load_all`` omits.

    Raises:
        UsageError: there is no such case, or one of its files cannot be read.
    """
    case_names = list_names()
    if name in case_names:
        return _add_messages_and_page(_load(name))
    # Only a loaded case says its aliases. A case that cannot be loaded does not stop this search.
    cases, _errors = load_all()
    case_by_alias = {alias: case for case in cases for alias in case.aliases}
    if name in case_by_alias:
        return _add_messages_and_page(case_by_alias[name])
    raise UsageError(
        f"unknown case {name!r}",
        where="CASE",  # the argument of the commands
        fix=suggest_nearest(name, [*case_names, *case_by_alias]),
    )


def load_all() -> tuple[list[Case], list[UsageError]]:
    """Return every case that can be loaded, and an error for each that cannot.

    The files with the sentences of a case's messages and with its part of the result page are not
    read, because lists of cases do not need them.
    """
    cases: list[Case] = []
    errors: list[UsageError] = []
    for name in list_names():
        try:
            cases.append(_load(name))
        except UsageError as error:
            errors.append(error)
    return cases, errors


def _load(name: str) -> Case:
    """Return the case ``name`` from its ``case.py``; raise UsageError if that is invalid."""
    location = _locate_cases()[name]
    # For errors: what has the name ``name``, and the file or, in a package, the module of the case.
    if isinstance(location, Path):
        named_thing = "folder"
        file = f"{location}/case.py"
    else:  # a package's name, from an entry point
        named_thing = "entry point"
        file = f"{location}.case"
    try:
        case = importlib.import_module(f"{_resolve_package(name)}.case").CASE
        if not isinstance(case, Case):
            raise TypeError(f"CASE is a {type(case).__name__}, not a Case")
    except (Exception, SystemExit) as error:  # a case's file may raise anything on import
        raise UsageError(
            f"cannot be read as a case: {type(error).__name__}: {error}",
            where=file,
            rule="a case.py must be importable and must define CASE",
            fix="correct the file; see docs/adding-a-case.md for a complete case",
        ) from error
    if case.name != name:
        raise UsageError(
            f"CASE.name is {case.name!r}, but the {named_thing} is named {name!r}",
            where=file,
            rule=f"a case must have the same name as its {named_thing}",
            fix=f"set name={name!r}, or rename the {named_thing}",
        )
    return case


def _add_messages_and_page(case: Case) -> Case:
    """Return ``case`` with what ``messages.toml`` and ``page.toml`` in its folder declare.

    A record has only the codes of messages, such as ``fix.oom``; ``messages.toml`` has the
    sentences of the codes that the case adds. ``page.toml`` has the case's own figures and tables
    on the result page. Both files may be missing.
    """
    folder = get_folder(case.name)
    messages_file = folder / MESSAGES_FILE
    if messages_file.is_file():
        case = replace(case, messages={**case.messages, **read_messages(messages_file)})
    page_file = folder / PAGE_FILE
    if page_file.is_file():
        case = replace(case, page=read_page(page_file))
    return case
