"""Read what the lines of a log say around its values: steps, epochs, runs, other work, resumes."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trainmark.published.analysis import quantities
from trainmark.published.analysis.pairs import find_pairs
from trainmark.published.analysis.quantities import read_quantity, split_words

if TYPE_CHECKING:
    from trainmark.published.analysis.pairs import Pair
    from trainmark.published.analysis.quantities import Quantity

_NUM_RECENT_STEPS = 2  # a late rank may print these steps again
# The first word of a line behind times, brackets with numbers and levels.
_FIRST_WORD = re.compile(
    r"^(?:[\s|>•{'\"(]|\*+|-+(?=\s)|\[[^\]\n]*\d[^\]\n]*\]:?|\[(?=[A-Za-z])|\S*\d\S*(?=\s)"
    r"|(?:INFO|DEBUG|WARN|WARNING|ERROR)\b:?)*(?P<word>[A-Za-z]+)"
)
_WORD_OF_HEAD = re.compile(r"[^\s\[\](){}|:,'\"]+")
_OTHER_WORK = re.compile(
    r"(?i)\b(?:eval(?!\s*[_-]?(?:interval|iters|steps|strategy|batch))\w*|validat\w*|val[ _]loss"
    r"|val[ _]\w+|checkpoint\w*|ckpt|saving|saved?)\b"
)
# The result of an evaluation: `val loss 2.31`.
_EVALUATION_RESULT = re.compile(r"(?i)\bval(?:id(?:ation)?)?[ _]loss\W{0,4}\d")
_RESUMED = re.compile(
    r"(?i)\bresuming (?!= |: )\w+|\bresumed (?:from|training|at)\b|\bcontinuing training\b"
    r"|\bcontinuing from (?:checkpoint|step|epoch|global)|\bwill skip the first\b"
    r"|\brestor(?:ed|ing) (?:from |the )?(?:checkpoint|training state)"
    r"|\bloaded checkpoint\b.*\bat iteration [1-9]"
)
# A quick test, before a pattern is tried: one of these parts is in the line in lower case.
_RESUME_PARTS = (
    "resum",
    "continuing",
    "skip the first",
    "restored",
    "restoring",
    "loaded checkpoint",
)
_OTHER_WORK_PARTS = ("val", "checkpoint", "ckpt", "saving", "save")
# Not behind `per`, as in `time per epoch: 12.3`, and the like: see ``quantities.is_epoch``.
_EPOCH = re.compile(
    r"(?i)(?<!\bper )(?<!\bmax )(?<!\btotal )(?<!\bleft in )(?<!\bremaining in )"
    r"\bepochs?\b['\"]?[\s:=\[#(]*(\d+(?:\.\d+)?)"
)
# `[50/500]` is a step, but not behind the word epoch.
_PROGRESS = re.compile(r"(?i)(?<!epoch)(?<!epoch )(?<!epoch: )\[\s*\d+\s*/\s*\d+")
_PARTS_OF_VALUE_KEYS = (
    "/s", "/it", "/batch", "sec", "throughput", "speed", "tput", "thrpt", "tps", "wps", "tgs",
    "ips", "ups", "qps", "fps", "sps", "per", "tim", "cost", "duration", "latency", "elapsed",
    "loss", "dt", "took", " in ",
)  # fmt: skip


class StepNumber(NamedTuple):
    """A number of a step on a line, such as ``iteration 3/500``.

    Attributes:
        key: word before the number, such as ``iteration``.
        value: the number.
        total: number of the last step that the run plans; 0: the line does not say.
    """

    key: str
    value: float
    total: int


@dataclass(slots=True)
class LogLine:
    """A line with what its numbers mean.

    Args:
        number: of the line in the log, from 1.
        pairs: its numbers with their keys.
        speeds: the pairs that are a speed or a step time of training, with what they measure.
        counters: each number of a step; ranks that print the same step have equal ones.
        step: number of the step; None: the line does not say.
        epoch: number of the epoch; None: the line does not say.
        step_time_s: time of a step that stands on the line, in seconds; None: there is none.
        batch: samples of a step over all devices; None: the line does not say.
        is_other_work: the line begins with a word of evaluation or preparation.
    """

    number: int
    text: str
    pairs: list[Pair]
    speeds: list[tuple[Pair, Quantity]] = field(default_factory=list)
    counters: tuple[StepNumber, ...] = ()
    step: float | None = None
    epoch: float | None = None
    step_time_s: float | None = None
    batch: float | None = None
    is_other_work: bool = False

    def find_loss(self, key: str) -> float | None:
        """Return the loss with this key; an empty key stands for the main loss of training.

        Return None if the line has no such loss.
        """
        if key:
            losses = [pair for pair in self.pairs if pair.key == key]
        else:
            losses = [pair for pair in self.pairs if quantities.is_loss(pair.key)]
            main_losses = [pair for pair in losses if quantities.is_main_loss(pair.key)]
            losses = main_losses or losses
        return losses[0].value if losses else None


def may_have_values(text: str) -> bool:
    """Tell whether a line can have a speed, a step time or a loss: a quick test."""
    return _has_any(text, _PARTS_OF_VALUE_KEYS)


def _has_any(text: str, parts: tuple[str, ...]) -> bool:
    """Tell whether a text has one of the parts, in upper or lower case.

    Args:
        parts: in lower case.
    """
    lowered = text.lower()
    return any(part in lowered for part in parts)


def read_line(number: int, text: str) -> LogLine:
    """Return a line with what its numbers mean; for other work than training, only its pairs.

    A pair is a number of the line with the key before it and the unit behind it.

    Args:
        number: of the line.
        text: of the line.
    """
    line = LogLine(number, text, find_pairs(text))
    if _is_other_work(line):
        line.is_other_work = True
        return line
    counters = []
    for pair in line.pairs:
        if quantities.is_step_counter(pair.key) and pair.value.is_integer():
            counters.append(StepNumber(pair.key, pair.value, pair.total))
            # If a line has several counters, epochs or batches, the first of each counts.
            if line.step is None:
                line.step = pair.value
        elif quantities.is_epoch(pair.key) and line.epoch is None:
            line.epoch = pair.value
        elif quantities.is_global_batch(pair.key) and line.batch is None:
            line.batch = pair.value
    line.counters = tuple(counters)
    _find_speeds(line, has_step=line.step is not None or has_progress(text))
    return line


def has_progress(text: str) -> bool:
    """Tell whether a line has a number of a step in the form ``[50/500]``."""
    return "[" in text and _PROGRESS.search(text) is not None


def _is_other_work(line: LogLine) -> bool:
    """Tell whether the words before the first number are of evaluation or preparation.

    Args:
        line: its ``pairs`` are its numbers, each with the key before it.
    """
    head = line.text[: line.pairs[0].start] if line.pairs else line.text
    # Only the words before a progress bar, `Eval:  50%|###`, say what work it shows.
    head = head.partition("%|")[0]
    # Words of preparation also stand inside lines of training, such as `processed` in
    # `train, processed tokens: 4096`; so only the first word of a line counts. A word of evaluation
    # counts anywhere before the first number.
    first_word = _FIRST_WORD.match(head)
    if first_word and quantities.is_preparation(first_word["word"]):
        return True
    if any(quantities.is_evaluation(token) for token in _WORD_OF_HEAD.findall(head)):
        return True
    # The tokens are split at spaces and punctuation only. `eval_loss: 0.5` has the token
    # `eval_loss`, so the first word of its key is tested, too.
    key_words = split_words(line.pairs[0].key) if line.pairs else ()
    return bool(key_words) and quantities.is_evaluation(key_words[0])


def _find_speeds(line: LogLine, *, has_step: bool) -> None:
    """Fill ``speeds`` of a line with its speeds and step times, and its ``step_time_s``.

    Args:
        line: its ``pairs`` are its numbers, each with the key before it and the unit behind it.
        has_step: the line has the number of a step.
    """
    for pair in line.pairs:
        # What the number measures; None: neither a speed nor a step time.
        quantity = read_quantity(pair.key, pair.unit, pair.following)
        if quantity is None:
            continue
        # A weak key such as `time` may mean something else: without the number of a step on the
        # line, it may be the time of an epoch or of a whole run.
        if quantity.kind == "step_time" and quantity.is_weak and not has_step:
            continue
        # Several speeds may stand on a line; which of them counts is decided for the whole log.
        line.speeds.append((pair, quantity))
        # The time of this step is the first step time on the line that is no mean. A summary is a
        # mean of many steps. A time without a key, such as `2.5s/it`, may be that of a progress
        # bar, which is a mean, too.
        is_time = quantity.kind == "step_time" and not quantity.is_summary
        if is_time and line.step_time_s is None and pair.key:
            line.step_time_s = pair.value * quantity.time_unit_s / quantity.num_steps


class RunEnd(NamedTuple):
    """The end of a run, or the point at which it has arrived in the log.

    Args:
        line: number of its last line with values.
        step: its last step; None: not known.
        is_complete: the last step is the last of all that the run planned.
    """

    line: int
    step: float | None
    is_complete: bool


@dataclass(eq=False)
class _Counter:
    """The steps of one counter, such as ``iteration``.

    Args:
        value: the last step.
        total: the last step that the run plans; 0: not known.
        epoch: of the last step; None: not known.
        recent: the last steps, which a late rank may print again.
        has_ranks: a step was printed more than once.
    """

    value: float
    total: int
    epoch: float | None
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_RECENT_STEPS))
    has_ranks: bool = False

    def add(self, value: float, total: int, epoch: float | None) -> None:
        """Add the step of a line; if it was printed already, another rank prints it again.

        Args:
            value: number of the step.
            total: the last step that the run plans; 0: not known.
            epoch: of the step; None: not known.
        """
        # ``recent`` has only the last few steps: ranks print one step shortly after each other.
        if value in self.recent:
            self.has_ranks = True
            return
        self.value = value
        self.total = total
        self.epoch = epoch
        self.recent.append(value)

    @property
    def is_complete(self) -> bool:
        """Tell whether the counter is at the last step that the run plans.

        Some trainers count from 0, so that their last step is one less than the total.
        """
        # A total of 0 is not known.
        return self.total > 0 and self.value >= self.total - 1


@dataclass
class LogContext:
    """What the lines of a log said until now, besides its values.

    Args:
        run_number: number of the present run in the log, from 0; if the step or the epoch falls,
            another run begins.
        num_restarts: how often steps began anew, with a run or an epoch.
        start_lines: line at which each run begins.
        run_ends: end of each run that another one follows.
        num_pauses: how often a line named an evaluation or a checkpoint, in which training pauses.
        paused_s: seconds that evaluations and checkpoints took, as the log prints them.
        resumed_at: line that says that the run resumes from a checkpoint; 0: none says so.
    """

    run_number: int = 0
    num_restarts: int = 0
    start_lines: list[int] = field(default_factory=lambda: [1])
    run_ends: list[RunEnd] = field(default_factory=list)
    num_pauses: int = 0
    paused_s: float = 0.0
    resumed_at: int = 0
    _has_values: bool = False  # a line with a speed or a step time was read
    _epoch_of_text: float | None = None  # named by the last line that names one in words
    _epoch: float | None = None  # of the last line with values that prints one
    _counters: dict[str, _Counter] = field(default_factory=dict)  # of the run, by their keys
    _run_until_now: RunEnd = field(default_factory=lambda: RunEnd(0, None, is_complete=False))

    def notice_text(self, number: int, text: str) -> None:
        """Keep the epoch that a line names, and which line first says that the run resumes.

        Args:
            number: of the line.
            text: of the line.
        """
        if _has_any(text, ("epoch",)):  # a quick test before the pattern
            epoch = _EPOCH.search(text)
            if epoch is not None:
                self._epoch_of_text = float(epoch[1])
        if not self.resumed_at and _has_any(text, _RESUME_PARTS) and _RESUMED.search(text):
            self.resumed_at = number

    def notice_other_work(self, text: str, line: LogLine | None) -> None:
        """Count an evaluation or a checkpoint that a line names, and add its time if it is printed.

        Args:
            text: the line as printed; it has no speed or step time of training.
            line: the line split into pairs, its numbers with their keys and units; None: it was not
                split.
        """
        if not _has_any(text, _OTHER_WORK_PARTS):  # a quick test before the slow patterns
            return
        # Before the first value a log lists settings, which name evaluations and checkpoints, too:
        # there only a line with the result of an evaluation counts.
        pattern = _OTHER_WORK if self._has_values else _EVALUATION_RESULT
        if not pattern.search(text):
            return
        self.num_pauses += 1
        # The time of the evaluation or checkpoint may be on a line that is not split yet.
        pairs = find_pairs(text) if line is None else line.pairs
        for pair in pairs:
            if quantities.is_pause(pair.key):
                self.paused_s += pair.value * quantities.get_unit_seconds(pair.key, pair.unit)
                return

    def notice_values(self, line: LogLine) -> None:
        """Keep the steps of a line with values or a loss, and notice where steps begin anew.

        A lower epoch begins a new run. A lower step begins a new run, or the next epoch of the same
        run.

        Args:
            line: its ``counters`` are all numbers of a step, each with the last planned step.
        """
        self._has_values = self._has_values or bool(line.speeds)
        # The epoch of the line itself, else that of the last heading such as `Epoch 3`.
        epoch = line.epoch if line.epoch is not None else self._epoch_of_text
        restarted_counters = self._find_restarted_counters(line)
        # The run until this line: its last step, None if not known, and whether it was complete.
        last_step = self._run_until_now.step
        is_complete = self._run_until_now.is_complete
        has_lower_epoch = False
        if line.epoch is not None and self._epoch is not None:
            has_lower_epoch = line.epoch < self._epoch
        if has_lower_epoch or any(_is_of_new_run(counter, epoch) for counter in restarted_counters):
            self.run_ends.append(self._run_until_now)  # the last line and step of the earlier run
            self.start_lines.append(line.number)
            self.run_number += 1
            self._counters.clear()  # a new run may print other counters
            # The first line of the new run may print no step.
            last_step = None
            is_complete = False
        if restarted_counters or has_lower_epoch:
            self.num_restarts += 1
        if line.epoch is not None:  # progress bars, for example, print no epoch
            self._epoch = line.epoch
        # A line without counters, such as one with the final loss, leaves both as they were. On any
        # other line, the run is complete if one of its counters is at the last planned step.
        if line.counters:
            is_complete = False
        for number in line.counters:
            counter = self._counters.get(number.key)
            if counter is None or counter in restarted_counters:
                # ``add`` below keeps the value as one of the recent ones, too.
                counter = _Counter(number.value, number.total, epoch)
                self._counters[number.key] = counter
            counter.add(number.value, number.total, epoch)
            is_complete = is_complete or counter.is_complete
        step = line.step if line.step is not None else last_step
        self._run_until_now = RunEnd(line.number, step, is_complete)

    def _find_restarted_counters(self, line: LogLine) -> list[_Counter]:
        """Return the counters whose step is lower than before, so that steps begin anew.

        If several ranks print into one log, a rank that is late prints a step that others printed
        before. Such a step is lower, too, but does not begin anew.

        Args:
            line: its ``counters`` are all numbers of a step.
        """
        restarted = []
        for number in line.counters:
            counter = self._counters.get(number.key)
            if counter is None or number.value >= counter.value:
                continue
            # A step was printed more than once, so several ranks print into the log; and this step
            # is one of the last few that were printed.
            is_late_rank = counter.has_ranks and number.value in counter.recent
            if not is_late_rank:
                restarted.append(counter)
        return restarted


def _is_of_new_run(counter: _Counter, epoch: float | None) -> bool:
    """Tell whether steps that begin anew are those of another run, and not of the next epoch.

    Args:
        counter: the steps before they began anew, with their epoch and the last planned step.
        epoch: of the new steps; None: not known.
    """
    if epoch is None or counter.epoch is None:
        # Steps that begin anew after the last planned one are those of the next epoch; before it,
        # the run must have been aborted.
        return not counter.is_complete
    return epoch <= counter.epoch  # in a later epoch, steps may begin anew
