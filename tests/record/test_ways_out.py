"""What a page advises fits what ended the run."""

from __future__ import annotations

import pytest

from trainmark.record.messages import render, way_out
from trainmark.record.record import Cause
from trainmark.spec import message


def cause(kind: str, code: str, *, traceback: str | None = None, **args: str | int) -> Cause:
    return Cause(kind=kind, message=message(code, **args), rank=3, traceback=traceback)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (cause("signal", "rank_killed", rank=3, signal="SIGKILL"), "rank_killed"),
        (cause("oom", "rank_killed_out_of_memory", rank=3), "rank_killed_out_of_memory"),
        (cause("oom", "exception", text="CUDA out of memory", traceback="tb"), "oom"),
        (cause("signal", "stopped_by_signal", signal="SIGINT", steps=4), "stopped_by_signal"),
        (cause("timeout", "timed_out", limit_s=60, steps=4), "timeout"),
        (cause("launcher_killed", "launcher_killed", steps=4), "launcher_killed"),
        (cause("launcher", "ranks_end_unknown"), "launcher"),
        (cause("exit", "rank_exited", rank=3, exit_code=7), "exit"),
        (cause("diverged", "loss_not_finite", value="nan", step=4), "diverged"),
        (cause("disk_full", "exception", text="No space left"), "disk_full"),
        (cause("target_missed", "target_missed"), "target_missed"),
        (cause("error", "epoch_without_batch", epoch=1, traceback="tb"), "epoch_without_batch"),
        (cause("error", "exception", text="boom", traceback="tb"), "error"),
        (cause("error", "exception", text="boom"), "unknown"),  # no traceback to read
        (cause("of_tomorrow", "of_tomorrow"), "unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_way_out_fits_the_cause(found: Cause, code: str) -> None:
    assert way_out(found).code == f"way_out.{code}"
    for lang in ("en", "zh"):
        said = render(way_out(found), lang)
        assert "{" not in said
        assert ("traceback" in said or "调用栈" in said) <= (code in ("error", "rank_killed"))
