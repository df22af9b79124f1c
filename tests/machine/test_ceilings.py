"""What ``trainmark ceilings`` refuses before it starts anything, and what cases let it measure."""

from __future__ import annotations

from typing import Any

import pytest

from trainmark.devices.vendors.cpu import Cpu
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError
from trainmark.launch.processes import StopRequest
from trainmark.machine import ceilings
from trainmark.machine.ceilings import measure_ceilings


@pytest.mark.parametrize(
    ("changes", "kind", "where"),
    [
        ({"device": "abacus"}, UsageError, "--device"),
        ({"nproc": Cpu().count() + 1}, EnvironmentFault, "--nproc"),
    ],
)
def test_impossible_measurement_is_refused_before_anything_starts(
    changes: dict[str, Any],
    kind: type[TrainmarkError],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No device is called "abacus", and one rank more than there are cores is too many for a CPU.
    # ``where`` is the option at fault, and 2 the exit code of commands that refuse. What fails
    # after ranks were started is a ``MeasurementError``, with another code.
    monkeypatch.setattr(ceilings, "start_ranks", lambda *_, **__: pytest.fail("ranks started"))
    options = {"device": "cpu", "nproc": 1, "budget_s": 0.1}
    with pytest.raises(kind) as refused:
        measure_ceilings(StopRequest(), **(options | changes), timeout_s=1.0)
    assert refused.value.where == where
    assert refused.value.exit_code == 2
