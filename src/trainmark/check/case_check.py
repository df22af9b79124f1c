"""Run a case for a few steps with one rank and with two, and judge what it does.

Owns the runs and their folder; the rules are in ``check.case_rules``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import devices
from trainmark.check.case_rules import Check, description_faults, judge
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError
from trainmark.launch.local import launch
from trainmark.launch.processes import IMPORT_VARIABLES, StopRequest
from trainmark.plan.resolving import resolve
from trainmark.recipe import FIELD_ALIASES
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainmark.plan.plan import Plan
    from trainmark.plan.request import RunRequest
    from trainmark.record.record import Record
    from trainmark.spec import Text


@dataclass(frozen=True, slots=True)
class Checked:
    """All checks of a case, and the sentences of its own codes."""

    checks: list[Check]
    messages: Mapping[str, Text]

    @property
    def passed(self) -> bool:
        """Tell whether the checks were made and found no fault."""
        return bool(self.checks) and not any(check.faults for check in self.checks)


STEPS = 100  # enough for a loss to fall beyond its noise, few enough to wait for


def check_case(
    request: RunRequest,
    *,
    steps: int = STEPS,
    stop: StopRequest | None = None,
    generated_root: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Checked:
    """Return every check of the case of ``request``; see ``check.case_rules.CHECKS``.

    Args:
        steps: optimizer steps of each run, at most an epoch.
        stop: stop signals are noted here; after one, nothing is judged.
        generated_root: the cache of generated data; None: the user's.

    Raises:
        UsageError, DataError, EnvironmentFault: the case cannot be planned.
    """
    stop = stop or StopRequest()
    with tempfile.TemporaryDirectory(prefix="trainmark-check-") as folder:

        def plan(ranks: int, **changed: str) -> Plan:
            given = {FIELD_ALIASES.get(name, name): x for name, x in request.overrides.items()}
            fields = given | changed
            fields |= {"target_value": "none", "max_epochs": "1", "max_steps": str(steps)}
            update = {"overrides": fields, "nproc": ranks, "out": Path(folder) / str(ranks)}
            return resolve(request.model_copy(update=update), generated_root=generated_root)

        one = plan(1)
        plans, missing = {1: one}, None
        try:
            plans[2] = plan(2, micro_batch_size=_half_batch(one))
        except TrainmarkError as error:
            missing = message("check_without_second_rank", text=str(error))
        runs: dict[int, Record] = {}
        for ranks, planned in plans.items():
            say(f"{one.case}: {ranks} rank(s), {steps} steps at most")
            runs[ranks] = launch(planned, stop)
            if stop.signal_name is not None:
                return Checked([], one.about.messages)
        say(f"{one.case}: an epoch's batches, FLOPs of a step")
        probe, described = _probe(one, Path(folder)), description_faults(one.case)
        checks = judge(runs, probe, missing=missing, described=described)
        return Checked(checks, one.about.messages)


def _half_batch(one: Plan) -> str:
    """Return the batch size with which two ranks take the same rows in a step as one rank.

    Raises:
        UsageError, EnvironmentFault: no such size, or no second device.
    """
    vendor = devices.choose(one.device.vendor)
    if vendor.count() < 2 and not vendor.counts_cores:
        raise EnvironmentFault("one device")
    batch: int = one.recipe["micro_batch_size"]
    if batch % 2:
        raise UsageError(f"bs={batch} cannot be halved", remedy="check with an even bs")
    return str(batch // 2)


def _probe(plan: Plan, folder: Path) -> dict[str, Any] | Message:
    """Return what a separate process finds in the job, or the last line of its error output."""
    plan.save(folder)  # the finished run's plan is redacted and names no real folder
    ended = subprocess.run(
        [sys.executable, "-m", "trainmark.check.probe", str(folder)],
        env=os.environ | IMPORT_VARIABLES, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode == 0:
        found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return found
    last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
    return message("exception", text=last[:2000])
