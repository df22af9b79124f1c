"""Know where in a log a speed or a step time stands: in a trainer's format, or behind a key.

Owns the presets, ``presets.toml``: the formats of known trainers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from trainmark.documents import Frozen
from trainmark.published.analysis.quantities import Quantity, split_words
from trainmark.toml_file import read_toml

PLAIN = "plain"  # the preset of no trainer: any key that says what its number is
EVENTS = ("mllog", "perflog")  # presets of logs of events
BAR_KEY = "progress bar"
_TIME_UNITS = {"s": 1.0, "ms": 1e-3}
_RUNNING_MEAN_WORDS = {"running", "cumulative"}


class Form(Frozen):
    """One way in which a trainer prints its speed; ``presets.toml`` says what a field is."""

    key: str
    reads: Literal["step_time", "steps", "speed"]  # ``steps``: steps a second
    time_unit: Literal["s", "ms"] = "s"  # of a step time
    unit: str = ""  # of a speed; empty: the one behind the number
    scope: Literal["device", "job"] = "job"
    total_of: str = ""  # key of one device's speed, of which this is the job's
    is_from_closing_line: bool = False
    is_component: bool = False
    is_running_mean: bool = False
    clock: str = ""
    is_counter: bool = False

    def make_quantity(self) -> Quantity:
        """Return what a number that a trainer prints in this form measures.

        The field ``reads`` is the kind of the quantity: a step time, steps a second, or a speed. A
        speed is that of one device or of the whole job, which is the ``scope``.
        """
        unit = "steps/s" if self.reads == "steps" else self.unit
        return Quantity(self.reads, unit, time_unit_s=_TIME_UNITS[self.time_unit], scope=self.scope)


class Preset(Frozen):
    """A trainer's log; ``presets.toml`` says what a field is."""

    signature: str
    sample: str
    loss: str = ""
    closing: str = ""
    forms: tuple[Form, ...]


PRESETS = TypeAdapter(dict[str, Preset]).validate_python(
    read_toml(Path(__file__).with_name("presets.toml"))
)
SIGNATURES = {name: re.compile(preset.signature) for name, preset in PRESETS.items()}
NAMES = (*PRESETS, PLAIN, *EVENTS)


@dataclass(frozen=True, slots=True)
class Source:
    """Where values of one kind stand in a log.

    Args:
        preset: name of the log format of a known trainer; ``plain``: the trainer is not known.
        key: text before the number; empty: there is none, ``unit`` says what the number is.
        quantity: what the number measures.
        unit: text behind the number if there is no key, else empty: the key says what it is.
        rank: place of ``form`` in its preset, which lists the best one first.
        form: the way in which the known trainer prints the number; None: the trainer is not known,
            and the key or the unit says what the number is.
    """

    preset: str
    key: str
    quantity: Quantity
    unit: str = ""
    rank: int = 0
    form: Form | None = None

    @property
    def name(self) -> str:
        """The name in messages: the text before the numbers, else the unit behind them."""
        return self.key or self.unit

    @property
    def is_component(self) -> bool:
        """Tell whether the values are of the timer of one component, such as DeepSpeed's own.

        Such a timer may leave out parts of a step. Only the forms in which known trainers print
        their speed say so; other sources have no form.
        """
        return self.form is not None and self.form.is_component

    @property
    def is_running_mean(self) -> bool:
        """Tell whether each value is the mean since the start of the job.

        The form in which a known trainer prints its speed says so. Without a form, the words of the
        key do, the text before the number.
        """
        if self.form is not None:
            return self.form.is_running_mean
        return not _RUNNING_MEAN_WORDS.isdisjoint(split_words(self.key))


def list_sources_by_key() -> dict[str, list[Source]]:
    """Return the sources of all presets by their key, the text before the number in a log.

    A preset is the log format of a known trainer. Each of its forms, one way in which it prints its
    speed, is a source of values.
    """
    sources: dict[str, list[Source]] = {}
    for name, preset in PRESETS.items():
        for rank, form in enumerate(preset.forms):  # from the best, of rank 0, to the worst
            quantity = form.make_quantity()
            source = Source(name, form.key, quantity, rank=rank, form=form)
            sources.setdefault(form.key, []).append(source)
    return sources
