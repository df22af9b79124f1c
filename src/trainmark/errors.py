"""All errors that users see, as one tree of classes.

Owns how a fault is worded and which exit code it maps to. Knows nothing of cases, devices or torch.
Bugs of this program are ``assert``s and not in this tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable

EXIT_PASSED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOISY = 3  # too noisy, or too little data, to tell


# C0 without tab and newline, DEL, C1, direction marks, line separators, lone surrogates, and the
# characters that XML forbids.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)


def escape_controls(text: object) -> str:
    r"""Return ``text`` with control characters written as ``\u001b``, as JSON writes them.

    Everything that is printed, written to a page or quoted in a message goes through here.
    Newlines and tabs stay.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", str(text))


def to_one_line(text: object) -> str:
    """Return ``text`` on one line, control and direction characters escaped."""
    return escape_controls(re.sub(r"(?:\r?\n|\t)+", " ", str(text))).strip()


_MAX_LISTED = 40  # known names that are listed after the nearest one
# Of a word to a name, from 0 to 1. One wrong letter of three is 0.67: with so short words that is
# another name, as `xpu` is not meant by `gpu`. One wrong letter of four is 0.75.
_MIN_SIMILARITY = 0.7


class TrainmarkError(Exception):
    """Say what is wrong, where, by which rule, and what to try.

    Args:
        what: the fault with the offending value, one sentence without a full stop.
        where: file, row or key that has the fault.
        rule: what is valid there.
        fix: what to do now.
    """

    exit_code = EXIT_USAGE

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        rule: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what)  # ``__str__`` adds place, rule and fix
        self.what = what
        self.where = where
        self.rule = rule
        self.fix = fix

    def __str__(self) -> str:
        text = self.what
        if self.where:
            # A place may contain names from a record. If such a name had a newline, a CI runner
            # could take the next line for a command, such as `::error::`. The other parts keep
            # newlines, because `what` may have several lines, such as one for each host.
            where = self.where.replace("\n", r"\u000a")
            text = f"{where}: {text}"
        if self.rule:
            text += f"; {self.rule}"
        if self.fix:
            text += f"\n  try: {self.fix}"
        return escape_controls(text)


class UsageError(TrainmarkError):
    """An argument, field or value that is unknown, or invalid in its place."""


class DataError(TrainmarkError):
    """Input data that is missing, malformed or outside its range."""


# Makes the error of one kind of file: ``partial(DataError, rule=…, fix=…)``.
Fault = Callable[..., DataError]


class EnvironmentFault(TrainmarkError):
    """The machine lacks what the plan needs: devices, packages, disk, permission."""


class RecordError(TrainmarkError):
    """A run directory or record that cannot be read as one of this program."""


class LostRunError(TrainmarkError):
    """A run that started and whose record cannot be written."""

    exit_code = EXIT_FAILED


class MeasurementError(TrainmarkError):
    """A measurement that started and failed, or was stopped."""

    exit_code = EXIT_FAILED


class CaseError(TrainmarkError):
    """Code of a case raised an error of its own outside a rank.

    ``__cause__`` is what was raised.

    Args:
        place: which part of the case, for example ``data_check``.
        source: file and line of the case's code.
    """

    exit_code = EXIT_FAILED

    def __init__(self, error: BaseException, *, case: str, place: str, source: str) -> None:
        # The place is a part of the case, such as ``data_check``; the source is file and line.
        super().__init__(
            f"{type(error).__name__}: {error}",
            where=f"case {case}, {place} ({source})",
            rule="the code of a case may only raise DataError, and only for faulty data",
            fix=f"fix the code of the case; `trainmark check {case}` runs it",
        )
        self.place = place
        self.__cause__ = error


class RunError(Exception):
    """A run that started and failed.

    Args:
        code: what happened; ``record.messages`` has its sentences.
        args: the values in them.
    """

    kind: ClassVar[str] = "error"  # of the record's cause

    def __init__(self, code: str, **args: str | int | float | bool | None) -> None:
        super().__init__(code, args)
        # The code names a sentence, such as ``loss_not_finite``; ``args`` are the values in it.
        self.code = code
        self.details = args  # ``args`` is an attribute of every exception


class DivergedError(RunError):
    """The loss became NaN or infinite."""

    kind = "diverged"


class ContradictionError(RunError):
    """Counts that cannot be true together."""

    kind = "impossible_figure"


class UntimedWorkError(RunError):
    """Parameters changed outside the timed steps."""

    kind = "untimed_work"


class NotTrainedError(RunError):
    """Parameters that should have changed did not."""

    kind = "not_trained"


def find_nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that ``word`` was probably meant to be; None: no name is similar enough.

    Upper and lower case count as the same. A name may be longer than the word: then the word may be
    similar to its beginning.
    """
    typed = word.lower()
    if not typed:
        return None
    ranks: list[tuple[float, float, str]] = []
    for name in names:
        valid = name.lower()
        whole = SequenceMatcher(None, valid, typed).ratio()
        beginning = SequenceMatcher(None, valid[: len(typed)], typed).ratio()
        # Of names with the same beginning, the one that is more similar as a whole is nearer.
        ranks.append((max(whole, beginning), whole, name))
    if not ranks:
        return None
    similarity, _, nearest = max(ranks)
    return nearest if similarity >= _MIN_SIMILARITY else None


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """Return a fix that names the word in ``known`` that is nearest to ``word``.

    All of them are named too if they are few, or if none is near.
    """
    names = sorted(known)
    nearest = find_nearest(word, names)
    if nearest is not None and len(names) > _MAX_LISTED:
        return f"did you mean {nearest}?"
    if nearest is not None:
        return f"did you mean {nearest}? Known: {', '.join(names)}"
    return f"known: {', '.join(names)}"
