"""Several runs in one go: what is done, kept, skipped and tried again; no rank is started."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fakes import GOLDEN, FakeVendor
from trainmark import devices
from trainmark.cli.app import main
from trainmark.errors import DataError, EnvironmentFault, UsageError
from trainmark.launch import series
from trainmark.launch.repeats import launches
from trainmark.launch.stopping import StopRequest
from trainmark.planning import case_key
from trainmark.planning.plan_file import read_plan_file
from trainmark.report.series import series_json, series_table
from trainmark.report.terminal import Screen
from trainmark.results import record as records
from trainmark.results.entries import Outcome, exit_code
from trainmark.results.record import Cause, Record, Trust
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.planning.plan import Plan


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
    """Writes the record each entry is told to end with, instead of running it."""

    endings: dict[str, str] = field(default_factory=dict)
    launched: list[str] = field(default_factory=list)
    request: StopRequest = field(default_factory=StopRequest)
    said: list[str] = field(default_factory=list)

    def __call__(self, plan: Plan, label: str) -> list[Record]:
        folder = Path(plan.run_dir)
        self.launched.append(folder.name)
        ending = self.endings.get(label.rpartition(" ")[2], "passed")
        if ending == "between":  # after the first launch's record, before the next
            self.request.signal_name = "SIGTERM"
            return [leave(launches(plan)[0], "passed")]
        if ending == "interrupted":
            self.request.signal_name = "SIGINT"
        if ending == "disk":
            raise EnvironmentFault("less than 8 MiB are free", where=str(folder))
        if ending == "killed":
            folder.mkdir()
            plan.save(folder)
            return []
        return [leave(single, ending) for single in launches(plan)]


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
        return series.run(entries, launcher.request, launch=launcher, said=launcher.said.append)

    return call


def checked(folder: Path, text: str, **choices: Any) -> list[series.CheckedEntry]:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    file = read_plan_file(path)
    return series.check(file, series.Choices(**choices), generated_root=folder / "cache")


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
    assert launcher.said[0] == (f"1/2 a: a did not pass: {status}; this attempt goes to a-2")
    assert second[0].state == "failed"
    assert (tmp_path / "runs/plan/a/record.json").read_bytes() == failed

    launcher.endings = {}
    third = go(TWO)
    assert (third[0].state, third[0].run_dir) == ("passed", tmp_path / "runs/plan/a-3")
    fourth = go(TWO)
    assert (fourth[0].state, fourth[0].run_dir) == ("kept", tmp_path / "runs/plan/a-3")


def test_a_failure_does_not_stop_the_others(
    go: Callable[..., list[Outcome]], launcher: Launcher
) -> None:
    launcher.endings = {"a": "oom"}
    assert states(go(TWO)) == {"a": "failed", "b": "passed"}


def test_a_launch_that_cannot_begin_is_a_failure_of_its_own(
    go: Callable[..., list[Outcome]], launcher: Launcher
) -> None:
    launcher.endings = {"a": "disk"}
    outcomes = go(TWO)
    assert states(outcomes) == {"a": "failed", "b": "passed"}
    assert "less than 8 MiB are free" in str(outcomes[0].reason)


@pytest.mark.parametrize("ending", ["interrupted", "between"])
def test_whoever_stops_one_stops_the_rest(
    go: Callable[..., list[Outcome]], launcher: Launcher, ending: str
) -> None:
    text = (
        TWO.replace("name: a", "name: a, repeat: 2")
        + "- {case: toy, name: c, nproc: 64}\n- {case: toy, name: d}\n"
    )
    go(TWO.splitlines()[0] + "\n- {case: toy, name: d}\n")
    launcher.endings = {"a": ending}
    outcomes = go(text)
    assert states(outcomes) == {"a": "failed", "b": "left", "c": "skipped", "d": "kept"}
    assert launcher.launched == ["a"]
    assert "2/4 b: left" in launcher.said
    assert exit_code(outcomes) == 1


def test_a_run_that_left_no_record_is_tried_again(
    go: Callable[..., list[Outcome]], launcher: Launcher
) -> None:
    launcher.endings = {"a": "killed"}
    go(TWO)
    launcher.endings = {}
    assert states(go(TWO)) == {"a": "passed", "b": "kept"}
    assert launcher.launched == ["a-2"]
    assert launcher.said[0] == "1/2 a: a has no record; this attempt goes to a-2"


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


def test_a_time_limit_is_no_other_work_and_a_seed_makes_other_data(
    go: Callable[..., list[Outcome]], launcher: Launcher
) -> None:
    go(TWO)
    assert states(go(TWO, timeout_s=5.0)) == {"a": "kept", "b": "kept"}
    go(TWO, seed=9)
    assert launcher.launched == ["a-2", "b-2"]
    assert "a is other work: content_id was" in launcher.said[0]


def test_another_peak_is_another_figure_and_measured_again(
    go: Callable[..., list[Outcome]], launcher: Launcher
) -> None:
    go(TWO)
    given = TWO.replace("name: a", "peak_tflops: 2, name: a")
    assert states(go(given)) == {"a": "passed", "b": "kept"}
    assert "a is other work: peak_tflops was None, is now 2.0" in launcher.said[0]


def test_another_device_is_other_work(go: Callable[..., list[Outcome]], launcher: Launcher) -> None:
    go(TWO)
    assert states(go(TWO, device="cpu")) == {"a": "passed", "b": "passed"}
    assert launcher.launched == ["a-2", "b-2"]
    assert launcher.said[0].startswith("1/2 a: a is other work: device_products was 'Fake Acc")


def test_repeats_are_kept_only_whole(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path
) -> None:
    text = "runs:\n- {case: toy, name: a, repeat: 3}\n"
    first = go(text)
    assert [record.plan.repeat_index for record in first[0].records] == [1, 2, 3]
    assert states(go(text)) == {"a": "kept"}
    (tmp_path / "runs/plan/a/r2/record.json").unlink()
    assert states(go(text)) == {"a": "passed"}
    assert launcher.launched == ["a-2"]


def test_an_empty_folder_is_no_attempt_and_a_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "runs/plan/a").mkdir(parents=True)
    (tmp_path / "runs/plan/b").write_text("thesis")
    (tmp_path / "runs/plan/b-7").write_text("thesis")
    entries = checked(tmp_path, TWO)
    assert [Path(str(entry.plan.run_dir)).name for entry in entries if entry.plan] == ["a", "b-8"]


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


def test_a_vendors_refusal_is_a_reason(
    go: Callable[..., list[Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainmark.protocols import Refusal

    def refuse(self: FakeVendor, recipe: Any, nproc: int) -> Refusal | None:
        return Refusal("no fp16 here", "use fp32") if recipe.precision == "fp16" else None

    monkeypatch.setattr(FakeVendor, "refuse", refuse)
    outcomes = go("runs:\n- {case: toy, set: {precision: fp16}}\n")
    assert (outcomes[0].state, outcomes[0].reason) == ("skipped", "no fp16 here")
    assert exit_code(outcomes) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{case: tyo}", ["unknown case 'tyo'", "did you mean toy"]),
        ("{case: toy, recipe: tny}", ["no recipe 'tny'", "--recipe"]),
        ("{case: toy, set: {bss: 1}}", ["unknown recipe field 'bss'"]),
        ("{case: toy, set: {bs: 0}}", ["micro_batch_size", "greater than 0"]),
        ("{case: toy, device: fkae}", ["unknown device 'fkae'", "fake"]),
        ("{case: toy, device: acelerator}", ["did you mean accelerator"]),
        ("{case: toy, nproc: 0}", ["--nproc 0"]),
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
    assert f"{tmp_path}/plan.yaml, line 3, run " in message
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
    (by_words,) = go(text, out=tmp_path / "here", device="cpu", timeout_s=7.0, seed=4,
                     sample_every_s=0.0)  # fmt: skip
    assert by_words.run_dir == tmp_path / "here" / "toy"
    plan = by_words.records[0].plan
    assert (plan.recipe["timeout_s"], plan.recipe["seed"]) == (7.0, 4)
    assert plan.sample_every_s == 0.0
    assert plan.device.vendor == "cpu"


def test_a_folder_that_cannot_be_used_is_refused_before_anything_starts(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot be used as a folder"):
        go(TWO, out=tmp_path / "file")
    with pytest.raises(EnvironmentFault, match="cannot be used as a folder"):
        go(TWO, out=tmp_path / "file" / "below")
    assert launcher.launched == []


def test_a_run_whose_folder_is_deleted_while_the_next_runs_has_not_passed(
    launcher: Launcher, tmp_path: Path
) -> None:
    def launch(plan: Plan, label: str) -> list[Record]:
        if label.endswith("b"):
            shutil.rmtree(tmp_path / "runs/plan/a")
        return launcher(plan, label)

    entries = checked(tmp_path, TWO)
    outcomes = series.run(entries, StopRequest(), launch=launch, said=launcher.said.append)
    assert states(outcomes) == {"a": "failed", "b": "passed"}
    assert exit_code(outcomes) == 1


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

    def launch(plan: Plan, label: str) -> list[Record]:
        endings.append(cli("run", "plan.yaml", "--quiet"))
        return launcher(plan, label)

    outcomes = series.run(entries, StopRequest(), launch=launch, said=launcher.said.append)
    assert states(outcomes) == {"a": "passed", "b": "passed"}
    assert [(code, out) for code, out, _ in endings] == [(2, ""), (2, "")]
    assert "another `trainmark run` of this plan is running there" in endings[0][2]
    assert sorted(path.name for path in (tmp_path / "runs/plan").iterdir()) == ["a", "b"]
    assert states(go(TWO)) == {"a": "kept", "b": "kept"}


def test_what_another_call_did_after_the_check_is_kept(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path
) -> None:
    early = checked(tmp_path, TWO)
    launcher.endings = {"b": "oom"}
    go(TWO)
    launcher.launched.clear()
    launcher.endings = {}
    outcomes = series.run(early, StopRequest(), launch=launcher, said=launcher.said.append)
    assert states(outcomes) == {"a": "kept", "b": "passed"}
    assert launcher.launched == ["b-2"]


def test_a_record_that_cannot_be_read_is_left_alone(
    go: Callable[..., list[Outcome]], tmp_path: Path
) -> None:
    folder = tmp_path / "runs/plan/a"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text("{}")
    (entry, _) = checked(tmp_path, TWO)
    assert (entry.outcome.state, entry.outcome.run_dir) == ("to run", folder.with_name("a-2"))
    assert str(entry.why_again).startswith("a cannot be read: not a record of this schema")


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


def test_the_table_has_a_row_an_entry_and_says_the_reasons(
    go: Callable[..., list[Outcome]], launcher: Launcher
) -> None:
    launcher.endings = {"b": "oom"}
    outcomes = go(TWO + "- {case: toy, name: mp, nproc: 8}\n")
    lines = series_table(outcomes, screen=Screen(width=80)).split("\n")
    assert lines[0].split() == ["run", "status", "final_result", "token/p/s", "final_loss", "mem"]
    assert lines[2].split() == ["a", "passed", "512.0", "samples/s", "256.0", "0.250", "0.0/0.0"]
    assert lines[3].split() == ["b", "failed", "/", "/", "/", "/"]
    assert lines[4].split() == ["mp", "skipped", "/", "/", "/", "/"]
    assert "b: failed: oom: upside down" in lines
    assert "mp: skipped: 8 fake devices needed, 2 here" in lines
    assert any(line.startswith("a: ") and line.endswith("/runs/plan/a") for line in lines)


def test_the_document_has_an_entry_a_run(
    go: Callable[..., list[Outcome]], launcher: Launcher, tmp_path: Path
) -> None:
    launcher.endings = {"b": "oom"}
    outcomes = go(TWO)
    document = json.loads(series_json(outcomes, name="plan", exit_code=1))
    assert (document["plan"], document["exit_code"]) == ("plan", 1)
    done, failed = document["runs"]
    assert done == {
        "name": "a",
        "status": "passed",
        "reason": None,
        "run_dir": str(tmp_path / "runs/plan/a"),
        "run_ids": [outcomes[0].records[0].run_id],
        "statuses": ["passed"],
        "final_result": 512.0,
        "final_result_unit": "samples/s",
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


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Call the program in this process; return exit code, stdout and stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["trainmark", *words])
        with pytest.raises(SystemExit) as ending:
            main()
        out, err = capsys.readouterr()
        return ending.value.code or 0, out, err  # type: ignore[return-value]

    return call


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


def test_a_missing_plan_file_is_named(cli: Any) -> None:
    code, _, err = cli("run", "nowhere.yml")
    assert code == 2
    assert "nowhere.yml: cannot be read: No such file or directory" in err


BUSY, SHAKEN = Message("busy"), Message("shaken")


def test_notes_and_missing_figures_are_said_once_for_all_they_hold_for(
    go: Callable[..., list[Outcome]],
) -> None:
    go(TWO)
    kept = go(TWO)[0]
    (made,) = kept.records
    lacking = made.figures["final_result"].model_copy(
        update={"value": None, "reason": Message("warm-up")}
    )
    usable = Trust(grade="usable", reasons=[])
    changes = {
        "trust": usable,
        "notes": [BUSY],
        "figures": made.figures | {"final_result": lacking},
    }
    bare = made.model_copy(update=changes)
    shaken = made.model_copy(update={"trust": usable, "notes": [BUSY, SHAKEN]})
    outcomes = [
        Outcome(name="a", state="kept", records=(bare,)),
        Outcome(name="b", state="passed", records=(shaken, bare)),
        Outcome(name="c", state="skipped", reason="no"),
        Outcome(name="d", state="skipped", reason="no"),
    ]
    lines = series_table(outcomes, screen=Screen(width=80)).split("\n")
    index = made.plan.repeat_index
    assert lines[7:] == [
        "a: trust: usable",
        f"a, b/r{index}: no final_result: warm-up",
        "a, b: note: busy",
        "b: trust: noisy: fewer than 5 launches (2)",
        f"b/r{index}: note: shaken",
        "c, d: skipped: no",
    ]
    document = json.loads(series_json(outcomes, name="plan", exit_code=0))
    assert document["runs"][0]["final_result_reason"] == "warm-up"
    assert document["runs"][1]["notes"] == [BUSY.as_dict(), SHAKEN.as_dict()]


def test_a_plans_folder_shows_every_run_of_it(go: Callable[..., list[Outcome]], cli: Any) -> None:
    go(TWO + "- {case: toy, name: r1}\n- {case: toy, name: many, repeat: 2}\n")
    code, out, _ = cli("show", "runs/plan", "--json")
    assert code == 0
    assert [Path(found["plan"]["run_dir"]).name for found in json.loads(out)] == [
        "a", "b", "r1", "r2", "r1",
    ]  # fmt: skip
    code, out, _ = cli("report", "runs/plan", "--format", "json")
    assert (code, len(json.loads(out))) == (0, 5)
