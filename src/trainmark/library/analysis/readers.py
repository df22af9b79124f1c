"""The values of a log, line by line, and what it says of them: those behind a keyword."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from trainmark.library.analysis.distribution import Distribution
from trainmark.library.analysis.numbers import Rule

if TYPE_CHECKING:
    from trainmark.library.analysis.lines import Line
    from trainmark.library.analysis.options import Options
    from trainmark.library.analysis.presets import Form

_UNIT = re.compile(r"[\s:='\"]*[\d.,eE+-]+\s*([A-Za-z]+/s)(?:ec)?\b")


class Reader(ABC):
    """What was read of a log until now.

    Args:
        keyword: lines with values hold it.
        reads: ``step_time``, ``steps`` a second or ``speed``; empty: the mode says it.
        whole_job: a speed is that of the whole job.
        unit: what a speed counts; None: not known.
        values: those after the first ``skip``.
        batches: samples of all devices, one for each value; empty: the log does not tell.
        first: the first line with a value that counts.
    """

    keyword: str
    reads = ""
    time_unit = "s"
    whole_job = False
    unit: str | None = None

    def __init__(self, skip: int = 0) -> None:
        self.skip = skip
        self.values, self.batches = Distribution(skip), Distribution(skip)
        self.loss: float | None = None
        self.failed = False
        self.notes: list[str] = []
        self.matched = self.malformed = 0
        self.first: Line | None = None
        self.first_malformed: Line | None = None

    @abstractmethod
    def feed(self, line: Line) -> None:
        """Take the next line of the log."""

    def count(self, line: Line, *, malformed: bool) -> None:
        """Count a line with the keyword, after its value was taken."""
        self.matched += 1
        if malformed:
            self.malformed += 1
            self.first_malformed = self.first_malformed or line
        elif self.values.count:
            self.first = self.first or line


class KeywordReader(Reader):
    """Values behind the user's keyword or the form's, and the last loss."""

    def __init__(self, options: Options, form: Form | None) -> None:
        super().__init__(options.skip_steps)
        own = form if not options.keyword else None
        self.keyword = own.keyword if own else options.keyword or ""
        self._rule = options.rule(self.keyword)
        with_batch = own and own.batch and options.base_batch_size is None
        self._batch = Rule(own.batch) if own and with_batch else None
        word = options.keyword_loss or (form.loss if form else "")
        whole = not options.keyword_loss and word[:1].isalpha()  # not eval_loss
        self._loss = Rule(word, whole=whole) if word else None
        self._known_unit = own.unit if own else None
        self._words = options.position is None
        if form is not None:
            self.reads, self.time_unit = form.reads, form.time_unit
            self.whole_job = not form.per_device

    def feed(self, line: Line) -> None:
        """Take the value of a line with the keyword, and its loss."""
        text = line.text
        if self._loss and self._loss.keyword in text:
            loss = self._loss.value(text)
            self.loss = self.loss if loss is None else loss
        if self.keyword not in text:
            return
        value = self._rule.value(text)
        cut = self._batch is not None and not text.endswith("\n")  # may lack one of the pair
        if value is None or cut or not math.isfinite(value):
            self.count(line, malformed=True)
            return
        self.values.add(value)
        if self._batch and (samples := self._batch.value(text)) is not None:
            self.batches.add(samples)
        self.count(line, malformed=False)
        if self.first is line:
            found = _UNIT.match(text.partition(self.keyword)[2]) if self._words else None
            self.unit = found[1] if found else self._known_unit
