"""Several runs in one go: what is done, kept, skipped and tried again; no rank is started."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fakes import GOLDEN, FakeVendor, check_golden
from trainmark import devices
from trainmark.errors import DataError, EnvironmentFault, UsageError
from trainmark.launch import series, submission
from trainmark.launch.contract import SITE_FILE
from trainmark.launch.stopping import StopRequest
from trainmark.pages.series import series_json, series_table
from trainmark.pages.terminal import Screen
from trainmark.plan import case_key
from trainmark.plan.plan_file import read_plan_file
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import of_repeat
from trainmark.record import record as records
from trainmark.record.entries import Outcome, exit_code
from trainmark.record.record import Cause, Record
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan


@pytest.fixture(autouse=True)
def vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeVendor]:
    """Make plans the same on every machine: two accelerators, four cores."""
    known = {"fake": FakeVendor(), "cpu": FakeVendor("cpu", devices=4, product="Fake CPU")}
    monkeypatch.setattr(devices, "all_vendors", lambda: known)
    monkeypatch.setattr(case_key, "version", lambda _: "2.13.0+cpu")
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return known


@dataclass
class Launcher:
    """Writes the record each launch is told to end with, instead of running it.

    Args:
        endings: by entry, or by entry and launch, for example ``a r2``.
    """

    endings: dict[str, str] = field(default_factory=dict)
    launched: list[str] = field(default_factory=list)
    request: StopRequest = field(default_factory=StopRequest)
    said: list[str] = field(default_factory=list)

    def __call__(self, plan: Plan, site: Site, label: str) -> Record:
        folder, entry = Path(plan.run_dir), label.rpartition(" ")[2]
        series_folder = plan.repeat_count > 1
        self.launched.append(
            f"{folder.parent.name}/{folder.name}" if series_folder else folder.name
        )
        ending = self.endings.get(
            f"{entry} r{plan.repeat_index}", self.endings.get(entry, "passed")
        )
        if ending == "between":  # after this launch's record, before the next
            self.request.signal_name = "SIGTERM"
            return leave(plan, "passed")
        if ending == "interrupted":
            self.request.signal_name = "SIGINT"
        if ending == "disk":
            raise EnvironmentFault("less than 8 MiB are free", where=str(folder))
        if ending == "killed":
            folder.mkdir(parents=True)
            plan.save(folder)
            raise Killed
        return leave(plan, ending)


class Killed(BaseException):
    """Ends the call as SIGKILL does, but for the lock."""


def leave(plan: Plan, status: str) -> Record:
    """Leave a record of ``plan`` in its folder, 1024 samples/s."""
    text = (GOLDEN / "record_toy.json").read_text(encoding="utf-8")
    made = Record.model_validate_json(text)
    cause = (
        None
        if status == "passed"
        else Cause(kind="error", message=Message("exception", {"text": "upside\ndown"}))
    )
    folder = Path(plan.run_dir)
    folder.mkdir(parents=True)
    changes = {"plan": plan, "run_id": plan.run_id, "status": status, "cause": cause}
    made = made.model_copy(update=changes)
    plan.save(folder)
    records.write(made, folder)
    return made


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


@pytest.fixture
def go(tmp_path: Path, launcher: Launcher) -> Callable[..., list[Outcome]]:
    """Run a plan file's text with the fake launcher."""

    def call(text: str, **choices: Any) -> list[Outcome]:
        entries = checked(tmp_path, text, **choices)
        launcher.launched.clear()
        launcher.said.clear()
        launcher.request = StopRequest()
        return do(entries, launcher, order="runs" if "order: runs" in text else "rounds")

    return call


def do(
    entries: list[series.CheckedEntry], launcher: Launcher, *, order: str = "rounds", **other: Any
) -> list[Outcome]:
    """Run checked entries with the fake launcher."""
    given = {"launch": launcher, "said": launcher.said.append} | other
    return series.run(entries, launcher.request, order=order, **given)


