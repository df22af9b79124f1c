"""Logs of well-known trainers: how each is recognised and read, by ``presets.toml``."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way in which a trainer prints its speed; ``presets.toml`` says what a field is."""

    keyword: str
    reads: Literal["step_time", "steps", "speed"]
    time_unit: str = "s"
    per_device: bool = False
    unit: str | None = None
    batch: str = ""
    loss: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A trainer's log; ``presets.toml`` says what a field is. No forms: its lines are events."""

    name: str
    signature: str
    sample: str
    forms: tuple[Form, ...] = ()


def _read() -> dict[str, Preset]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    forms = {name: [Form(**form) for form in one.pop("forms", ())] for name, one in tables.items()}
    return {name: Preset(name=name, forms=tuple(forms[name]), **tables[name]) for name in tables}


PRESETS = _read()


def choose(name: str, head: str) -> tuple[Preset, Form | None] | None:
    """Return the preset, and its form, of most lines with which a log begins; None: of no line.

    Args:
        name: of the preset, or ``auto``.
    """
    wanted = PRESETS.values() if name == AUTO else [PRESETS[name]]
    counts = {one.name: len(re.findall(one.signature, head)) for one in wanted}
    best = max(counts, key=counts.__getitem__)
    if not counts[best]:
        return None
    forms = PRESETS[best].forms
    told = (one for one in forms if one.keyword in head and one.batch in head)
    return PRESETS[best], next(told, forms[0] if forms else None)
