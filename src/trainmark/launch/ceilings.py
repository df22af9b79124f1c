"""Measure this machine's upper bounds with one process a device.

Owns the processes, the document that they lead to, and what is refused before they start.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from trainmark import __version__, cases, devices
from trainmark.devices import numa
from trainmark.errors import MeasurementError, UsageError, nearest
from trainmark.launch import processes
from trainmark.launch.local import held_port, rank_environment, run_environment, start_rank
from trainmark.measure.ceilings import ASKED_FILE, Asked, result_file
from trainmark.planning.capabilities import refuse_ranks
from trainmark.results import environment
from trainmark.results.redaction import Redactor
from trainmark.spec import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.devices.numa import Placement
    from trainmark.launch.stopping import StopRequest
    from trainmark.protocols import Vendor

SCHEMA = "trainmark-ceilings-1"
_POLL_S = 0.1


def measure_ceilings(
    request: StopRequest,
    *,
    device: str | None,
    nproc: int,
    precisions: Sequence[str],
    budget_s: float,
    full: bool,
    timeout_s: float,
    quiet: bool = False,
) -> dict[str, Any]:
    """Measure, and return the document that docs/ceilings.md describes.

    Args:
        precisions: none: all that the device supports; the others are named with the reason.
        budget_s: time of one kind, for example the matmuls of one precision.
        quiet: whether to leave out what is being measured on standard error.

    Raises:
        UsageError, EnvironmentFault: it cannot be measured here; nothing was started.
        MeasurementError: a rank failed, the time was over, or a signal came.
    """
    vendor = devices.choose(device)
    layers = {
        f"{case.name} {name}": shape
        for case in cases.load_all()[0]
        for name, shape in case.layers.items()
    }
    asked = Asked(
        run_id=secrets.token_hex(8), launcher=os.getpid(), device=vendor.name, world_size=nproc,
        precisions=_chosen(vendor, precisions, nproc), layers=layers, budget_s=budget_s, full=full,
    )  # fmt: skip
    placed = numa.placements(vendor, nproc, os.environ)
    threads = min(placement.threads for placement in placed)
    variables = os.environ | processes.import_variables() | run_environment(asked, threads)
    document = {
        "schema": SCHEMA, "suite": {"name": "trainmark", "version": __version__},
        "started": datetime.now(UTC).isoformat(timespec="seconds"), "took_s": 0.0,
        "device": vendor.name, "nproc": nproc, "shares_cores": vendor.counts_cores,
        "budget_s": budget_s, "full": full, "environment": environment.collect(variables, vendor),
    }  # fmt: skip
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trainmark-ceilings-") as name:
        folder = Path(name)
        (folder / ASKED_FILE).write_text(json.dumps(asdict(asked)), encoding="utf-8")
        _run(asked, folder, variables, placed, request, deadline=start_s + timeout_s, quiet=quiet)
        files = [folder / result_file(rank) for rank in range(nproc)]
        document["ranks"] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    document["took_s"] = round(time.monotonic() - start_s, 3)
    redacted: dict[str, Any] = Redactor().document(document)
    return redacted


def wrong_results(document: dict[str, Any]) -> list[str]:
    """Return the name of each kind of which a rank computed something wrongly."""
    kinds = (kind for rank in document["ranks"] for kind in rank["measurements"])
    wrong = (k["name"] for k in kinds if any(p["status"] == "wrong" for p in k["points"]))
    return list(dict.fromkeys(wrong))


def _chosen(vendor: Vendor, precisions: Sequence[str], nproc: int) -> tuple[Precision, ...]:
    """Return the precisions to measure: all, or those named, none of which may be refused."""
    known: tuple[Precision, ...] = get_args(Precision)
    for name in set(precisions) - set(known):
        raise UsageError(
            f"unknown precision {name!r}", where="--precision", remedy=nearest(name, known)
        )
    chosen = tuple(precision for precision in known if precision in precisions)
    for precision in chosen or known[:1]:
        refuse_ranks(vendor, Recipe(precision=precision), nproc, ranks_share_cores=False)
    return chosen or known


def _run(
    asked: Asked,
    folder: Path,
    variables: dict[str, str],
    placed: Sequence[Placement],
    request: StopRequest,
    *,
    deadline: float,
    quiet: bool,
) -> None:
    """Run the ranks to their end; whatever happens, none is left.

    Raises:
        MeasurementError: one failed, the time was over, or a signal came.
    """
    command = [sys.executable, "-m", "trainmark.measure.ceilings", str(folder)]
    ranks: list[subprocess.Popen[bytes]] = []
    logs = [folder / f"log.rank{rank}.txt" for rank in range(asked.world_size)]
    with ExitStack() as stack:
        stack.callback(_end, asked.run_id, ranks)
        port = stack.enter_context(held_port())
        for rank, placement in enumerate(placed):
            own = variables | rank_environment(asked, rank, port=port)
            own[numa.PLACEMENT_VARIABLE] = placement.told()
            # The first rank says what it measures.
            shown = subprocess.DEVNULL if quiet or rank else sys.stderr.fileno()
            stderr = stack.enter_context(logs[rank].open("wb"))
            ranks.append(start_rank(command, own, stdout=shown, stderr=stderr))
        codes: list[int | None] = [None]
        while None in codes and not any(codes):
            time.sleep(_POLL_S)
            codes = [process.poll() for process in ranks]
            if request.signal_name is not None:
                raise MeasurementError(f"stopped by {request.signal_name}")
            if None in codes and time.monotonic() >= deadline:
                remedy = "give more time, fewer --precision, or a smaller --budget-s"
                raise MeasurementError("the time is over", where="--timeout", remedy=remedy)
    failed = [f"rank {rank} {_ending(logs[rank], code)}" for rank, code in enumerate(codes) if code]
    if failed:
        raise MeasurementError("; ".join(failed))


def _end(run_id: str, ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    processes.kill_run(run_id)
    for process in ranks:
        process.wait()


def _ending(log: Path, code: int) -> str:
    """Return how a failed rank ended, and what it said last."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    ended = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{ended}: {lines[-1][:2000]}" if lines else ended