def checked(
    folder: Path, text: str, *, engines: bool = False, **choices: Any
) -> list[series.CheckedEntry]:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    file = read_plan_file(RunRequest(case=str(path), **choices))
    return series.check(file, engines=engines, generated_root=folder / "cache")


def states(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.name: outcome.state for outcome in outcomes}


TWO = "runs:\n- {case: toy, name: a}\n- {case: toy, name: b, set: {bs: 32}}\n"


def test_all_is_done_once_and_kept_the_next_time(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path
) -> None:
    first = go(TWO)
    assert states(first) == {"a": "passed", "b": "passed"}
    assert first[0].run_dir == tmp_path / "runs" / "plan" / "a"
    assert first[1].records[0].plan.recipe["micro_batch_size"] == 32
    assert launcher.launched == ["a", "b"]

    second = go(TWO)
    assert states(second) == {"a": "kept", "b": "kept"}
    assert launcher.launched == []
    assert launcher.said == ["1/2 a: kept", "2/2 b: kept"]
    assert [outcome.run_dir for outcome in second] == [outcome.run_dir for outcome in first]
    assert second[0].records == first[0].records
    assert exit_code(second) == 0


@pytest.mark.parametrize(
    "status", ["failed", "target_missed", "timed_out", "oom", "diverged", "interrupted"]
)
def test_what_did_not_pass_is_tried_again_beside_it(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path, status: str
) -> None:
    launcher.endings = {"a": status}
    first = go(TWO)
    failed = (tmp_path / "runs/plan/a/record.json").read_bytes()
    assert first[0].state == "failed"
    assert first[0].reason == f"{status}: upside down"
    assert exit_code(first) == 1

    second = go(TWO)
    assert launcher.launched[0] == "a-2"
    assert f"1/2 a: a did not pass: {status}; this attempt goes to a-2" in launcher.said
    assert second[0].state == "failed"
    assert (tmp_path / "runs/plan/a/record.json").read_bytes() == failed

    launcher.endings = {}
    third = go(TWO)
    assert (third[0].state, third[0].run_dir) == ("passed", tmp_path / "runs/plan/a-3")
    fourth = go(TWO)
    assert (fourth[0].state, fourth[0].run_dir) == ("kept", tmp_path / "runs/plan/a-3")


def test_a_launch_that_cannot_begin_is_a_failure_of_its_own(
    go: Callable[..., list[Outcome]], launcher: Launcher
) -> None:
    launcher.endings = {"a": "disk"}
    outcomes = go(TWO)
    assert states(outcomes) == {"a": "failed", "b": "passed"}
    assert "less than 8 MiB are free" in str(outcomes[0].reason)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("interrupted", ("failed", "interrupted: upside down", "a-2/r1")),
        ("between", ("left", "stopped after 1 of 2 launches", "a-2/r2")),
    ],
)
@pytest.mark.parametrize("order", ["runs", "rounds"])
def test_whoever_stops_one_stops_the_rest(
    go: Callable[..., list[Outcome]],
    launcher: Launcher,
    ending: str,
    expected: tuple[str, str, str],
    order: str,
) -> None:
    state, reason, again = expected
    text = f"order: {order}\n" + (
        TWO.replace("name: a", "name: a, repeat: 2")
        + "- {case: toy, name: c, nproc: 64}\n- {case: toy, name: d}\n"
    )
    go(TWO.splitlines()[0] + "\n- {case: toy, name: d}\n")
    launcher.endings = {"a": ending}
    outcomes = go(text)
    assert states(outcomes) == {"a": state, "b": "left", "c": "skipped", "d": "kept"}
    assert [outcome.reason for outcome in outcomes[:2]] == [reason, "stopped after 0 of 1 launches"]
    assert launcher.launched == ["a/r1"]
    assert "2/4 b: left" in launcher.said
    assert exit_code(outcomes) == 1

    launcher.endings = {}
    assert states(go(text)) == {"a": "passed", "b": "passed", "c": "skipped", "d": "kept"}
    assert set(launcher.launched) >= {again, "b"}


