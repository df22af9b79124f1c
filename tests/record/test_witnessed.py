"""Findings on a user's program, from what the probe in it saw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmark.plan.witness import WitnessSpec
from trainmark.record.witnessed import find_in_witness


def list_findings(**facts: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the findings on a user's own program, which trained with one rank.

    The user's file about it states 16 samples a step. A probe in the program counted 10 parameters
    and 20 steps, each with a loss of 1.0.

    Args:
        facts: what the probe also reported at the end of the rank.
    """
    spec = WitnessSpec(name="mine", precision="fp32", step={"samples": 16})
    measurement: Any = SimpleNamespace(
        plan=SimpleNamespace(witness=SimpleNamespace(spec=spec)),
        job={"parameters": 10, **facts},
        ranks=[SimpleNamespace(job=None, steps=20)],
        steps=SimpleNamespace(loss=[1.0] * 20),
    )
    return [(finding.code, dict(finding.args)) for finding in find_in_witness(measurement)]


def test_batches_of_the_stated_size_give_no_finding() -> None:
    assert list_findings(seen_samples=16) == []


def test_stated_samples_are_compared_with_those_that_loaders_yielded() -> None:
    # The user's file states 16 samples a step, but the program's data loaders yielded 8: twice as
    # many are stated as were seen.
    assert list_findings(seen_samples=8) == [
        ("witness_batch", {"stated": 16, "seen": 8, "share": 2.0})
    ]


@pytest.mark.parametrize("facts", [{}, {"seen_samples": 0}])
def test_missing_and_empty_batches_cannot_be_compared(facts: dict[str, Any]) -> None:
    assert list_findings(**facts) == [("witness_batches_unseen", {})]
