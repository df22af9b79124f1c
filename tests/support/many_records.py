"""A folder of a few dozen runs, made without training, for pages about many results.

Twenty-four of one case over devices, precisions and days; two with the files that they were
computed from, the second of 8 ranks of which one is slow; one that failed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.store_bodies import make_document, write_record_file
from support.telemetry_files import (
    make_device_lines,
    make_end_line,
    make_host_line,
    make_ranks_with_devices,
    make_start_line,
    write_sampled_run,
)
from trainmark.record import record, reduce

if TYPE_CHECKING:
    from pathlib import Path

DEVICES = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "Fake Accelerator 1")
PRECISIONS = ("bf16", "tf32")
REPEATS = 4
SLOW_RANK = 5


def write_runs(folder: Path) -> list[str]:
    """Write the runs into ``folder`` and return the names of their directories.

    24 are of a case on each of 3 ``DEVICES``, in each of 2 ``PRECISIONS`` (bf16 and TF32), with
    4 ``REPEATS``. One failed, as its memory was full. Two have the events that they were computed
    from: with 2 ranks, and with 8, of which ``SLOW_RANK``, rank 5, takes twice as long.
    """
    for index, device in enumerate(DEVICES):
        for precision in PRECISIONS:
            for repeat in range(1, REPEATS + 1):
                name = f"bert-{index}-{precision}-{repeat}"
                # Later devices are faster, bf16 is faster than TF32, and repeats differ a little.
                # Samples per second: made up, so that each run has another rate.
                rate = 400.0 * (index + 1) * (1.5 if precision == "bf16" else 1.0) + repeat
                write_record_file(
                    folder / name, _make_bert_document(name, device, precision, repeat, rate=rate)
                )
    failed = make_document(
        "failed",
        status="oom",
        started="2026-11-20T08:00:00+00:00",
        cause={
            "kind": "oom",
            "message": {"code": "exception", "args": {"text": "out of memory"}},
            "traceback": 'Traceback\n  File "m.py", line 3',
            "rank": 1,
            "place": "train",
        },
    )
    write_record_file(folder / "failed", failed)
    write_run_with_evidence(folder / "two-ranks", ranks=2)
    write_run_with_evidence(folder / "eight-ranks", ranks=8, slow_rank=SLOW_RANK)
    return sorted(path.name for path in folder.iterdir())


def _make_bert_document(
    name: str, device: str, precision: str, repeat: int, *, rate: float
) -> dict[str, Any]:
    """Return a record of two devices; each repeat is a day later than the one before.

    Args:
        rate: samples per second in the steps.
    """
    # ``make_document`` copies a stored record, with other values at these paths of keys. The
    # training and the whole run have lower rates than the steps, as they have other work too.
    document = make_document(
        name,
        plan__run_id=name,
        plan__device__product_names=[device] * 2,
        plan__recipe__precision=precision,
        plan__repeat_index=repeat,
        started=f"2026-11-{10 + repeat}T08:00:00+00:00",
        figures={"p_core": rate, "p_train": 0.98 * rate, "p_whole": 0.9 * rate},
    )
    for device_entry in document["environment"]["devices"]:
        device_entry["name"] = device
    return document


def write_run_with_evidence(folder: Path, ranks: int, *, slow_rank: int | None = None) -> Path:
    """Write a run of some ranks with its events, telemetry and record.

    Args:
        slow_rank: the rank whose steps take twice as long as the others'; None: no rank's. Its
            windows stay as they are, so the record also finds that its steps do not fit them.
    """
    folder.mkdir(parents=True)
    events = make_ranks_with_devices(ranks)
    if slow_rank is not None:
        for event in events[slow_rank]:
            if event["event"] == "window":
                event["step_ns"] = [2 * step_ns for step_ns in event["step_ns"]]
    # Readings of the devices, and at 1, 5 and 9 s also of the host.
    lines = [
        make_start_line(*range(ranks)),
        *make_device_lines(*range(ranks)),
        *(make_host_line(t_s, utilization_percent=50.0) for t_s in (1.0, 5.0, 9.0)),
        make_end_line(),
    ]
    write_sampled_run(folder, lines, ranks=events)
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    plan["run_id"] = folder.name
    # The events are those of 16 steps of 64 samples of each rank, which so trains 1024 samples:
    # together a quarter of an epoch.
    plan["data"]["train_samples"] = 1024 * ranks * 4
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    record.write_record(reduce.reduce(folder), folder)
    return folder