def test_a_run_that_left_no_record_is_tried_again(
    go: Callable[..., list[Outcome]], launcher: Launcher
) -> None:
    launcher.endings = {"a": "killed"}
    with pytest.raises(Killed):
        go(TWO)
    launcher.endings = {}
    assert states(go(TWO)) == {"a": "passed", "b": "passed"}
    assert launcher.launched == ["a-2", "b"]
    assert "1/2 a: a has no record; this attempt goes to a-2" in launcher.said


def test_changed_work_is_a_new_attempt_and_going_back_finds_the_old(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path
) -> None:
    go(TWO)
    changed = TWO.replace("bs: 32", "bs: 16")
    assert states(go(changed)) == {"a": "kept", "b": "passed"}
    assert launcher.launched == ["b-2"]
    assert "b is other work: micro_batch_size was 32, is now 16" in launcher.said[1]
    assert states(go(changed)) == {"a": "kept", "b": "kept"}
    back = go(TWO)
    assert (back[1].state, back[1].run_dir) == ("kept", tmp_path / "runs/plan/b")


REPEATED = "runs:\n- {case: toy, name: a, repeat: 3}\n- {case: toy, name: b, set: {bs: 32}}\n"


def test_finished_launches_of_a_series_are_kept_and_only_the_others_done(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path
) -> None:
    launcher.endings = {"a r2": "timed_out"}
    first = go(REPEATED)
    assert states(first) == {"a": "failed", "b": "passed"}
    kept = (tmp_path / "runs/plan/a/r1/record.json").read_bytes()
    (tmp_path / "runs/plan/a/r3/record.json").unlink()

    launcher.endings = {}
    (again, _) = go(REPEATED)
    assert launcher.launched == ["a-2/r2", "a-2/r3"]
    assert "1/2 a: a/r2 did not pass: timed_out; this attempt goes to a-2" in launcher.said
    assert "1/2 a: a/r3 has no record; this attempt goes to a-2" in launcher.said
    assert (again.state, again.run_dir) == ("passed", tmp_path / "runs/plan/a-2")
    assert [record.plan.repeat_index for record in again.records] == [1, 2, 3]
    runs = tmp_path / "runs/plan"
    assert again.folders == (runs / "a/r1", runs / "a-2/r2", runs / "a-2/r3")
    assert again.fallen == (runs / "a/r2", runs / "a/r3")
    assert len({record.run_id for record in again.records}) == 3
    assert (tmp_path / "runs/plan/a/r1/record.json").read_bytes() == kept

    (third, _) = go(REPEATED)
    assert third == replace(again, state="kept")


def test_more_launches_join_those_that_are_there(
    go: Callable[..., list[Outcome]], launcher: Launcher
) -> None:
    go(REPEATED)
    assert states(go(REPEATED.replace("repeat: 3", "repeat: 5"))) == {"a": "passed", "b": "kept"}
    assert launcher.launched == ["a-2/r4", "a-2/r5"]
    assert states(go(REPEATED.replace("repeat: 3", "repeat: 2"))) == {"a": "kept", "b": "kept"}
    go(REPEATED.replace(", repeat: 3", ""))  # a folder is one launch or a series
    assert launcher.launched == ["a-3"]


def test_launches_go_in_rounds_so_that_drift_affects_all_alike(
    go: Callable[..., list[Outcome]], launcher: Launcher
) -> None:
    text = REPEATED + "- {case: toy, name: c, repeat: 2, set: {bs: 16}}\n"
    go(text)
    assert launcher.launched == ["a/r1", "b", "c/r1", "c/r2", "a/r2", "a/r3"]
    go("order: runs\n" + text, device="cpu")
    assert launcher.launched == ["a-2/r1", "a-2/r2", "a-2/r3", "b-2", "c-2/r1", "c-2/r2"]


