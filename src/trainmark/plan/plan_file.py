"""Plan files: several runs in one YAML file.

Defines the keys that a file has in addition to those of a run, the names of entries, and how lists
in a run become several entries. The names of cases, recipes and devices are checked later, when the
plan is resolved, because they depend on the machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from trainmark.documents import Frozen, make_usage_error, read_yaml
from trainmark.errors import UsageError, suggest_nearest
from trainmark.plan.choosing import ACCELERATOR
from trainmark.plan.plan import RUNS_DIR
from trainmark.plan.request import RunRequest
from trainmark.plan.witness import WITNESSED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Options of the command line that may be given with a plan file: they override all its runs.
_SHARED_OPTIONS = {
    "data",
    "device",
    "launcher",
    "cluster",
    "out",
    "timeout",
    "seed",
    "sample_every",
    "follow",
}
_MAX_NAME_CHARACTERS = 100  # of the name of an entry
_LIST_FIELDS = ("follow", "command")  # their values are lists, which do not become several entries


def _format_name(words: str) -> str:
    """Return ``words`` as a valid folder name, without colons, slashes and control characters."""
    printable = "".join(c if c.isprintable() else " " for c in words)
    parts = re.split(r"[\s/:\\]+", printable)
    # A dot at the start would hide the folder, and a dash would make it look like an option.
    # Underscores at the start are removed too.
    name = "-".join(parts).lstrip("._-")
    return name if name else "plan"  # a folder needs some name


def _is_folder_name(name: object) -> bool:
    """Tell whether a name is a valid folder name as it is; a number, for example, is not."""
    return _format_name(str(name))[:_MAX_NAME_CHARACTERS] == name


def _check_folder_name(name: str) -> str:
    """Refuse a name that is not a valid folder name as it is."""
    if not _is_folder_name(name):
        raise ValueError(
            f"the name must be a valid folder name with at most {_MAX_NAME_CHARACTERS} characters, "
            "without / and without a leading dot, dash or underscore"
        )
    return name


FolderName = Annotated[str, AfterValidator(_check_folder_name)]


class Entry(RunRequest):
    """One run of a plan file; ``out`` is the folder of its first attempt.

    Args:
        name: the name of its folder, unique in the file.
        where: file and number of the entry, for messages.
    """

    name: FolderName
    where: str


# Keys of a run in the file.
_KEYS = (*(Entry.model_fields.keys() - {"out", "where", "overrides"}), "set")


class _PlanDocument(Frozen):
    """The content of a plan file; ``device`` is the default of its runs."""

    name: FolderName | None = None
    device: str = ACCELERATOR
    runs: list[dict[str, Any]] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """Runs to launch one after another.

    Args:
        out: the folder that has a folder for each run.
    """

    name: str
    out: Path
    entries: tuple[Entry, ...]


def is_plan_file(word: str) -> bool:
    """Tell whether the case argument names a plan file."""
    return word.lower().endswith((".yaml", ".yml"))


def format_attempt_name(name: str, number: int) -> str:
    """Return the name of the folder of an attempt: ``name``, then ``name-2``, ``name-3``.

    An attempt is one start of an entry, which is a run of a plan file. A further attempt has the
    launches that are missing in the earlier ones.

    Args:
        name: the entry's name.
        number: of the attempt, from 1.
    """
    return name if number == 1 else f"{name}-{number}"


def parse_attempt_number(name: str, folder: str) -> int | None:
    """Return the number of an attempt at the entry ``name``; None: the folder is of another entry.

    An entry is a run of a plan file.

    Args:
        folder: name of the attempt's folder: ``name`` for the first, then ``name-2``, ``name-3``.
    """
    # The group is the number, which the first attempt lacks: from 2, and of at most 9 digits.
    match = re.fullmatch(re.escape(name) + "(?:-([2-9]|[1-9][0-9]{1,8}))?", folder)
    if match is None:
        return None
    return int(match[1]) if match[1] else 1


def read_plan_file(request: RunRequest) -> PlanFile:
    """Read the plan file that ``request.case`` names, a YAML file with several runs.

    Options of the request that make sense for all runs (``_SHARED_OPTIONS``) win over the file.

    Raises:
        UsageError: with file and key: not YAML, an unknown key, a wrong value, a name that occurs
            twice, or an option that belongs to a single run.
    """
    path = Path(request.case)
    given_names = sorted(request.model_fields_set - {"case"})
    given_options = {name: getattr(request, name) for name in given_names}
    single_run_options = [name for name in given_names if name not in _SHARED_OPTIONS]
    if single_run_options:
        option = f"--{single_run_options[0].replace('_', '-')}"
        if single_run_options[0] == "overrides":
            option = "KEY=VALUE"
        raise UsageError(
            f"{option} cannot be used with a plan file",
            where=str(path),
            rule="each run in the file has its own options",
            fix="set the option for each run in the file; see docs/measuring.md for the keys",
        )
    try:
        file = _PlanDocument.model_validate(read_yaml(path) or {})
    except ValidationError as error:
        raise make_usage_error(error, _PlanDocument, f"{path}: ") from None
    name = file.name or _format_name(path.stem)
    # ``--out`` is the folder of all runs: each run has its own folder below it.
    out = given_options.pop("out", None) or RUNS_DIR / name
    entries = []
    for number, run in enumerate(file.runs, start=1):
        where = f"{path}, runs[{number}]"
        for fields in _iterate_combinations(run, where):
            if ":" not in str(fields.get("case")):  # a case key names its hardware
                fields.setdefault("device", file.device)
            location = {"where": where, "out": out / fields["name"]}
            entries.append(Entry.build(f"{where}: ", **(fields | given_options | location)))
    _check_names(entries)
    return PlanFile(name=name, out=out, entries=tuple(entries))


def _iterate_combinations(run: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Yield the fields of an entry for each combination of the lists in ``run``.

    Names depend on the values of an entry alone: a value added to a list renames no other entry.

    Args:
        run: as the file has it; a list of several values stands for an entry for each.
        where: file and number of the run, for errors.
    """
    # A witness is a program of the user's own, which is measured in place of a case. A name in the
    # plan file replaces that of the witness's file.
    if "witness" in run:
        name = _format_name(Path(str(run["witness"])).stem)
        run = {"case": WITNESSED, "name": name} | run
    _check_run(run, where)
    settings = run.get("set") or {}  # recipe fields and their values
    options = {key: value for key, value in run.items() if key != "set"}
    # Lists of several values; that of a command, for example, is one value.
    value_lists = {
        key: values
        for key, values in (options | settings).items()
        if isinstance(values, list) and key not in _LIST_FIELDS
    }
    if not all(value_lists.values()):
        raise UsageError(
            "the list is empty", where=where, fix="give at least one value, or remove the key"
        )
    # One value of each list; without lists there is one combination, which is empty.
    for values in product(*value_lists.values()):
        chosen = dict(zip(value_lists, values, strict=True))  # a value of each list, by its key
        entry_options = {key: chosen.get(key, value) for key, value in options.items()}
        entry_settings = {key: chosen.get(key, value) for key, value in settings.items()}
        name = _make_entry_name(entry_options, chosen)
        yield entry_options | {"name": name, "overrides": entry_settings}


