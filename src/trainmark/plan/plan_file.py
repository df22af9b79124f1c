"""Plan files: several runs in one YAML file, read and checked key by key.

Owns the keys, their types, the names of entries, and how lists in a run become entries. Must not
know this machine: what a case, recipe or device is called is checked when the plan is resolved.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.data.yaml_text import Value, read
from trainmark.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

SUFFIXES = (".yaml", ".yml")
ACCELERATOR = "accelerator"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ATTEMPT = re.compile(r"(.+)-([0-9]+)")
_WORLD = re.compile(r"([0-9]{1,4})x([0-9]{1,4})")
_MOST_RUNS = 1_000
_LISTED = ("case", "recipe", "device", "world")  # may be lists, and so may the values of `set`
ROUNDS = "rounds"  # launch 1 of every run, then launch 2 backwards, …
_ORDERS = (ROUNDS, "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run of a plan file.

    Args:
        name: its folder's name, unique in the file.
        where: file and line, for messages.
        options: further arguments of ``planning.resolving.resolve`` by name, those that were given.
    """

    name: str
    where: str
    case: str
    data: Path | None = None
    device: str | None = None
    launcher: str | None = None
    site: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """Runs to launch one after another.

    Args:
        device: for runs without one, as are launcher and site.
        order: ``ROUNDS``: launch 1 of every run goes before launch 2 of any; every other round goes
            backwards.
    """

    name: str
    device: str = ACCELERATOR
    launcher: str | None = None
    site: Path | None = None
    out: Path | None = None
    order: str = ROUNDS
    entries: tuple[Entry, ...]


def is_plan_file(word: str) -> bool:
    """Tell whether the case argument names a plan file."""
    return word.lower().endswith(SUFFIXES)


def attempt_name(name: str, number: int) -> str:
    """Return the folder of an entry's attempt: the name alone, then ``name-2``, ``name-3``."""
    return name if number == 1 else f"{name}-{number}"


def attempt_number(name: str, folder: str) -> int | None:
    """Return the number of the attempt in a folder's name; None if it is not of entry ``name``."""
    if folder == name:
        return 1
    found = _ATTEMPT.fullmatch(folder)
    number = int(found[2]) if found and found[1] == name and len(found[2]) < 10 else 0
    return number if number > 1 and attempt_name(name, number) == folder else None


def _name(value: Value) -> str:
    name = value.text()
    if not _NAME.fullmatch(name):
        rule = "letters, digits, `.`, `_` and `-`, a letter or digit first, at most 100"
        raise UsageError(f"name {name!r} is no name of a folder", where=value.where, rule=rule)
    return name


def _as_name(words: str) -> str:
    """Return ``words`` as a valid folder name, without colons, slashes and control characters."""
    parts = re.split(r"[\s/:\\]+", "".join(c if c.isprintable() else " " for c in words))
    return "-".join(parts).lstrip("._-") or "plan"


def _order(value: Value) -> str:
    word = value.text()
    if word not in _ORDERS:
        raise UsageError(f"no order {word!r}", where=value.where, remedy=nearest(word, _ORDERS))
    return word


def _world(value: Value) -> str:
    """Return machines x ranks on each, without zeros in front."""
    found = _WORLD.fullmatch(value.text())
    if not found:
        rule = "machines x ranks on each, as 2x8"
        raise UsageError(f"{value.text()!r} is no world", where=value.where, rule=rule)
    return f"{int(found[1])}x{int(found[2])}"


def _path(value: Value) -> Path:
    return Path(value.text())


_TOP: dict[str, Callable[[Value], Any]] = {
    "name": _name,
    "device": Value.text,
    "launcher": Value.text,
    "site": _path,
    "out": _path,
    "order": _order,
    "runs": Value.items,
}
_RUN: dict[str, tuple[str, Callable[[Value], Any]]] = {  # the argument of each key
    "name": ("name", _name),
    "case": ("case", Value.text),
    "recipe": ("recipe_name", Value.text),
    "data": ("data", _path),
    "device": ("device", Value.text),
    "launcher": ("launcher", Value.text),
    "site": ("site", _path),
    "world": ("world", _world),
    "nproc": ("nproc", Value.whole),
    "nnodes": ("nnodes", Value.whole),
    "repeat": ("repeat_count", Value.whole),
    "timeout": ("timeout_s", Value.number),
    "seed": ("seed", Value.whole),
    "sample_every": ("sample_every_s", Value.number),
    "peak_tflops": ("peak_tflops", Value.number),
    "set": ("overrides", Value.mapping),
}
_OF_ENTRY = ("name", "case", "data", "device", "launcher", "site")  # the others are for resolve


