"""Wording of errors, and the kind of failure a rank reports."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
import torch

from trainmark import errors
from trainmark.events.schema import EventFile, name_rank_file
from trainmark.rank.failure import classify_error, describe_failure
from trainmark.rank.worker import RankReporter

if TYPE_CHECKING:
    from pathlib import Path


def test_message_has_what_where_rule_and_fix() -> None:
    error = errors.UsageError("bs is 0", where="bs=0", rule="at least 1", fix="write bs=1")
    assert str(error) == "bs=0: bs is 0; at least 1\n  try: write bs=1"
    assert str(errors.UsageError("bs is 0")) == "bs is 0"
    assert error.args == ("bs is 0",)  # as of any exception: the message given first


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.DivergedError("nan"), "diverged"),
        (OSError(errno.ENOSPC, "full"), "disk_full"),
        (OSError(errno.EDQUOT, "quota"), "disk_full"),
        (OSError(errno.EACCES, "no"), "error"),
        (MemoryError(), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "oom"),
        (RuntimeError("out of luck"), "error"),
    ],
)
def test_a_failure_is_named_by_its_kind(error: Exception, kind: str) -> None:
    assert classify_error(error) == kind


def test_a_report_keeps_the_place_and_a_bounded_traceback() -> None:
    try:
        raise ValueError("x" * 10_000)
    except ValueError as error:
        report = describe_failure(error, "data_build")
    assert (report["kind"], report["type"], report["place"]) == (
        "error",
        "ValueError",
        "data_build",
    )
    assert report["message"]["code"] == "exception"
    # At most 4,000 characters of a text and 8,000 of a traceback are kept. The text, 10,000 times
    # ``x``, loses its end, the traceback, which has it too, its start.
    assert len(report["message"]["args"]["text"]) == 4_000
    assert len(report["traceback"]) == 8_000
    assert report["traceback"].endswith("x\n")  # the end is kept


def test_rank_reports_its_last_phase(tmp_path: Path) -> None:
    # Rank 3 writes its events to a file of the folder. A span is a phase of its work.
    rank = RankReporter(tmp_path, 3)
    with rank.emit_span("init"):
        pass
    with pytest.raises(ValueError, match="planted"), rank.emit_span("data_build"):
        raise ValueError("planted")
    assert rank.place == "data_build"
    # The failed span is reported too, so that its time is not counted as `other`.
    events = list(EventFile(tmp_path / name_rank_file(3)))
    assert [(e["event"], e["name"]) for e in events] == [("span", "init"), ("span", "data_build")]
    assert all(event["end_ns"] >= event["start_ns"] for event in events)


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("TOY", "toy"),  # the same but for the case
        ("glm_superglu", "glm_superglue"),
        ("gpt", "gpt_megatron"),  # its beginning
        ("distilled", "distilbert_sst2"),  # similar to its beginning
        ("fp31", "fp32"),
        ("gpu", None),  # one of three letters of `xpu` differs
        ("", None),
    ],
)
def test_nearest_name_ignores_the_case_and_may_be_longer(word: str, nearest: str | None) -> None:
    names = ("distilbert_sst2", "fp16", "fp32", "glm_superglue", "gpt_megatron", "toy", "xpu")
    assert errors.find_nearest(word, names) == nearest
