"""Figures of embedding models: exact values from facts and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import launch_event, make_event, make_window, measure, write_run
from trainmark.cases.dlrm_criteo import figures as case_figures
from trainmark.cases.dlrm_criteo.figures import RESOURCES, describe_limit
from trainmark.events.timeline import read_run
from trainmark.record.figures import compute_figures
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.events.timeline import RunTimeline
    from trainmark.spec import Figure

SECOND_NS = 1_000_000_000


def make_rank_events(
    *, samples: int, job: dict[str, Any], parts_ns: dict[str, int]
) -> list[dict[str, Any]]:
    """Return a rank's events: a window of two steps of 1 s; the first waits 0.1 s for input.

    Args:
        samples: of each step; the whole window has 8e8 FLOPs, whatever their number.
        job: facts of the case's job that the figures need.
        parts_ns: time of each part of the step, in the whole window.
    """
    return [
        make_event("start", SECOND_NS, pid=1),
        make_event(
            "facts",
            SECOND_NS,
            device={"name": "X"},
            memory_scope="process",
            matmul_flops_per_second=1e9,
            steps_per_epoch=2,
        ),
        make_window(
            2 * SECOND_NS,
            4 * SECOND_NS,
            step_ns=[SECOND_NS, SECOND_NS],
            wait_ns=[SECOND_NS // 10, 0],
            loss=[1.0, 1.0],
            samples=[samples, samples],
            model_flops=8e8,
            parts_ns=parts_ns,
        ),
        # The training ends 2 s after the window, which the figures of windows do not count.
        make_event(
            "trained",
            6 * SECOND_NS,
            start_ns=2 * SECOND_NS,
            end_ns=6 * SECOND_NS,
            steps=2,
            epochs=1,
        ),
        make_event(
            "result",
            6 * SECOND_NS,
            job=job,
            used_bytes=1,
            allocator_peak_bytes=None,
            total_bytes=2,
            memory_scope="process",
        ),
        make_event("end", 6 * SECOND_NS),
    ]


def write_run_of(tmp_path: Path, *jobs: dict[str, Any], parts_ns: dict[str, int]) -> RunTimeline:
    """Write and read a run with a rank for each of ``jobs``; rank r trains 3 + r samples a step.

    Samples differ, so that a figure shows whether it counts those of all ranks.

    Args:
        tmp_path: gets the folder ``run`` with the events of the launch and of each rank.
        jobs: of each rank, facts of the case's job, such as the bytes that a sample exchanges.
        parts_ns: time of each part of the step, such as ``embedding``, by its name: nanoseconds in
            the whole window of two steps, the same on all ranks.
    """
    ranks = [
        make_rank_events(samples=3 + rank_number, job=job, parts_ns=parts_ns)
        for rank_number, job in enumerate(jobs)
    ]
    return read_run(write_run(tmp_path / "run", [launch_event()], *ranks), len(jobs))


def compute_case_figures(
    tmp_path: Path, *jobs: dict[str, Any], parts_ns: dict[str, int] | None = None
) -> dict[str, Figure]:
    """Return the figures of a run by name, general ones and those of the case.

    Args:
        jobs: facts of the case's job on each rank; rank r trains 3 + r samples a step.
        parts_ns: time of each part of the step; None: that of ``PARTS``.
    """
    run = write_run_of(tmp_path, *jobs, parts_ns=PARTS if parts_ns is None else parts_ns)
    # The case's figures build on the general ones, as in a record.
    general_figures = compute_figures(measure(run, warmup_steps=0))
    return general_figures | dict(
        case_figures.compute(
            [rank.make_work(rank.result.job) for rank in run.ranks], general_figures
        ).figures
    )


PARTS = {"embedding": SECOND_NS // 2, "exchange": SECOND_NS // 5}
JOB = {
    "embedding_bytes_per_sample": 1000,
    "exchanged_bytes_per_sample": 60.0,
    "copy_bytes_per_second": 40e3,
}


def test_rates_are_per_device_over_measured_windows(tmp_path: Path) -> None:
    """Two ranks, each on a device of its own, report what they did in a window of 2 s.

    ``JOB`` holds the facts of the first rank: 1,000 bytes of embeddings and 60 exchanged bytes a
    sample, and memory that copies 40e3 bytes a second. The second rank differs in the last two.
    """
    second = JOB | {"exchanged_bytes_per_sample": 20.0, "copy_bytes_per_second": 30e3}
    values = compute_case_figures(tmp_path, JOB, second)
    # The two ranks train 3 and 4 samples in each of two steps: 14 in 2 s. A sample needs 1,000
    # bytes of embeddings, and the ranks send 60 and 20 bytes for it. The divisors are the 2 s and
    # the two devices.
    assert values["embedding_bytes_per_device"].value == 14 * 1000 / 2 / 2
    assert values["exchange_bytes_per_device"].value == 14 * 80 / 2 / 2
    # The mean of 40e3 and 30e3.
    assert values["copy_bytes_per_device"].value == 35e3
    # Look-ups dominate a DLRM, so its share of the peak FLOP/s would say little.
    assert (values["MFU"].value, values["MFU"].reason) == (None, message("no_headline_mfu"))
    assert values["model_flops_per_device"].value == 8e8 / 2  # 8e8 a rank in 2 s


def test_shares_divide_the_step_time(tmp_path: Path) -> None:
    """Two equal ranks with the facts ``JOB``; ``PARTS`` has the times of the parts of a step."""
    values = compute_case_figures(tmp_path, JOB, JOB)
    # ``RESOURCES`` has the names of the four shares, in percent of the time of the steps.
    shares = {name: values[name].value for name in RESOURCES}
    # Of 2 s on each rank 0.5 s are embeddings and 0.2 s exchanges (``PARTS``), 0.1 s is the wait
    # for input, and the rest, 1.2 s, is the dense layers.
    assert shares == {
        "embedding_share": 25.0,
        "dense_share": 60.0,
        "exchange_share": 10.0,
        "input_share": 5.0,
    }
    # 40e3 bytes/s is the rate of copies, the most that the memory can do.
    # 14,000 bytes of embeddings in 2 x 0.5 s: two ranks, on each of which they take 0.5 s.
    assert values["embedding_bandwidth_share"].value == 100 * 14e3 / 40e3


@pytest.mark.parametrize(
    ("parts_ns", "resource"),
    [
        ({"embedding": SECOND_NS, "exchange": SECOND_NS // 5}, "memory"),
        # Computing takes the rest of the 2 s.
        ({"embedding": SECOND_NS // 5, "exchange": SECOND_NS // 5}, "compute"),
        ({"embedding": SECOND_NS // 5, "exchange": SECOND_NS}, "exchange"),
    ],
)
def test_longest_part_limits_the_run(
    tmp_path: Path, parts_ns: dict[str, int], resource: str
) -> None:
    """The part that takes most of the time names the resource that limits the run.

    Two ranks train two steps of 1 s each. ``parts_ns`` has the time of the parts of both; ``JOB``
    has the facts of a rank.
    """
    values = compute_case_figures(tmp_path, JOB, JOB, parts_ns=parts_ns)
    sentence = describe_limit({name: figure.value for name, figure in values.items()})
    assert sentence is not None
    # The sentence's code has this suffix if the part uses its resource far below the limit.
    assert sentence.code.removesuffix("_far_from_limit") == f"bound_by_{resource}"


def test_single_rank_has_no_exchange(tmp_path: Path) -> None:
    """One rank with the facts ``JOB`` exchanges nothing, so that there is no share of it."""
    values = compute_case_figures(tmp_path, JOB, parts_ns={"embedding": SECOND_NS})
    exchange_share = values["exchange_share"]
    assert (exchange_share.value, exchange_share.reason) == (None, message("one_rank_no_exchange"))
    sentence = describe_limit({name: figure.value for name, figure in values.items()})
    assert sentence is not None
    # The sentence names this share, so it needs a number even without an exchange.
    assert sentence.args["exchange_share"] == 0.0


def test_parts_that_were_not_timed_have_no_share_and_no_limit(tmp_path: Path) -> None:
    """Two equal ranks with the facts ``JOB``, whose events have no times of the parts."""
    values = compute_case_figures(tmp_path, JOB, JOB, parts_ns={})
    for name in (
        "embedding_share",
        "exchange_share",
        "dense_share",
        "embedding_bandwidth_share",
    ):
        assert (values[name].value, values[name].reason) == (None, message("embedding_untimed"))
    # The loop itself measures the wait for input: 0.1 s of 2 s.
    assert values["input_share"].value == 5.0
    assert describe_limit({name: figure.value for name, figure in values.items()}) is None