def read_plan_file(path: Path) -> PlanFile:
    """Read a plan file.

    Raises:
        UsageError: with file and line: no YAML, an unknown key, a wrong type, a name twice.
    """
    top = {key: _TOP[key](item) for key, item in _known(read(path), _TOP).items()}
    if not top.get("runs"):
        rule, remedy = "a plan file lists them under `runs:`", "add a line `- case: toy` under it"
        raise UsageError("there are no runs", where=str(path), rule=rule, remedy=remedy)
    entries: list[Entry] = []
    for value in top.pop("runs"):
        entries += _entries(value, most=_MOST_RUNS - len(entries))
    _check_names(entries)
    return PlanFile(**{"name": _as_name(path.stem)} | top, entries=tuple(entries))


def _known(value: Value, keys: Collection[str]) -> dict[str, Value]:
    """Return what stands under each key, none of them unknown."""
    found = value.mapping()
    for key, item in found.items():
        if key not in keys:
            raise UsageError(f"unknown key {key!r}", where=item.where, remedy=nearest(key, keys))
    return found


def _entries(run: Value, *, most: int) -> Iterator[Entry]:
    """Yield an entry for each combination of the lists in ``run``; the last varies fastest.

    Names depend on the values of an entry alone: a value added to a list renames no other entry.
    """
    known = _known(run, _RUN)
    if "case" not in known:
        remedy = "add `case: NAME`; see `trainmark list cases`"
        raise UsageError("a run without a case", where=run.where, remedy=remedy)
    if "world" in known and known.keys() & {"nnodes", "nproc"}:
        rule = "`world: 2x8` says both"
        raise UsageError("world beside nnodes or nproc", where=known["world"].where, rule=rule)
    settings = known.pop("set").mapping() if "set" in known else {}
    axes = {key: _members(item, _RUN[key][1], key in _LISTED) for key, item in known.items()}
    axes |= {f"set {key}": _members(settings[key], Value.word, True) for key in sorted(settings)}
    if math.prod(map(len, axes.values())) > most:
        raise UsageError(f"more than {_MOST_RUNS:,} runs", where=run.where)
    base = ("name",) if "name" in known else ("case", "recipe")
    shown = [key for key in _LISTED if key in known and known[key].is_list and key not in base]
    for values in product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        fields = {key: point.pop(f"set {key}") for key in settings}
        words = [point[key] for key in (*base, *shown) if key in point]
        words += [f"{key}_{fields[key]}" for key in sorted(fields) if settings[key].is_list]
        given = {_RUN[key][0]: point[key] for key in point} | {"overrides": fields}
        if "world" in given:
            given["nnodes"], given["nproc"] = map(int, given.pop("world").split("x"))
        given["name"] = _as_name("-".join(words))[:100]
        own = {key: given.pop(key) for key in _OF_ENTRY if key in given}
        yield Entry(where=run.where, options=given, **own)


def _members(item: Value, read_one: Callable[[Value], Any], may_be_list: bool) -> list[Any]:
    """Return the members of a list, or the one value that is no list, converted."""
    if not (may_be_list and item.is_list):
        return [read_one(item)]
    found: dict[Any, Value] = {}
    for member in item.items():
        word = read_one(member)
        if word in found:
            rule = f"it stands in line {found[word].line} already; `repeat: 2` launches a run twice"
            raise UsageError(f"{item.key} has {word} twice", where=member.where, rule=rule)
        found[word] = member
    if not found:
        raise UsageError(f"{item.key} is an empty list", where=item.where)
    return list(found)


def _check_names(entries: Sequence[Entry]) -> None:
    """Refuse two entries that would share a folder, on any file system."""
    seen: dict[str, Entry] = {}
    for entry in entries:
        other = seen.setdefault(entry.name.lower(), entry)
        if other is not entry:
            rule = f"the first stands at {other.where}; each has a folder of its own"
            raise UsageError(f"a second run is called {entry.name}", where=entry.where, rule=rule,
                             remedy="give it another `name:`")  # fmt: skip
    for entry in entries:
        found = _ATTEMPT.fullmatch(entry.name.lower())
        if found and found[1] in seen and attempt_number(found[1], entry.name.lower()):
            what = f"{entry.name} is what an attempt of {seen[found[1]].name} is called"
            rule = "attempts after the first are numbered: NAME-2, NAME-3"
            remedy = "give one of the two another `name:`"
            raise UsageError(what, where=entry.where, rule=rule, remedy=remedy)