def test_what_this_machine_cannot_do_is_skipped_with_its_reason(
    go: Callable[..., list[Outcome]],
    vendors: dict[str, FakeVendor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = """\
runs:
- {case: toy, name: sp}
- {case: toy, name: mp, nproc: 8}
- {case: toy, name: nodes, nnodes: 2}
- {case: toy, name: cores, device: cpu, nproc: 5}
- {case: "toy:pytorch:hopper:1:1:1", name: product}
- {case: "toy:pytorch_1.0:cpu:1:1:1", name: version}
"""
    outcomes = go(text)
    assert states(outcomes)["sp"] == "passed"
    assert {outcome.name: outcome.reason for outcome in outcomes[1:]} == {
        "mp": "8 fake devices needed, 2 here",
        "nodes": "2 machines needed, the local launcher has 1",
        "cores": "5 cores needed, 4 here",
        "product": "the key asks for hopper, which is not here",
        "version": "the key asks for pytorch_1.0, and torch 2.13.0 is installed",
    }
    assert exit_code(outcomes) == 0
    vendors["fake"].devices = 0
    (skipped, *_) = go(text)
    assert skipped.reason == "no accelerator here; --device cpu takes the processor"
    fault = EnvironmentFault("a card is here, but torch has no code for it")
    monkeypatch.setattr(devices, "unusable", lambda: [fault])
    (skipped, *_) = go(text)
    assert skipped.reason == fault.what
    assert states(go(text, device="cpu"))["sp"] == "passed"


@dataclass
class Engine:
    """A launcher that notes what it was asked to look at, and refuses a world."""

    looked_at: list[str] = field(default_factory=list)
    refused: str = ""

    def check(self, plan: Plan, site: Site) -> None:
        world = f"{plan.nnodes}x{plan.nproc}"
        self.looked_at.append(f"{plan.launcher} {world} {site.nodes}")
        if world == self.refused:
            raise EnvironmentFault("host b does not answer", where="hosts.txt, line 2")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    found = Engine()
    monkeypatch.setattr(submission, "launcher_of", lambda site, name: found)
    return found


MANY = """\
launcher: slurm
site: two.yaml
runs:
- {case: toy, name: a, device: cpu, world: [1x2, 2x2, 4x1], repeat: 2}
- {case: toy, name: b, device: cpu, launcher: ssh, site: four.yaml, world: 4x1}
- {case: toy, name: c, device: cpu, launcher: local}
"""


@pytest.fixture
def sites(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("nodes: 2\n")
    (tmp_path / "four.yaml").write_text("nodes: 4\n")


@pytest.mark.usefixtures("sites")
def test_each_run_has_its_launcher_and_site(tmp_path: Path, launcher: Launcher) -> None:
    entries = checked(tmp_path, MANY)
    found = {entry.name: (entry.plan.launcher, entry.site.nodes) for entry in entries if entry.plan}
    assert found == {
        "a-1x2": ("slurm", 2), "a-2x2": ("slurm", 2), "b": ("ssh", 4), "c": ("local", 2),
    }  # fmt: skip
    assert entries[2].skipped == "4 nodes needed, the site has 2"

    places: list[tuple[str, int | None]] = []

    def launch(plan: Plan, site: Site, label: str) -> Record:
        places.append((plan.launcher, site.nodes))
        return launcher(plan, site, label)

    outcomes = do(entries, launcher, launch=launch)
    assert places == [
        ("slurm", 2), ("slurm", 2), ("ssh", 4), ("local", 2), ("slurm", 2), ("slurm", 2),
    ]  # fmt: skip
    assert [outcome.state for outcome in outcomes if outcome.name == "a-4x1"] == ["skipped"]
    elsewhere = checked(tmp_path, MANY, launcher="kubernetes", site=tmp_path / "four.yaml")
    assert {entry.plan.launcher for entry in elsewhere if entry.plan} == {"kubernetes"}
    assert {entry.site.nodes for entry in elsewhere} == {4}


@pytest.mark.usefixtures("sites")
def test_engines_look_once_at_each_world_before_anything_starts(
    tmp_path: Path, engine: Engine
) -> None:
    checked(tmp_path, MANY)
    assert engine.looked_at == []  # in a dry run
    checked(tmp_path, MANY + "- {case: toy, name: d, device: cpu, world: 1x2}\n", engines=True)
    assert engine.looked_at == ["slurm 1x2 2", "slurm 2x2 2", "ssh 4x1 4"]
    engine.refused = "2x2"
    with pytest.raises(EnvironmentFault, match="host b does not answer") as caught:
        checked(tmp_path, MANY, engines=True)
    assert caught.value.where == f"{tmp_path}/plan.yaml, runs[1], run a-2x2: hosts.txt, line 2"


def test_a_submitted_job_is_waited_for_and_its_launch_kept(
    tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGKILL of the launcher, which an engine's job outlives."""
    text = "launcher: slurm\nruns:\n- {case: toy, name: a, device: cpu, repeat: 2}\n"
    plan = checked(tmp_path, text)[0].found.missing[0]
    folder = Path(plan.run_dir)
    folder.mkdir(parents=True)
    plan.save(folder)
    (folder / SITE_FILE).write_text("{}")
    attached: list[Path] = []

    def attach(folder: Path) -> tuple[Plan, str]:
        attached.append(folder)
        return plan, "job"

    def follow(plan: Plan, job: str, request: StopRequest) -> Record:
        assert job == "job"
        shutil.rmtree(plan.run_dir)
        return leave(plan, "passed")

    monkeypatch.setattr(submission, "attach", attach)
    monkeypatch.setattr(submission, "follow", follow)
    (outcome,) = do(checked(tmp_path, text), launcher)
    assert attached == [folder]
    assert launcher.launched == ["a-2/r2"]
    assert launcher.said[0] == "a: a/r1 is a submitted job: waiting"
    assert (outcome.state, outcome.folders[0], outcome.fallen) == ("passed", folder, ())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{case: tyo}", ["unknown case 'tyo'", "did you mean toy"]),
        ("{case: toy, recipe: tny}", ["no recipe 'tny'", "--recipe"]),
        ("{case: toy, set: {bss: 1}}", ["unknown recipe field 'bss'"]),
        ("{case: toy, set: {bs: 0}}", ["micro_batch_size", "greater than 0"]),
        ("{case: toy, device: fkae}", ["unknown device 'fkae'", "fake"]),
        ("{case: toy, nproc: 0}", ["nproc", "greater than or equal to 1"]),
        ("{case: toy, seed: -1}", ["seed"]),
        ("{case: toy, nproc: 64, set: {bss: 1}}", ["'bss'"]),
        ("{case: toy, data: nowhere}", ["nowhere", "No such file"]),
        ("{case: distilbert, recipe: standard-1x1}", ["trains on real data"]),
    ],
)
def test_every_entry_is_checked_before_the_first_starts(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path, line: str, said: list[str]
) -> None:
    with pytest.raises((UsageError, DataError)) as caught:
        go(f"runs:\n- {{case: toy, name: first}}\n- {line}\n")
    message = str(caught.value)
    assert f"{tmp_path}/plan.yaml, runs[2]" in message
    assert [part for part in said if part not in message] == []
    assert launcher.launched == []
    assert not (tmp_path / "runs").exists()


def test_the_command_line_goes_before_the_file(
    go: Callable[..., list[Outcome]], tmp_path: Path
) -> None:
    text = "out: there\nruns:\n- {case: toy, device: fake, timeout: 5, seed: 3, sample_every: 2}\n"
    (by_file,) = go(text)
    assert by_file.run_dir == tmp_path / "there" / "toy"
    recipe = by_file.records[0].plan.recipe
    assert (recipe["timeout_s"], recipe["seed"]) == (5.0, 3)
    assert by_file.records[0].plan.sample_every_s == 2.0
    (by_words,) = go(text, out=tmp_path / "here", device="cpu", timeout=7.0, seed=4,
                     sample_every=0.0)  # fmt: skip
    assert by_words.run_dir == tmp_path / "here" / "toy"
    plan = by_words.records[0].plan
    assert (plan.recipe["timeout_s"], plan.recipe["seed"]) == (7.0, 4)
    assert plan.sample_every_s == 0.0
    assert plan.device.vendor == "cpu"


def test_a_single_runs_folder_takes_no_plan(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path
) -> None:
    """As after `trainmark run CASE --out runs/plan`."""
    single = go(TWO, out=tmp_path / "other")[0].records[0].plan
    launcher.launched.clear()
    (tmp_path / "runs/plan").mkdir(parents=True)
    single.save(tmp_path / "runs/plan")
    with pytest.raises(EnvironmentFault, match="the folder is that of a single run"):
        go(TWO)
    assert [path.name for path in (tmp_path / "runs/plan").iterdir()] == ["plan.json"]
    assert launcher.launched == []


def test_two_calls_never_work_in_one_folder(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path, cli: Any
) -> None:
    endings: list[tuple[int, str, str]] = []
    entries = checked(tmp_path, TWO)

    def launch(plan: Plan, site: Site, label: str) -> Record:
        endings.append(cli("run", "plan.yaml", "--quiet"))
        return launcher(plan, site, label)

    outcomes = do(entries, launcher, launch=launch)
    assert states(outcomes) == {"a": "passed", "b": "passed"}
    assert [(code, out) for code, out, _ in endings] == [(2, ""), (2, "")]
    assert "another `trainmark run` of this plan is running there" in endings[0][2]
    assert sorted(path.name for path in (tmp_path / "runs/plan").glob("[!.]*")) == ["a", "b"]
    assert states(go(TWO)) == {"a": "kept", "b": "kept"}


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        (["passed", "skipped"], 0),
        (["kept"], 0),
        (["to run", "skipped"], 0),
        (["passed", "failed"], 1),
        (["kept", "left"], 1),
        (["failed", "skipped"], 1),
        (["skipped", "skipped"], 2),
    ],
)
def test_the_exit_code_says_how_it_went(kinds: list[Any], code: int) -> None:
    assert exit_code(Outcome(name=kind, state=kind) for kind in kinds) == code


