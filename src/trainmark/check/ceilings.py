"""Measure this machine's upper bounds with one process a device.

Owns the document that they lead to, and what is refused before they start.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from trainmark import __version__, devices
from trainmark.check.ceilings_rank import Asked
from trainmark.errors import MeasurementError
from trainmark.launch import processes
from trainmark.launch.local import POLL_S, set_up, started
from trainmark.plan.choosing import refuse_ranks
from trainmark.recipe import Recipe

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from trainmark.launch.processes import StopRequest

SCHEMA = "trainmark-ceilings-1"


def measure_ceilings(
    request: StopRequest,
    *,
    device: str | None,
    nproc: int,
    budget_s: float,
    full: bool,
    timeout_s: float,
) -> dict[str, Any]:
    """Measure, and return the document that docs/machine.md describes.

    Standard error gets what is being measured, and what a failing rank says.

    Args:
        budget_s: time of one kind, for example the matmuls of one precision.

    Raises:
        UsageError, EnvironmentFault: it cannot be measured here; nothing was started.
        MeasurementError: a rank failed, the time was over, or a signal came.
    """
    vendor = devices.choose(device)
    refuse_ranks(vendor, Recipe(), nproc, ranks_share_cores=False)
    start_s, run_id = time.monotonic(), secrets.token_hex(8)
    setup = set_up(vendor, nproc, run_id)
    with tempfile.TemporaryFile() as results:  # without a name: nothing is left if we are killed
        asked = Asked(device=vendor.name, world_size=nproc, budget_s=budget_s, full=full)
        document = {
            "schema": SCHEMA, "suite": {"name": "trainmark", "version": __version__},
            "started": datetime.now(UTC).isoformat(timespec="seconds"), "took_s": 0.0,
            "device": vendor.name, "nproc": nproc, "shares_cores": vendor.torch_type == "cpu",
            "budget_s": budget_s, "full": full,
            "environment": setup.described,
        }  # fmt: skip
        words = [sys.executable, "-m", "trainmark.check.ceilings_rank", json.dumps(asdict(asked))]
        try:
            with started(words, setup, output=results, errors=sys.stderr.fileno()) as ranks:
                _wait(ranks, request, deadline=start_s + timeout_s)
        finally:
            processes.kill_run(run_id)
        results.seek(0)
        found = sorted(map(json.loads, results), key=lambda one: int(one["rank"]))
    if len(found) != nproc:
        raise MeasurementError("a rank ended before it had measured anything")
    document["ranks"] = found
    document["took_s"] = round(time.monotonic() - start_s, 3)
    return document


def _wait(
    ranks: Sequence[subprocess.Popen[bytes]], request: StopRequest, *, deadline: float
) -> None:
    """Wait until all ranks ended.

    Raises:
        MeasurementError: one failed, the time was over, or a signal came.
    """
    codes: list[int | None] = [None]
    while None in codes and not any(codes):
        time.sleep(POLL_S)
        codes = [process.poll() for process in ranks]
        if request.signal_name is not None:
            raise MeasurementError(f"stopped by {request.signal_name}")
        if None in codes and time.monotonic() >= deadline:
            remedy = "give more time, or a smaller --budget-s"
            raise MeasurementError("the time is over", where="--timeout", remedy=remedy)
    failed = [f"rank {rank} ended with exit code {code}" for rank, code in enumerate(codes) if code]
    if failed:
        remedy = "see above what it printed"
        raise MeasurementError("; ".join(failed), remedy=remedy)