def _check_run(run: dict[str, Any], where: str) -> None:
    """Refuse a run of a plan file with wrong keys, settings or name.

    Args:
        run: as the file has it.
        where: file and number of the run, for errors.
    """
    for key in run:
        if key not in _KEYS:
            raise UsageError(f"unknown key {key!r}", where=where, fix=suggest_nearest(key, _KEYS))
    settings = run.get("set") or {}
    if not isinstance(settings, dict):
        raise UsageError(
            "not of the form KEY: VALUE", where=f"{where}: set", fix="use, for example, {bs: 16}"
        )
    # Refused, not shortened: ``_make_entry_name`` shortens only what it adds to a name.
    if "name" in run and not _is_folder_name(run["name"]):
        raise UsageError(
            f"{run['name']!r} is not a valid folder name",
            where=f"{where}: name",
            rule=(
                f"a name must have at most {_MAX_NAME_CHARACTERS} characters, no / and no "
                "leading dot, dash or underscore"
            ),
        )
    # `seed`, for example, may be a key of the run or one of its settings.
    shared_keys = sorted((run.keys() - {"set"}) & settings.keys())
    if shared_keys:
        raise UsageError(
            f"{shared_keys[0]} is given twice",
            where=f"{where}: set",
            fix=f"remove {shared_keys[0]} from `set`",
        )


def _make_entry_name(options: dict[str, Any], chosen: dict[str, Any]) -> str:
    """Return the name of an entry: its ``name``, else case and recipe; then the chosen values.

    Args:
        options: keys of the entry and their values, without those of ``set``, the recipe fields.
        chosen: values by which this entry differs from others of its run: a run with lists, such as
            ``bs: [8, 16]``, makes an entry of each combination of their values.
    """
    name_keys = ("name",) if "name" in options else ("case", "recipe")
    words = [str(options[key]) for key in name_keys if key in options]
    words += [f"{key}_{value}" for key, value in chosen.items() if key not in name_keys]
    return _format_name("-".join(words))[:_MAX_NAME_CHARACTERS]


def _check_names(entries: Sequence[Entry]) -> None:
    """Refuse two entries that would share a folder, also on file systems that ignore case.

    The folder of an entry's attempt counts too: that of the second attempt of ``a`` is ``a-2``.
    """
    entry_by_name: dict[str, Entry] = {}
    for entry in entries:
        key = entry.name.lower()
        if key in entry_by_name:
            first = entry_by_name[key]
            raise UsageError(
                f"the name {entry.name} is used twice",
                where=entry.where,
                rule=f"each run needs its own folder, and {first.where} already uses this name",
                fix="choose another `name`",
            )
        entry_by_name[key] = entry
    for key, entry in entry_by_name.items():
        # The name of another entry, if this one's name is that name with the number of an attempt.
        other_key, _, number = key.rpartition("-")
        if other_key in entry_by_name and parse_attempt_number(other_key, key) is not None:
            raise UsageError(
                f"the name {entry.name} is reserved for the folder of another run's attempt",
                where=entry.where,
                rule=(
                    f"each run needs its own folder, and attempt {number} of "
                    f"{entry_by_name[other_key].name} would have a folder with this name"
                ),
                fix="choose another `name`",
            )