def _at_rates(outcome: Outcome, rates: list[float]) -> Outcome:
    """Return an outcome over launches like its first, with other results."""
    (made, *_), folder = outcome.records, outcome.folders[0]
    result = made.figures["final_result"]
    again = tuple(
        made.model_copy(update={
            "plan": of_repeat(made.plan, place),
            "figures": made.figures | {"final_result": result.model_copy(update={"value": rate})},
        })
        for place, rate in enumerate(rates, 1)
    )  # fmt: skip
    places = tuple(folder / f"r{place}" for place in range(1, len(rates) + 1))
    return replace(outcome, planned=len(rates), records=again, folders=places)


def test_the_summary_of_a_plan(go: Callable[..., list[Outcome]], launcher: Launcher) -> None:
    """Every state, medians and intervals over few and many launches, reasons and exit code."""
    launcher.endings = {"oom": "oom", "stopped r1": "between", "again": "timed_out"}
    text = """\
runs:
- {case: toy, name: few}
- {case: toy, name: many}
- {case: toy, name: again}
- {case: toy, name: oom, repeat: 2}
- {case: toy, name: mp, nproc: 8}
- {case: toy, name: stopped, repeat: 2}
"""
    go(text.partition("- {case: toy, name: oom")[0])
    launcher.endings.pop("again")
    few, many, *others = go(text)
    here = Path.cwd()
    outcomes = [
        replace(_at_rates(few, [510.0, 512.0, 511.0]), fallen=(here / "runs/plan/few/r2",)),
        _at_rates(many, [500.0 + rate for rate in (3, 1, 4, 1, 5, 9, 2, 6)]),
        *others,
    ]
    outcomes = [
        replace(outcome, run_dir=outcome.run_dir and outcome.run_dir.relative_to(here))
        for outcome in outcomes
    ]
    said = series_table(outcomes, screen=Screen(width=110))
    check_golden("plan_summary.txt", f"{said}\nexit code {exit_code(outcomes)}\n")


