"""The advice on a page fits the cause of the failure."""

from __future__ import annotations

import pytest

from trainmark.record.messages import find_fix, render
from trainmark.record.record import Cause
from trainmark.spec import message


def make_cause(kind: str, code: str, *, traceback: str | None = None, **args: str | int) -> Cause:
    """Return the cause of a failure of rank 3.

    Args:
        kind: of the failure.
        code: of the message on it, whose arguments are ``args``.
        traceback: of the exception; None: it was none.
    """
    return Cause(kind=kind, message=message(code, **args), rank=3, traceback=traceback)


@pytest.mark.parametrize(
    ("failure_cause", "code"),
    [
        (make_cause("oom", "rank_killed_out_of_memory", rank=3), "rank_killed_out_of_memory"),
        (make_cause("oom", "exception", text="CUDA out of memory", traceback="tb"), "oom"),
        (make_cause("signal", "stopped_by_signal", signal="SIGINT", steps=4), "stopped_by_signal"),
        (make_cause("error", "exception", text="boom", traceback="tb"), "error"),
        (make_cause("error", "exception", text="boom"), "unknown"),  # no traceback to read
        (make_cause("of_tomorrow", "of_tomorrow"), "unknown"),
    ],
)
def test_fix_suits_the_cause(failure_cause: Cause, code: str) -> None:
    # A failure has a kind, a message with its code, and, of an exception, a traceback. The advice
    # is chosen by the message, or else by the kind; "unknown" is the advice if neither has one.
    assert find_fix(failure_cause).code == f"fix.{code}"
    for lang in ("en", "zh"):
        # Every argument of the sentence is given.
        assert "{" not in render(find_fix(failure_cause), lang)


def test_fix_of_an_earlier_record_is_its_remedy() -> None:
    earlier = make_cause("error", "exception", text="no batch", remedy="lower bs")
    assert find_fix(earlier) == message("own_fix", text="lower bs")
