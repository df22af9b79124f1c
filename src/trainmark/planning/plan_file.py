"""Plan files: several runs in one YAML file, read and checked key by key.

Owns the keys, their types and the names of entries. Must not know this machine: what a
case, recipe or device is called is checked when the plan is resolved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.data.yaml_text import Value, read
from trainmark.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

SUFFIXES = (".yaml", ".yml")
ACCELERATOR = "accelerator"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ATTEMPT = re.compile(r"(.+)-([0-9]+)")
_MOST_RUNS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run of a plan file; omitted keys are None.

    Args:
        name: its folder's name, unique in the file.
        where: file and line, for messages.
        fields: recipe fields to change, as words.
    """

    name: str
    where: str
    case: str
    recipe: str | None = None
    data: Path | None = None
    device: str | None = None
    nproc: int | None = None
    nnodes: int | None = None
    repeat: int | None = None
    timeout_s: float | None = None
    seed: int | None = None
    sample_every_s: float | None = None
    peak_tflops: float | None = None
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """Runs to launch one after another; ``device`` is the default for runs without one."""

    name: str
    device: str
    out: Path | None
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
        raise UsageError(
            f"name {name!r} is no name of a folder",
            where=value.where,
            rule="letters, digits, `.`, `_` and `-`, a letter or digit first, at most 100",
        )
    return name


def _as_name(words: str) -> str:
    """Return ``words`` as a valid folder name, without colons, slashes and control characters."""
    parts = re.split(r"[\s/:\\]+", "".join(c if c.isprintable() else " " for c in words))
    return "-".join(parts).lstrip("._-") or "plan"


_TOP: dict[str, Callable[[Value], Any]] = {
    "name": _name,
    "device": Value.text,
    "out": lambda value: Path(value.text()),
    "runs": Value.items,
}
_RUN: dict[str, Callable[[Value], Any]] = {
    "name": _name,
    "case": Value.text,
    "recipe": Value.text,
    "data": lambda value: Path(value.text()),
    "device": Value.text,
    "nproc": Value.whole,
    "nnodes": Value.whole,
    "repeat": Value.whole,
    "timeout": Value.number,
    "seed": Value.whole,
    "sample_every": Value.number,
    "peak_tflops": Value.number,
    "set": lambda value: {key: item.word() for key, item in value.mapping().items()},
}
_FIELD_OF_KEY = {"timeout": "timeout_s", "sample_every": "sample_every_s", "set": "fields"}


def read_plan_file(path: Path) -> PlanFile:
    """Read a plan file.

    Raises:
        UsageError: with file and line: no YAML, an unknown key, a wrong type, a name twice.
    """
    top = _known(read(path), _TOP)
    if not top.get("runs"):
        raise UsageError(
            "there are no runs",
            where=str(path),
            rule="a plan file lists them under `runs:`",
            remedy="add a line `- case: toy` under it",
        )
    if len(top["runs"]) > _MOST_RUNS:
        raise UsageError(f"more than {_MOST_RUNS:,} runs", where=str(path))
    entries = tuple(_entry(value) for value in top["runs"])
    _check_names(entries)
    return PlanFile(
        name=top.get("name") or _as_name(path.stem),
        device=top.get("device") or ACCELERATOR,
        out=top.get("out"),
        entries=entries,
    )


def _known(value: Value, keys: dict[str, Callable[[Value], Any]]) -> dict[str, Any]:
    """Return the value of each key, converted to its type."""
    found = value.mapping()
    for key, item in found.items():
        if key not in keys:
            raise UsageError(f"unknown key {key!r}", where=item.where, remedy=nearest(key, keys))
    return {key: keys[key](item) for key, item in found.items()}


def _entry(value: Value) -> Entry:
    known = _known(value, _RUN)
    if "case" not in known:
        raise UsageError(
            "a run without a case",
            where=value.where,
            rule="each run names what it trains",
            remedy="add `case: NAME`; see `trainmark list cases`",
        )
    words = [known["case"], known["recipe"]] if "recipe" in known else [known["case"]]
    known.setdefault("name", _as_name("-".join(words))[:100])
    return Entry(where=value.where, **{_FIELD_OF_KEY.get(key, key): known[key] for key in known})


def _check_names(entries: tuple[Entry, ...]) -> None:
    """Refuse two entries that would share a folder, on any file system."""
    seen: dict[str, Entry] = {}
    for entry in entries:
        other = seen.setdefault(entry.name.lower(), entry)
        if other is not entry:
            raise UsageError(
                f"a second run is called {entry.name}",
                where=entry.where,
                rule=f"the first stands at {other.where}; each has a folder of its own",
                remedy="give it another `name:`",
            )
    for entry in entries:
        found = _ATTEMPT.fullmatch(entry.name.lower())
        if found and found[1] in seen and attempt_number(found[1], entry.name.lower()):
            raise UsageError(
                f"{entry.name} is what an attempt of {seen[found[1]].name} is called",
                where=entry.where,
                rule="attempts after the first are numbered: NAME-2, NAME-3",
                remedy="give one of the two another `name:`",
            )
