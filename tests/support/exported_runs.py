"""A run directory of two ranks and two epochs, whose every time and count is known."""

import json
import logging
from typing import Any

from support.fakes import (
    GOLDEN,
    TICK,
    S,
    launch_event,
    make_event,
    make_parameters_event,
    make_span,
    make_window,
    write_run,
)
from trainmark.record import record, reduce


def _make_windows() -> list[dict[str, Any]]:
    """Return the window of the first epoch, all warm-up, and the two windows of the second.

    A step lasts ``TICK``, an eighth of a second. Half of the first window is without steps.
    """
    four_steps = {  # of a window
        "step_ns": [TICK] * 4,
        "wait_ns": [1_000] * 4,
        "samples": [32] * 4,
        "step_samples": [64] * 4,
    }
    return [
        make_window(6 * S, 7 * S, phase="warmup", loss=[0.75, 0.5, 0.5, 0.5], **four_steps),
        make_window(
            8 * S, 8 * S + S // 2, epoch=1, first_step=4, loss=[0.5, 0.25, 0.25, 0.25], **four_steps
        ),
        make_window(
            8 * S + S // 2,
            9 * S,
            epoch=1,
            first_step=8,
            loss=[0.25, 0.25, 0.25, 0.125],
            **four_steps,
        ),
    ]


def rank_events(rank: int, eval_samples: int = 1_000) -> list[dict[str, Any]]:
    """Return the events of one of two ranks: 12 steps in two epochs, each with an evaluation.

    A step has 32 samples of each rank. The first four are warm-up steps. ``S`` is a second in
    nanoseconds. What does not follow from the steps, such as bytes and rates, is any number.

    Args:
        rank: its number, 0 or 1; only the process id differs with it.
        eval_samples: how many samples each evaluation scores.
    """
    warmup_window, *windows_of_second_epoch = _make_windows()
    facts = {
        "device": {"name": "Fake CPU", "memory_total_bytes": 8_000_000},
        "memory_scope": "process",
        "precision_flags": {"tf32": False},
        "matmul_flops_per_second": 5e10,
        "steps_per_epoch": 4,
        "collective": None,
    }
    return [
        make_event("start", S, pid=4711 + rank),
        make_span("init", S, 3 * S),
        make_span("model_build", 3 * S, 6 * S),
        make_event("facts", 6 * S, **facts),
        warmup_window,
        make_event(
            "evaluate",
            8 * S,
            epoch=0,
            step=4,
            start_ns=7 * S,
            end_ns=8 * S,
            value=0.75,
            samples=eval_samples,
            detail={},
            target_reached=False,
        ),
        *windows_of_second_epoch,
        make_event(
            "evaluate",
            10 * S,
            epoch=1,
            step=12,
            start_ns=9 * S,
            end_ns=10 * S,
            value=0.9375,
            samples=eval_samples,
            detail={},
            target_reached=True,
        ),
        make_event("trained", 10 * S, start_ns=6 * S, end_ns=10 * S, steps=12, epochs=2),
        make_parameters_event(10 * S),
        make_event(
            "result",
            10 * S,
            job={"parameters": 610, "skipped_steps": 0},
            used_bytes=2_500_000,
            allocator_peak_bytes=None,
            total_bytes=8_000_000,
            memory_scope="process",
        ),
        make_event("end", 11 * S),
    ]


def write_two_ranks(folder, *, ends_after=None, eval_samples=1_000, **plan_changes):
    """Write a run of two ranks and its record; return the record and the run directory.

    Args:
        ends_after: leave out all events of a rank after so many; None: leave out none.
        eval_samples: how many samples each evaluation scores.
        plan_changes: replace or add fields of the plan.
    """
    # ``S`` is a second in nanoseconds: the ranks end at 11 s. The plan is the stored one of the toy
    # case, for two ranks; 0.0: without readings of the devices.
    ranks = [rank_events(rank, eval_samples)[:ends_after] for rank in range(2)]
    ranks_ended = make_event("ranks_ended", 11 * S, failures=[])
    write_run(folder, [launch_event(), ranks_ended, make_event("finished", 11 * S)], *ranks)
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    plan |= {"sample_every_s": 0.0, "nproc": 2} | plan_changes
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    built_record = reduce.reduce(folder)
    record.write_record(built_record, folder)
    return built_record, folder


def list_complaints(path, ruleset):
    """Return the complaints of MLPerf's checker about a log: missing keys, and other messages.

    Args:
        path: of the log.
        ruleset: the version of MLPerf's rules, such as ``6.1.0``; the checker has a file for each.
    """
    from mlperf_logging.compliance_checker import mlp_compliance

    checker = mlp_compliance.make_checker("training", ruleset, quiet=True, werror=False)
    logging.disable(logging.CRITICAL)
    try:
        mlp_compliance.main(str(path), f"training_{ruleset}/common.yaml", checker)
    finally:
        logging.disable(logging.NOTSET)
    # ``overwritable`` has complaints by the key that is missing, ``not_overwritable`` all others.
    return set(checker.overwritable), checker.not_overwritable