def test_the_document_has_an_entry_a_run(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path
) -> None:
    launcher.endings = {"b": "oom"}
    outcomes = go(TWO)
    document = series_json(outcomes, name="plan", exit_code=1)
    assert (document["plan"], document["exit_code"]) == ("plan", 1)
    done, failed = document["runs"]
    assert done == {
        "name": "a",
        "status": "passed",
        "reason": None,
        "run_dir": str(tmp_path / "runs/plan/a"),
        "launches": 1,
        "run_ids": [outcomes[0].records[0].run_id],
        "statuses": ["passed"],
        "verification": "unverified",
        "did_not_pass_before": [],
        "final_result": 512.0,
        "final_result_unit": "samples/s",
        "final_result_interval": None,
        "quality": 0.9375,
        "quality_target": 0.9,
        "tokens_per_s_per_device": 256.0,
        "final_result_reason": None,
        "final_loss": 0.25,
        "mem_bytes": 2_500_000.0,
        "findings": [],
        "trust": outcomes[0].records[0].trust.model_dump(mode="json"),
        "notes": [note.as_dict() for note in outcomes[0].records[0].notes],
    }
    assert (failed["status"], failed["statuses"]) == ("failed", ["oom"])
    assert failed["final_result"] is None


def test_a_dry_run_says_what_would_be_done_and_does_nothing(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(TWO + "- {case: toy, name: mp, nproc: 8}\n")
    leave(checked(tmp_path, (tmp_path / "plan.yaml").read_text())[0].plan, "passed")  # type: ignore[arg-type]
    code, out, _ = cli("run", "plan.yaml", "--dry-run", "--json")
    document = json.loads(out)
    assert code == 0
    assert [run["status"] for run in document["runs"]] == ["kept", "to run", "skipped"]
    assert [plan["recipe"]["micro_batch_size"] for plan in document["plans"]] == [32]
    assert [path.name for path in (tmp_path / "runs/plan").iterdir()] == ["a"]
    code, out, _ = cli("run", "plan.yaml", "--dry-run")
    lines = out.splitlines()
    assert "b: to run in runs/plan/b: toy:pytorch_2.13:fake:1:1:1" in lines
    assert len([line for line in lines if line.startswith("b")]) == 2  # its row and this line


def test_nothing_that_could_run_is_exit_code_2_with_the_reasons(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("runs:\n- {case: toy, nproc: 8}\n")
    code, out, err = cli("run", "plan.yaml")
    assert code == 2
    assert "toy: skipped: 8 fake devices needed, 2 here" in out.splitlines()
    assert out.splitlines()[-1] == "nothing could run here: every run of the plan was skipped"
    assert err == "1/1 toy: skipped\n"
    assert not (tmp_path / "runs").exists()
    code, _, err = cli("run", "plan.yaml", "--quiet", "--json")
    assert (code, err) == (2, "")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--recipe", "tiny"], "--recipe"),
        (["--nproc", "2"], "--nproc"),
        (["--repeat", "2"], "--repeat"),
        (["bs=8"], "KEY=VALUE"),
    ],
)
def test_options_that_belong_to_one_run_are_refused(
    cli: Any, tmp_path: Path, words: list[str], name: str
) -> None:
    (tmp_path / "plan.yaml").write_text(TWO)
    code, out, err = cli("run", "plan.yaml", *words)
    assert (code, out) == (2, "")
    assert f"{name} does not go with a plan file" in err
    assert "way out" in err
