"""``trainmark compare``: words of both sides, exit codes, and launches in turns; no rank starts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from comparison_records import series, turns
from fakes import GOLDEN, FakeVendor
from trainmark import devices
from trainmark.plan import choosing
from trainmark.record import record as records
from trainmark.record.record import FigureEntry, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.cluster import Cluster
    from trainmark.plan.plan import Plan

    Call = Callable[..., tuple[int, str, str]]

RATES = [100.0, 101.0, 99.0, 100.5, 99.5]


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take records as they are written: their figures are invented."""
    monkeypatch.setattr("trainmark.library.selection.checked", lambda record, _: record)


@pytest.fixture(name="cli")
def compare(monkeypatch: pytest.MonkeyPatch, cli: Call) -> Call:
    """Call ``trainmark compare`` on a machine with fake devices."""
    known = {"fake": FakeVendor(), "cpu": FakeVendor("cpu", devices=4, product="Fake CPU")}
    monkeypatch.setattr(devices, "all_vendors", lambda: known)
    monkeypatch.setattr(choosing, "version", lambda _: "2.13.0+cpu")
    return partial(cli, "compare")


def write(name: str, launches: list[Record]) -> None:
    for number, one in enumerate(launches, 1):
        folder = Path(name) / f"r{number}"
        folder.mkdir(parents=True)
        records.write(one, folder)


def left(factor: float = 1.0, **of_b: Any) -> None:
    write("a", series("a", RATES))
    write("b c", series("b", [rate * factor for rate in RATES], first_minute=10, **of_b))


@pytest.mark.parametrize(
    ("factor", "code", "verdict"),
    [(1.0, 0, "no_difference"), (0.9, 1, "slower"), (0.97, 3, "too_noisy"), (1.2, 0, "faster")],
)
def test_the_exit_code_is_the_verdict(cli: Call, factor: float, code: int, verdict: str) -> None:
    left(factor)
    found, out, err = cli("a", "b c", "--json")
    assert (found, err) == (code, "")
    document = json.loads(out)
    assert (document["verdict"], document["exit_code"]) == (verdict, code)
    assert document["a"]["names"] == ["a1", "a2", "a3", "a4", "a5"]
    assert document["sentence"]["code"] == f"verdict.{verdict}"
    for lang, head in (("en", "95% interval"), ("zh", "95% 区间")):
        found, out, _ = cli("a", "b c", "--lang", lang)
        assert found == code
        assert head in out
        assert f"{factor:.3f}" in out


def test_several_words_make_one_side(cli: Call) -> None:
    write("a", series("a", RATES[:3]))
    write("more", series("m", RATES[3:], first_minute=20))
    write("b", series("b", RATES, first_minute=10))
    _, out, _ = cli("a more", "b", "--json", "--figure", "p_core", "--threshold", "0.05")
    found = json.loads(out)
    assert found["a"]["names"] == ["a1", "a2", "a3", "m1", "m2"]
    assert [one["name"] for one in found["figures"]] == ["p_core"]
    assert found["threshold"] == 0.05


def test_other_work_ends_with_2_and_allowed_work_is_told(cli: Call) -> None:
    left(recipe={"compile": True})
    code, out, err = cli("a", "b c")
    assert (code, out) == (2, "")
    assert "compile is False and True" in err
    assert "--allow compile" in err
    code, out, _ = cli("a", "b c", "--allow", "compile", "--allow", "bs")
    assert code == 0
    assert "The work differs, as allowed:" in out
    assert "compile" in out


def test_what_is_left_out_and_what_differs_is_told(cli: Call) -> None:
    a, b = turns([100.0] * 6, [100.0] * 6)
    b[2] = b[2].model_copy(update={"environment": b[2].environment | {"driver": "590.1"}})
    write("a", a)
    write("b", b[:5])
    code, out, _ = cli("a", "b")
    assert code == 0
    assert "A: excluded: a6: the other launch of its round is missing" in out
    assert "in pairs" in out
    assert "590.1" in out
    assert "torch" not in out


class Turns:
    """Leaves the record of each launch at once, B 10% slower than A."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __call__(self, plan: Plan, site: Cluster, label: str, **_: Any) -> Record:
        side = Path(plan.run_dir).parent.name
        self.done.append(f"{side}{plan.repeat_index}")
        made = Record.model_validate_json((GOLDEN / "record_toy.json").read_text(encoding="utf-8"))
        rate = RATES[plan.repeat_index - 1] * (0.9 if side == "B" else 1)
        entry = FigureEntry(value=rate, unit="samples/s")
        changes = {
            "plan": plan, "run_id": plan.run_id,
            "steps": made.steps.model_copy(update={
                "time_ns": [time + 977 * len(self.done) * n**2
                            for n, time in enumerate(made.steps.time_ns)],
            }),
            "started": f"2026-11-21T08:{len(self.done):02}:00+00:00",
            "figures": made.figures | dict.fromkeys(("p_core", "p_train", "p_whole"), entry),
        }  # fmt: skip
        made = made.model_copy(update=changes)
        Path(plan.run_dir).mkdir(parents=True)
        plan.save(Path(plan.run_dir))
        records.write(made, Path(plan.run_dir))
        return made


@pytest.mark.cpu_seconds(30)
def test_both_are_run_in_turns_and_compared_in_pairs(
    cli: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Turns()
    monkeypatch.setattr("trainmark.api.launch_one", launcher)
    words = ("--run", "toy", "toy bs=32", "--out", "runs/x", "--json")
    code, out, err = cli(*words)
    assert (code, out, launcher.done) == (2, "", [])  # before anything is started
    assert "micro_batch_size is 64 and 32" in err
    assert cli(*words, "--allow", "micro_batch_size", "--threshold", "2")[0] == 2
    assert launcher.done == []
    code, out, err = cli(*words, "--allow", "micro_batch_size")
    assert launcher.done == ["A1", "B1", "B2", "A2", "A3", "B3", "B4", "A4", "A5", "B5"]
    found = json.loads(out)
    assert (code, found["verdict"], found["paired"]) == (1, "slower", True)
    assert [one["name"] for one in found["allowed"]] == ["micro_batch_size"]
    again, out, _ = cli(*words, "--allow", "micro_batch_size")
    assert (again, len(launcher.done)) == (1, 10)  # what is finished is kept
    assert json.loads(out) == found
