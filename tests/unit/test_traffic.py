"""What embedding models move: exact figures from facts and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fakes import event, launch_event, window, write_run
from trainmark.measure.figures import compute
from trainmark.measure.timeline import read_run

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000


def rank(number: int, *, samples: int, job: dict[str, Any], scope: str) -> list[dict[str, Any]]:
    return [
        event("start", S, rank=number, pid=1, unix_ns=1),
        event("facts", S, device={"name": "X"}, memory_scope=scope, matmul_flops_per_second=1e9,
              steps_per_epoch=2),
        window(2 * S, 4 * S, step_ns=[S, S], wait_ns=[0, 0], loss=[1.0, 1.0],
               samples=[samples, samples], model_flops=8e9),
        event("trained", 6 * S, start_ns=2 * S, end_ns=6 * S, steps=2, epochs=1,
              target_reached=False),
        event("result", 6 * S, job=job, used_bytes=1, allocator_peak_bytes=None, total_bytes=2,
              memory_scope=scope),
        event("end", 6 * S),
    ]  # fmt: skip


def figures(tmp_path: Path, *jobs: dict[str, Any], scope: str = "process") -> dict[str, Any]:
    ranks = [rank(n, samples=3 + n, job=job, scope=scope) for n, job in enumerate(jobs)]
    run = read_run(write_run(tmp_path / "run", [launch_event()], *ranks), len(jobs))
    return compute(run, precision="fp32", recipe_warmup_steps=0)


JOB = {"embedding_bytes_per_sample": 1000, "exchanged_bytes_per_step": 600,
       "exchange_exposed_s": 1.0, "headline_mfu": False}  # fmt: skip


def test_rates_are_a_devices_over_the_steady_windows(tmp_path: Path) -> None:
    found = figures(tmp_path, JOB, JOB | {"exchanged_bytes_per_step": 200})
    # 2 x (3 + 4) samples in 2 s on two devices; (600 + 200) / 2 bytes a step, a step a second.
    assert found["embedding_bytes_per_device"].value == 14 * 1000 / 2 / 2
    assert found["exchange_bytes_per_device"].value == 400.0
    # Each rank waited 1 s of its 4.
    assert found["exchange_share"].value == pytest.approx(25.0)
    assert (found["MFU"].value, "bytes/s" in found["MFU"].reason) == (None, True)
    assert found["model_flops_per_device"].value == 8e9 / 2


def test_what_cannot_be_known_has_a_reason(tmp_path: Path) -> None:
    alone = figures(tmp_path, JOB)["exchange_share"]
    assert (alone.value, alone.reason) == (None, "one rank exchanges nothing")
    other = tmp_path / "other"
    other.mkdir()
    card = figures(other, JOB, JOB, scope="device")["exchange_share"]
    assert (card.value, card.reason) == (None, "the host does not see an accelerator wait")


def test_other_jobs_have_none_of_it(tmp_path: Path) -> None:
    found = figures(tmp_path, {"parameters": 3})
    assert not [name for name in found if "embedding" in name or "exchange" in name]
    assert "bytes/s" not in (found["MFU"].reason or "")
