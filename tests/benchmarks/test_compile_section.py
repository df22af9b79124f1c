"""When a compiler's first steps are paid back, and what stands where there is no compiler."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.card import compile as section
from benchmarks.card.section import Card
from benchmarks.peers import PeerFailedError


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


def test_without_a_compiler_the_section_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = section.run(Card("cpu", "tiny", tmp_path))
    assert found.bars == []
    assert set(found.figures.values()) == {None}
    assert "no-such-compiler" in found.text
    assert list(tmp_path.iterdir()) == []


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


def test_a_case_or_a_device_that_cannot_replay_has_no_such_variant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert list(section._variants("gpt_megatron", "cpu", {})) == ["eager", "warm"]
    monkeypatch.setattr("trainmark.devices.vendors.cpu.Cpu.refuse", lambda *_: None)
    assert list(section._variants("gpt_megatron", "cpu", {})) == ["eager", "warm", "replayed"]
    assert list(section._variants("glm_superglue", "cpu", {})) == ["eager", "warm"]


@pytest.mark.parametrize("sizes", [section.ACCELERATOR, section.PROCESSOR])
def test_every_size_is_one_that_a_run_would_take(sizes: section.Sizes) -> None:
    from trainmark.plan.choosing import choose
    from trainmark.plan.request import RunRequest

    for case, changes in sizes.items():
        request = RunRequest(case=case, overrides={**changes, "compile": True})
        assert choose(request).recipe.compile is True


@pytest.mark.parametrize("failing", ["replayed", "warm"])
def test_steps_that_cannot_be_replayed_leave_the_compiled_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    class FakePeer:
        def __init__(self, _module: str, *words: str) -> None:
            Path(words[4]).write_text(json.dumps(variant([1.0] * 3)), encoding="ascii")
            if words[4].endswith(f"{failing}.json"):
                raise PeerFailedError("cannot be recorded")

        def turn(self) -> float:
            return 1.0

        def __enter__(self) -> FakePeer:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def first_steps(words: list[str], **_: object) -> Any:
        Path(words[7]).write_text(json.dumps(variant([2.0] * 3)), encoding="ascii")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(section, "Peer", FakePeer)
    monkeypatch.setattr(section, "subprocess", SimpleNamespace(run=first_steps))
    monkeypatch.setattr(section, "_variants", lambda *_: section.VARIANTS)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")
    if failing == "warm":
        with pytest.raises(PeerFailedError):
            section._measure("toy", "cpu", {}, tmp_path / "toy")
        return
    found, why = section._measure("toy", "cpu", {}, tmp_path / "toy")
    assert list(found) == ["cold", "eager", "warm"]
    assert why == "cannot be recorded"
