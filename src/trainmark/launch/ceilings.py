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
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from trainmark import __version__, cases, devices
from trainmark.devices import numa
from trainmark.errors import EnvironmentFault, MeasurementError, UsageError, escaped, nearest
from trainmark.launch import processes
from trainmark.launch.local import held_port, rank_environment, run_environment, working_directory
from trainmark.measure.ceilings import ASKED_FILE, Asked, result_file
from trainmark.results import environment
from trainmark.results.redaction import Redactor
from trainmark.spec import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        budget_s: time of one measurement.
        quiet: whether to leave out what is being measured on standard error.

    Raises:
        UsageError, EnvironmentFault: it cannot be measured here; nothing was started.
        MeasurementError: a rank failed, the time was over, or a signal came.
    """
    vendor = devices.choose(device)
    chosen = _refuse_incapable(vendor, nproc, precisions)
    asked = Asked(
        run_id=secrets.token_hex(8), device=vendor.name, nproc=nproc, budget_s=budget_s,
        precisions=chosen, layers=_layers(), full=full,
    )  # fmt: skip
    placed = numa.placements(vendor, nproc, os.environ)
    threads = min(placement.threads for placement in placed)
    variables = os.environ | processes.import_variables() | run_environment(asked, threads)
    described = environment.collect(variables, vendor)
    started, start_s = datetime.now(UTC), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trainmark-ceilings-") as name:
        folder = Path(name)
        (folder / ASKED_FILE).write_text(json.dumps(asdict(asked)), encoding="utf-8")
        own = [{numa.PLACEMENT_VARIABLE: placement.told()} for placement in placed]
        _run(asked, folder, variables, own, request, timeout_s=timeout_s, quiet=quiet)
        files = [folder / result_file(rank) for rank in range(nproc)]
        ranks = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    document = {
        "schema": SCHEMA,
        "suite": {"name": "trainmark", "version": __version__},
        "started": started.isoformat(timespec="seconds"),
        "took_s": round(time.monotonic() - start_s, 3),
        "device": vendor.name,
        "nproc": nproc,
        "shares_cores": vendor.counts_cores,
        "budget_s": budget_s,
        "full": full,
        "environment": described,
        "ranks": ranks,
    }
    redacted: dict[str, Any] = Redactor().document(document)
    return redacted


def wrong_results(document: Mapping[str, Any]) -> list[str]:
    """Return a line for each result of a measurement that was wrong."""
    return [
        f"rank {rank['rank']}: {kind['name']} of {point['size']} computed wrongly: "
        f"{point['reason']}"
        for rank in document["ranks"]
        for kind in rank["measurements"]
        for point in kind["points"]
        if point["status"] == "wrong"
    ]


def _refuse_incapable(
    vendor: Vendor, nproc: int, precisions: Sequence[str]
) -> tuple[Precision, ...]:
    """Return the precisions to measure; refuse more ranks than devices, and what they cannot do."""
    if nproc > vendor.count():
        unit = "cores" if vendor.counts_cores else f"{vendor.name} devices"
        raise EnvironmentFault(
            f"{nproc} {unit} needed, {vendor.count()} here",
            where="--nproc",
            rule="each rank has a device or core of its own",
            remedy=f"use --nproc {vendor.count()} or less; see `trainmark list devices`",
        )
    known: tuple[Precision, ...] = get_args(Precision)
    for precision in precisions:
        if precision not in known:
            raise UsageError(
                f"unknown precision {precision!r}",
                where="--precision",
                remedy=nearest(precision, known),
            )
    chosen = tuple(precision for precision in known if precision in precisions)
    for precision in chosen:
        refusal = vendor.refuse(Recipe(precision=precision), nproc)
        if refusal is not None:
            raise EnvironmentFault(
                refusal.why, where=f"--precision {precision}", remedy="leave it out"
            )
    return chosen or known


def _layers() -> dict[str, tuple[int, int, int]]:
    """Return the matmuls that cases name."""
    loaded, _ = cases.load_all()
    return {
        f"{case.name} {layer}": shape for case in loaded for layer, shape in case.layers.items()
    }


def _run(
    asked: Asked,
    folder: Path,
    variables: dict[str, str],
    own: Sequence[dict[str, str]],
    request: StopRequest,
    *,
    timeout_s: float,
    quiet: bool,
) -> None:
    """Run the ranks to their end; whatever happens, none is left.

    Args:
        variables: of all ranks.
        own: each rank's own variables.

    Raises:
        MeasurementError: one failed, the time was over, or a signal came.
    """
    ranks: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-m", "trainmark.measure.ceilings", str(folder)]
    deadline = time.monotonic() + timeout_s
    try:
        with held_port() as port:
            for rank in range(asked.nproc):
                with (folder / f"log.rank{rank}.txt").open("wb") as log:
                    ranks.append(
                        subprocess.Popen(
                            command,
                            env=variables | rank_environment(asked, rank, port=port) | own[rank],
                            cwd=working_directory(),
                            stdin=subprocess.DEVNULL,
                            # The first rank says what it measures.
                            stdout=subprocess.DEVNULL if quiet or rank else sys.stderr.fileno(),
                            stderr=log,
                            start_new_session=True,
                        )
                    )
            while True:
                codes = [process.poll() for process in ranks]
                if request.signal_name is not None:
                    raise MeasurementError(f"stopped by {request.signal_name}")
                if any(codes) or None not in codes:
                    break
                if time.monotonic() >= deadline:
                    raise MeasurementError(
                        f"not finished after {timeout_s:g} s",
                        where="--timeout",
                        remedy="give more time, fewer --precision, or a smaller --budget-s",
                    )
                time.sleep(_POLL_S)
    finally:
        processes.kill_run(asked.run_id)
        for process in ranks:
            process.wait()
    failed = [_last_line(folder, rank, code) for rank, code in enumerate(codes) if code]
    if failed:
        raise MeasurementError("; ".join(failed))


def _last_line(folder: Path, rank: int, code: int) -> str:
    """Return what a failed rank said last, and how it ended."""
    text = (folder / f"log.rank{rank}.txt").read_text(encoding="utf-8", errors="replace")
    ended = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    lines = text.strip().splitlines()
    return f"rank {rank} {ended}" + (f": {escaped(lines[-1][:2000])}" if lines else "")
