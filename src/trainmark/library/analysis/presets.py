"""Logs of well-known trainers: how each is recognised and read, by ``presets.toml``."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trainmark.errors import DataError
from trainmark.library.analysis.lines import closest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.library.analysis.lines import Line

EVENT_LOGS = ("mllog", "perflog")  # presets whose lines are JSON events; ``events`` reads them
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
    signature: str
    sample: str
    world: str = ""
    forms: tuple[Form, ...] = ()


def _read() -> dict[str, Preset]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    forms = {name: [Form(**form) for form in one.pop("forms", ())] for name, one in tables.items()}
    return {name: Preset(name=name, forms=tuple(forms[name]), **tables[name]) for name in tables}


PRESETS = _read()


@dataclass(frozen=True, slots=True)
class Choice:
    """The preset taken, its form (None: events), why in one line, and the log's devices."""

    preset: str
    form: Form | None
    why: str
    devices: int | None


def choose(name: str, head: Sequence[Line]) -> Choice:
    """Return the preset and form for a log that begins with the lines ``head``.

    Raises:
        DataError: for a log that no preset fits, or several.
    """
    wanted = list(PRESETS.values()) if name == AUTO else [PRESETS[name]]
    text = "".join(line.text for line in head)
    counts = Counter({one.name: len(re.findall(one.signature, text)) for one in wanted})
    (best, count), total = counts.most_common(1)[0], counts.total()
    preset = PRESETS[best]
    if not total and name == AUTO:
        known = "".join(f"\n  {one.name}: {one.sample}" for one in wanted)
        remedy = f"give keyword=TEXT. Known presets:{known}"
        raise DataError("no line of a known trainer", where="preset=auto", remedy=remedy)
    if not total:
        near = next(filter(None, (closest(form.keyword, head) for form in preset.forms)), None)
        what, rule = f"no line of {preset.title}", f"its lines look like: {preset.sample}"
        remedy = f"nearest is {near}" if near else "try preset=auto, or keyword=TEXT"
        raise DataError(what, where=f"preset={name}", rule=rule, remedy=remedy)
    if count < _SURE * total:
        found = ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
        what = f"lines of several trainers: {found}"
        raise DataError(what, where="preset=auto", remedy="choose one with preset=NAME")
    others = f", {total - count} of other presets" if count < total else ""
    why = f"preset {best} recognised by {count} of its first lines{others}"
    forms = (form for form in preset.forms if form.keyword in text)
    form = next(forms, preset.forms[0] if preset.forms else None)
    return Choice(best, form, why if name == AUTO else f"preset {name}", _devices(preset, text))


def _devices(preset: Preset, text: str) -> int | None:
    """Return the devices of the job; None where the log does not tell a whole number of them."""
    found = re.search(preset.world, text) if preset.world else None
    all_, one = map(float, (*found.groups(), "1")[:2]) if found else (0.0, 0.0)
    devices = round(all_ / one) if one else 0
    near = abs(all_ - devices * one) <= 0.02 * all_  # both speeds are rounded in the log
    return devices if devices and near else None
