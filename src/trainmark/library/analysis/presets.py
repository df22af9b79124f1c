"""Logs of well-known trainers: how each is recognised and read.

Owns the recognition by ``presets.toml``. Must not know how values are summed up.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trainmark.errors import DataError, UsageError, nearest
from trainmark.library.analysis.extract import NearMiss
from trainmark.library.analysis.numbers import LARGEST_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.library.analysis.source import Block

AUTO = "auto"
_SURE = 0.9  # share of the recognised lines that decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way in which a trainer prints its speed; ``presets.toml`` says what a field is."""

    keyword: str
    reads: Literal["step_time", "steps", "speed"]
    time_unit: str = "s"
    per_device: bool = False
    unit: str = ""
    batch: str = ""
    loss: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A trainer's log; ``presets.toml`` says what a field is."""

    name: str
    title: str
    signature: bytes
    sample: str
    world: bytes = b""
    forms: tuple[Form, ...] = ()


def _read_presets() -> dict[str, Preset]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    found = {}
    for name, table in tables.items():
        patterns = {key: table.pop(key, "").encode() for key in ("signature", "world")}
        forms = tuple(Form(**form) for form in table.pop("forms", []))
        found[name] = Preset(name=name, forms=forms, **patterns, **table)
    return found


PRESETS = _read_presets()


@dataclass(frozen=True, slots=True)
class Choice:
    """The preset taken, its form (none: events), why in one line, and the log's devices."""

    preset: Preset
    form: Form | None
    why: str
    devices: int | None


def choose(name: str, blocks: Iterator[Block]) -> tuple[Choice, Iterator[Block]]:
    """Return the preset and form for a log, and the blocks from where it begins to speak.

    Blocks without a line of any preset hold none of its values and are passed over, so the
    log is read once. ``auto`` decides in the first block with recognised lines.

    Raises:
        UsageError: for a name that is unknown.
        DataError: for a log that no preset fits, or several.
    """
    if name != AUTO and name not in PRESETS:
        remedy = nearest(name, [*PRESETS, AUTO])
        raise UsageError(f"no preset {name!r}", where="--preset", remedy=remedy)
    wanted = list(PRESETS.values()) if name == AUTO else [PRESETS[name]]
    misses = [NearMiss(form.keyword) for preset in wanted for form in preset.forms]
    first: Block | None = None
    for block in blocks:
        first = first or block
        counts = {preset.name: len(re.findall(preset.signature, block.data)) for preset in wanted}
        if any(counts.values()):
            preset, why = _decide(counts) if name == AUTO else (PRESETS[name], f"preset {name}")
            devices = _devices(preset, first) or _devices(preset, block)
            return Choice(preset, _form(preset, block), why, devices), chain([block], blocks)
        if name != AUTO:
            for miss in misses:
                miss.feed(block)
    raise _nothing(wanted, [miss.best for miss in misses if miss.best])


def _decide(counts: dict[str, int]) -> tuple[Preset, str]:
    total = sum(counts.values())
    best = max(counts, key=lambda name: counts[name])
    if counts[best] < _SURE * total:
        found = ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
        what = f"lines of several trainers: {found}"
        raise DataError(what, where="--preset auto", remedy="choose one with --preset NAME")
    others = f", {total - counts[best]} of other presets" if counts[best] < total else ""
    why = f"preset {best} recognised by {counts[best]} of its first lines{others}"
    return PRESETS[best], why


def _devices(preset: Preset, block: Block) -> int | None:
    found = re.search(preset.world, block.data) if preset.world else None
    if not found:
        return None
    try:
        numbers = [float(text) for text in found.groups()]
    except ValueError:  # dots in a row: no number, so nothing is said
        return None
    all_, one = numbers[0], numbers[1] if len(numbers) > 1 else 1.0
    ratio = all_ / one if one else 0.0
    devices = round(ratio) if ratio < LARGEST_COUNT else 0  # as nan and inf are not
    near = abs(all_ - devices * one) <= 0.02 * all_  # both speeds are rounded in the log
    return devices if devices and near else None


def _form(preset: Preset, block: Block) -> Form | None:
    for form in preset.forms:
        if form.keyword.encode() in block.data:
            return form
    return preset.forms[0] if preset.forms else None


def _nothing(wanted: Sequence[Preset], near: Sequence[object]) -> DataError:
    if len(wanted) == 1:
        what = f"no line of {wanted[0].title}"
        rule = f"its lines look like: {wanted[0].sample}"
        remedy = f"nearest is {near[0]}" if near else "try --preset auto, or --keyword TEXT"
        return DataError(what, where=f"--preset {wanted[0].name}", rule=rule, remedy=remedy)
    known = "".join(f"\n  {preset.name}: {preset.sample}" for preset in wanted)
    what = "no line of a known trainer"
    return DataError(
        what, where="--preset auto", remedy=f"give --keyword TEXT. Known presets:{known}"
    )
