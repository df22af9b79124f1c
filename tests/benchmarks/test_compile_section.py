"""When a compiler's first steps are paid back, and what stands where there is no compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.card import compile as section
from benchmarks.card.section import Card
from benchmarks.peers import PeerFailedError

if TYPE_CHECKING:
    from pathlib import Path


def variant(first: list[float], steady: list[float] | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"first": first, "steps": 1, "compiler": None}
    return told if steady is None else told | {"steady": steady}


@pytest.mark.parametrize(
    ("cold", "steady", "steps"),
    [
        ([30.0, 1.6, 1.6], [1.6, 1.6, 1.6], 3 + 27.2 / 0.4),  # 33.2 s for 6, 0.4 s less each
        ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], 3.0),  # nothing to pay back
        ([30.0, 1.0, 1.0], [1.0, 1.0, 2.5], None),  # the middle half of the ratios holds 1
        ([30.0, 2.0, 2.0], [2.0, 2.0, 2.0], None),
        ([30.0, 3.0, 3.0], [3.0, 3.0, 3.0], None),
    ],
)
def test_steps_until_compiling_has_paid(
    cold: list[float], steady: list[float], steps: float | None
) -> None:
    found = {
        "cold": variant(cold),
        "eager": variant([2.0, 2.0, 2.0], [2.0, 2.0, 2.0]),
        "warm": variant([3.0, 2.0, 2.0], steady),
    }
    assert section._steps_to_pay(found, "cold", "warm") == pytest.approx(steps)


def test_a_case_that_fails_is_a_missed_bar_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(case: str, *_: Any) -> tuple[dict[str, Any], str | None]:
        if case == "glm_superglue":
            raise PeerFailedError("out of memory")
        eager, warm = variant([2.0] * 3, [2.0] * 3), variant([3.0, 2.0, 2.0], [1.0] * 3)
        return {"cold": variant([9.0, 2.0, 2.0]), "eager": eager, "warm": warm}, None

    monkeypatch.setattr(section, "_measure", measure)
    monkeypatch.setattr(section, "_missing_compiler", lambda _: None)
    monkeypatch.setattr(section, "sized", lambda full, _tiny: full)
    found = section.run(Card("cpu", "full", tmp_path))
    (bar,) = found.bars
    assert not bar.met
    assert "out of memory" in bar.measured
    assert found.figures["glm_superglue_cold_first_step_s"] is None
    assert found.figures["gpt_megatron_cold_first_step_s"] == 9.0
    assert found.figures["gpt_megatron_warm_step_s"] == 1.0
    assert found.figures["gpt_megatron_cold_steps_to_pay"] == 3 + 7 / 1.0
