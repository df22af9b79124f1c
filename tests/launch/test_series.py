"""Several runs in one go: what is done, kept, skipped and tried again; no rank is started."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import trainmark
from support.fakes import (
    GOLDEN,
    FakeVendor,
    S,
    check_golden,
    launch_event,
    make_event,
    rank_events,
    write_run,
)
from trainmark import devices, torch_version
from trainmark.errors import DataError, EnvironmentFault, UsageError
from trainmark.launch import series, submission
from trainmark.launch.processes import StopRequest
from trainmark.launch.series import SeriesEntry, choose_exit_code
from trainmark.launch.submission import CLUSTER_FILE
from trainmark.pages.results import build_series_table
from trainmark.plan.plan_file import read_plan_file
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import list_launches, plan_launch
from trainmark.record import record as records
from trainmark.record import reduce
from trainmark.record.record import Cause, Record
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.cluster import Cluster
    from trainmark.plan.plan import Plan


class ReadOnly:
    """What ``os.statvfs`` returns of a file system, which is mounted read-only."""

    def __init__(self, status: os.statvfs_result) -> None:
        self.f_flag = status.f_flag | os.ST_RDONLY


@pytest.fixture(autouse=True)
def vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeVendor]:
    """Make plans the same on every machine: two accelerators, four cores.

    Return the vendors by name. The version of torch is the same too, and the current folder is a
    new one.
    """
    vendors = {"fake": FakeVendor(), "cpu": FakeVendor("cpu", devices=4, product="Fake CPU")}
    monkeypatch.setattr(devices, "list_vendors", lambda: vendors)
    monkeypatch.setattr(torch_version, "_read_version", lambda _: "2.13.0+cpu")
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return vendors


@dataclass
class Launcher:
    """Writes the record that each launch shall end with, instead of running it.

    Args:
        endings: by entry, or by entry and launch, for example ``a r2``; all others pass. A status
            of a record, or: ``between``: it passes, and the command is stopped before the next
            launch; ``interrupted``: the command is stopped during it; ``disk``: the disk is full.
        launched: folders of all launches, in their order, as ``ENTRY`` or ``ENTRY/rN``.
        stop: the command's request to stop, which some endings set.
        messages: what the command reported to its user.
    """

    endings: dict[str, str] = field(default_factory=dict)
    launched: list[str] = field(default_factory=list)
    stop: StopRequest = field(default_factory=StopRequest)
    messages: list[str] = field(default_factory=list)

    def __call__(self, plan: Plan, site: Cluster, label: str, follow: tuple[str, ...]) -> Record:
        """Note the launch, and leave the record whose ending the test has set for it.

        Args:
            plan: of this launch; its folder is where the record goes.
            site: settings of a cluster, which no test here needs.
            label: position and name of the entry in the plan file, such as "2/4 b".
            follow: programs to which progress would be handed; not used.
        """
        folder, entry = Path(plan.run_dir), label.rpartition(" ")[2]  # label: such as "2/4 b"
        is_repeated = plan.repeat_count > 1  # its launches have folders below the entry's folder
        self.launched.append(f"{folder.parent.name}/{folder.name}" if is_repeated else folder.name)
        # An ending is set for one launch of an entry, such as "a r2", or for all of them, "a".
        ending = self.endings.get(
            f"{entry} r{plan.repeat_index}", self.endings.get(entry, "passed")
        )
        if ending == "between":  # after this launch's record, before the next
            self.stop.signal_name = "SIGTERM"
            return leave_record(plan, "passed")
        if ending == "interrupted":
            self.stop.signal_name = "SIGINT"
        if ending == "disk":
            raise EnvironmentFault("less than 8 MiB are free", where=str(folder))
        return leave_record(plan, ending)


def leave_record(plan: Plan, status: str) -> Record:
    """Leave toy's golden record, as one of ``plan``, in the folder of the plan; return it.

    Args:
        status: other than ``passed``: the record has an error of two lines as its cause.
    """
    text = (GOLDEN / "record_toy.json").read_text(encoding="utf-8")
    record = Record.model_validate_json(text)
    cause = (
        None
        if status == "passed"
        else Cause(kind="error", message=Message("exception", {"text": "upside\ndown"}))
    )
    folder = Path(plan.run_dir)
    folder.mkdir(parents=True)
    changes = {"plan": plan, "run_id": plan.run_id, "status": status, "cause": cause}
    record = record.model_copy(update=changes)
    plan.save(folder)
    records.write_record(record, folder)
    return record


@pytest.fixture
def launcher() -> Launcher:
    """Return a fake launcher that leaves records of runs that passed, unless a test changes it."""
    return Launcher()


@pytest.fixture
def run_plan_text(tmp_path: Path, launcher: Launcher) -> Callable[..., list[SeriesEntry]]:
    """Return a function that runs a plan file's text with the fake launcher.

    What the launcher recorded of an earlier call is forgotten; finished runs are in the folder.
    """

    def call(text: str, **choices: Any) -> list[SeriesEntry]:
        entries = check_plan_text(tmp_path, text, **choices)
        launcher.launched.clear()
        launcher.messages.clear()
        launcher.stop = StopRequest()
        return run_checked_entries(entries, launcher)

    return call


def run_checked_entries(
    entries: list[SeriesEntry], launcher: Launcher, **other: Any
) -> list[SeriesEntry]:
    """Run checked entries with the fake launcher; ``other``: other arguments of ``run_entries``.

    The returned entries have the state in which they ended, and their records.
    """
    arguments = {"launch": launcher, "report": launcher.messages.append} | other
    return series.run_entries(entries, launcher.stop, **arguments)


def check_plan_text(folder: Path, text: str, **choices: Any) -> list[SeriesEntry]:
    """Return the entries, one for each run, of a plan file with this text in ``folder``.

    They are checked as before a run: what has a record counts as finished. ``choices``: options of
    the command line.
    """
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    file = read_plan_file(RunRequest(case=str(path), **choices))
    return series.check_entries(file)


def list_states(outcomes: list[SeriesEntry]) -> dict[str, str]:
    """Return the state of each run, such as "passed" or "skipped", by its name."""
    return {outcome.name: outcome.state for outcome in outcomes}


PLAN_OF_A_AND_B = "runs:\n- {case: toy, name: a}\n- {case: toy, name: b, set: {bs: 32}}\n"


def test_failed_run_is_repeated_in_a_new_folder(
    run_plan_text: Callable[..., list[SeriesEntry]], launcher: Launcher, tmp_path: Path
) -> None:
    """The folder of a failed attempt stays; the next one gets a number: ``a``, ``a-2``, ``a-3``.

    ``PLAN_OF_A_AND_B``: a plan file with a run of each. The fake launcher leaves records whose
    statuses ``endings`` has, and notes in ``launched`` the folders of the last call.
    """
    launcher.endings = {"a": "oom"}
    first = run_plan_text(PLAN_OF_A_AND_B)
    failed = (tmp_path / "runs/plan/a/record.json").read_bytes()
    assert first[0].state == "failed"
    assert first[0].reason == "oom: upside down"  # the error of ``leave_record``, in one line
    assert choose_exit_code(first) == 1

    second = run_plan_text(PLAN_OF_A_AND_B)
    assert launcher.launched[0] == "a-2"
    assert second[0].state == "failed"
    assert (tmp_path / "runs/plan/a/record.json").read_bytes() == failed

    launcher.endings = {}
    third = run_plan_text(PLAN_OF_A_AND_B)
    assert (third[0].state, third[0].run_dir) == ("passed", tmp_path / "runs/plan/a-3")
    fourth = run_plan_text(PLAN_OF_A_AND_B)
    assert (fourth[0].state, fourth[0].run_dir) == ("finished", tmp_path / "runs/plan/a-3")


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("interrupted", ("failed", "interrupted: upside down", "a-2/r1")),
        # The signal comes after the first launch of a has passed, before its second one.
        ("between", ("left", "stopped after 1 of 2 launches", "a-2/r2")),
    ],
)
def test_stopping_one_run_stops_the_remaining_runs(
    run_plan_text: Callable[..., list[SeriesEntry]],
    launcher: Launcher,
    ending: str,
    expected: tuple[str, ...],
) -> None:
    """Of a, b, c and d the last is finished before, and c is impossible here: it needs 64 devices.

    ``ending``: how the fake launcher ends a launch of a, which has two; ``expected``: the state of
    a, its reason, and the launch with which the same command goes on later. ``PLAN_OF_A_AND_B``: a
    plan file with a run of each.
    """
    state, reason, repeated_launch = expected
    text = PLAN_OF_A_AND_B.replace("name: a", "name: a, repeat: 2") + (
        "- {case: toy, name: c, nproc: 64}\n- {case: toy, name: d}\n"
    )
    run_plan_text("runs:\n- {case: toy, name: d}\n")
    launcher.endings = {"a": ending}
    outcomes = run_plan_text(text)
    assert list_states(outcomes) == {"a": state, "b": "left", "c": "skipped", "d": "finished"}
    assert [outcome.reason for outcome in outcomes[:2]] == [reason, "stopped after 0 of 1 launches"]
    assert launcher.launched == ["a/r1"]
    # "left": not started, because the command was stopped before.
    assert "2/4 b: left" in launcher.messages
    assert choose_exit_code(outcomes) == 1

    launcher.endings = {}
    assert list_states(run_plan_text(text)) == {
        "a": "passed",
        "b": "passed",
        "c": "skipped",
        "d": "finished",
    }
    assert set(launcher.launched) >= {repeated_launch, "b"}


def test_changed_work_is_a_new_attempt_and_the_earlier_one_is_still_found(
    run_plan_text: Callable[..., list[SeriesEntry]], launcher: Launcher, tmp_path: Path
) -> None:
    """``PLAN_OF_A_AND_B``: a plan file of two runs. ``launched``: the folders of the last call."""
    run_plan_text(PLAN_OF_A_AND_B)
    changed = PLAN_OF_A_AND_B.replace("bs: 32", "bs: 16")  # another batch size of b
    assert list_states(run_plan_text(changed)) == {"a": "finished", "b": "passed"}
    assert launcher.launched == ["b-2"]
    assert list_states(run_plan_text(changed)) == {"a": "finished", "b": "finished"}
    back = run_plan_text(PLAN_OF_A_AND_B)  # the first text again
    assert (back[1].state, back[1].run_dir) == ("finished", tmp_path / "runs/plan/b")


# Three launches of a, one of b.
PLAN_OF_THREE_A_AND_B = (
    "runs:\n- {case: toy, name: a, repeat: 3}\n- {case: toy, name: b, set: {bs: 32}}\n"
)


def test_finished_launches_of_a_series_are_kept_and_only_missing_ones_run(
    run_plan_text: Callable[..., list[SeriesEntry]], launcher: Launcher, tmp_path: Path
) -> None:
    """``PLAN_OF_THREE_A_AND_B``: a plan file with three launches of a, r1 to r3, and one of b.

    The fake launcher ends a launch as ``endings`` says, and notes the folders in ``launched``.
    """
    launcher.endings = {"a r2": "failed"}
    first = run_plan_text(PLAN_OF_THREE_A_AND_B)
    assert list_states(first) == {"a": "failed", "b": "passed"}
    record_bytes = (tmp_path / "runs/plan/a/r1/record.json").read_bytes()
    (tmp_path / "runs/plan/a/r3/record.json").unlink()  # as if it was killed

    launcher.endings = {}
    (second_outcome, _) = run_plan_text(PLAN_OF_THREE_A_AND_B)
    # r1 is kept where it is. The folders of r2 and r3 exist, so both get those of a next attempt.
    assert launcher.launched == ["a-2/r2", "a-2/r3"]
    assert (second_outcome.state, second_outcome.run_dir) == ("passed", tmp_path / "runs/plan/a-2")
    assert [record.plan.repeat_index for record in second_outcome.records] == [1, 2, 3]
    runs = tmp_path / "runs/plan"
    assert second_outcome.folders == [runs / "a/r1", runs / "a-2/r2", runs / "a-2/r3"]
    assert second_outcome.earlier_failures == (runs / "a/r2", runs / "a/r3")
    assert len({record.run_id for record in second_outcome.records}) == 3
    assert (tmp_path / "runs/plan/a/r1/record.json").read_bytes() == record_bytes

    (third, _) = run_plan_text(PLAN_OF_THREE_A_AND_B)
    assert (third.state, third.run_dir) == ("finished", second_outcome.run_dir)
    assert (third.folders, third.earlier_failures) == (
        second_outcome.folders,
        second_outcome.earlier_failures,
    )


@pytest.mark.parametrize(
    ("ending", "reason", "remaining_launches"),
    [
        ("passed", "None", ["a/r2", "a/r3"]),  # no reason
        ("timed_out", "timed_out: upside down", []),  # the others of a would also time out
        # The launch is refused before it starts, and so are the others of a. Those of b and c, to
        # which the fake launcher gives no such error, go on: each checks the disk for itself.
        ("disk", "less than 8 MiB are free", []),
    ],
)
def test_launches_run_in_rounds_and_stop_after_a_timeout_or_full_disk(
    run_plan_text: Callable[..., list[SeriesEntry]],
    launcher: Launcher,
    ending: str,
    reason: str,
    remaining_launches: list[str],
) -> None:
    """``PLAN_OF_THREE_A_AND_B``: three launches of a, r1 to r3, and one of b; c has two.

    A round has a launch of each run that has one left. ``ending`` is that of the first one of a.
    """
    launcher.endings = {"a r1": ending}
    outcomes = run_plan_text(
        PLAN_OF_THREE_A_AND_B + "- {case: toy, name: c, repeat: 2, set: {bs: 16}}\n"
    )
    # Every second round is in reverse order: c before a.
    assert launcher.launched == ["a/r1", "b", "c/r1", "c/r2", *remaining_launches]
    assert [outcome.state for outcome in outcomes[1:]] == ["passed", "passed"]
    # Of a; "upside down" is the error of every record that the fake launcher leaves.
    assert reason in str(outcomes[0].reason)


def test_run_impossible_on_this_machine_is_skipped_with_its_reason(
    run_plan_text: Callable[..., list[SeriesEntry]],
    vendors: dict[str, FakeVendor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``vendors``: the machine has two devices of a fake vendor, and a CPU of four cores.

    The plan file has a run with one rank, ``sp``, one with 8 ranks on devices, and one with 5 on
    cores. Unless ``device`` says which, the runs use the fake vendor.
    """
    text = """\
runs:
- {case: toy, name: sp}
- {case: toy, name: mp, nproc: 8}
- {case: toy, name: cores, device: cpu, nproc: 5}
"""
    outcomes = run_plan_text(text)
    assert list_states(outcomes)["sp"] == "passed"
    assert {outcome.name: outcome.reason for outcome in outcomes[1:]} == {
        "mp": "8 fake devices are needed, but this machine has 2",
        "cores": "5 cores are needed, but this machine has 4",
    }
    assert choose_exit_code(outcomes) == 0  # a skipped run is not a failure

    # The same plan without usable devices: the reason is then the fault of the device.
    vendors["fake"].devices = 0
    fault = EnvironmentFault("a card is here, but torch has no code for it")
    monkeypatch.setattr(devices, "list_device_faults", lambda: [fault])
    (skipped, *_) = run_plan_text(text)
    assert skipped.reason == fault.what
    assert list_states(run_plan_text(text, device="cpu"))["sp"] == "passed"


def test_submitted_job_is_awaited_and_its_launch_kept(
    tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGKILL of the launcher, which an engine's job outlives.

    A plan file with two launches of a, r1 and r2. ``missing`` has the plans of launches to do; the
    folder of the first one is made as if its job had been submitted. ``attach`` and ``follow``
    stand for those of the program: they find the job, and wait until it has left its record. The
    fake launcher then has only r2 to launch, in a new attempt, ``a-2``.
    """
    text = "runs:\n- {case: toy, name: a, launcher: slurm, device: cpu, repeat: 2}\n"
    plan = check_plan_text(tmp_path, text)[0].missing[0]  # of the first launch
    folder = Path(plan.run_dir)
    folder.mkdir(parents=True)
    plan.save(folder)
    (folder / CLUSTER_FILE).write_text("{}")  # with the plan: a job was submitted from the folder
    attached: list[Path] = []

    def attach(folder: Path) -> tuple[Plan, str]:
        attached.append(folder)
        return plan, "job"

    def follow(job: str, stop: StopRequest) -> Record:
        assert job == "job"
        shutil.rmtree(plan.run_dir)  # ``leave_record`` makes the folder
        return leave_record(plan, "passed")

    monkeypatch.setattr(submission, "attach", attach)
    monkeypatch.setattr(submission, "follow", follow)
    (outcome,) = run_checked_entries(check_plan_text(tmp_path, text), launcher)
    assert attached == [folder]
    assert launcher.launched == ["a-2/r2"]
    assert launcher.messages[0] == f"a: {folder} is a submitted job: waiting"
    assert (outcome.state, outcome.folders[0], outcome.earlier_failures) == ("passed", folder, ())


@pytest.mark.parametrize(
    ("line", "expected_error"),
    [
        # A mistake is reported even of a run that would be skipped on this machine.
        ("{case: toy, nproc: 64, set: {bss: 1}}", "'bss'"),
        ("{case: toy, data: nowhere}", "no such file"),
    ],
)
def test_every_entry_is_checked_before_the_first_starts(
    run_plan_text: Callable[..., list[SeriesEntry]],
    launcher: Launcher,
    tmp_path: Path,
    line: str,
    expected_error: str,
) -> None:
    """``line``: the second run of a plan file, which has an error; the first has none.

    The case has no setting ``bss`` (``bs`` is meant), and the folder "nowhere" does not exist.
    ``launched``: what the fake launcher launched. The runs would be in the folder ``runs``.
    """
    with pytest.raises((UsageError, DataError)) as caught:
        run_plan_text(f"runs:\n- {{case: toy, name: first}}\n- {line}\n")
    message = str(caught.value)
    assert f"{tmp_path}/plan.yaml, runs[2]" in message
    assert expected_error in message
    assert launcher.launched == []
    assert not (tmp_path / "runs").exists()


def test_folder_of_a_single_run_is_refused_for_a_plan(
    run_plan_text: Callable[..., list[SeriesEntry]], launcher: Launcher, tmp_path: Path
) -> None:
    """As after `trainmark run CASE --out runs/plan`.

    ``PLAN_OF_A_AND_B``: a plan file with two runs, which by default are in runs/plan. The plan of
    one of them, run elsewhere before, is saved there as a single run would.
    """
    single = run_plan_text(PLAN_OF_A_AND_B, out=tmp_path / "other")[0].records[0].plan
    launcher.launched.clear()
    (tmp_path / "runs/plan").mkdir(parents=True)
    single.save(tmp_path / "runs/plan")
    with pytest.raises(EnvironmentFault, match="started without a plan file"):
        run_plan_text(PLAN_OF_A_AND_B)
    assert [path.name for path in (tmp_path / "runs/plan").iterdir()] == ["plan.json"]
    assert launcher.launched == []


def test_two_calls_never_share_a_folder(
    run_plan_text: Callable[..., list[SeriesEntry]], launcher: Launcher, tmp_path: Path, cli: Any
) -> None:
    # ``PLAN_OF_A_AND_B``: the text of a plan file with two runs, written to plan.yaml. The fake
    # launcher leaves a record for each; before it does, the same plan is run by a second command.
    second_commands: list[tuple[int, str, str]] = []  # exit code, output and errors of each
    entries = check_plan_text(tmp_path, PLAN_OF_A_AND_B)

    def launch(plan: Plan, site: Cluster, label: str, follow: tuple[str, ...]) -> Record:
        second_commands.append(cli("run", "plan.yaml", "--quiet"))  # during each launch
        return launcher(plan, site, label, follow)

    outcomes = run_checked_entries(entries, launcher, launch=launch)
    assert list_states(outcomes) == {"a": "passed", "b": "passed"}
    assert [(code, out) for code, out, _ in second_commands] == [(2, ""), (2, "")]
    _code, _out, errors = second_commands[0]
    assert "another `trainmark run` of this plan is running in this folder" in errors
    # Without hidden files, such as the lock.
    assert sorted(path.name for path in (tmp_path / "runs/plan").glob("[!.]*")) == ["a", "b"]
    assert list_states(run_plan_text(PLAN_OF_A_AND_B)) == {"a": "finished", "b": "finished"}


def set_rates(outcome: SeriesEntry, rates: list[float]) -> SeriesEntry:
    """Return an outcome with as many launches as rates: copies of its first with these results.

    Args:
        outcome: an entry of a plan file that has run: ``records`` and ``folders`` have the record
            and the folder of each launch that ended, ``ended`` has both by the launch's number.
        rates: training speed of each launch (samples/s), which its record gets as the figure
            ``final_result``. The launches are numbered from 1.

    No files are written: the subfolders ``r1``, ``r2``, ... of the launches are only named.
    """
    (first_record, *_), folder = outcome.records, outcome.folders[0]
    result = first_record.figures["final_result"]
    new_records = tuple(
        first_record.model_copy(
            update={
                "plan": plan_launch(first_record.plan, index),
                "figures": first_record.figures
                | {"final_result": result.model_copy(update={"value": rate})},
            }
        )
        for index, rate in enumerate(rates, 1)
    )
    record_by_launch = {
        index: (folder / f"r{index}", record) for index, record in enumerate(new_records, 1)
    }
    plan = first_record.plan.model_copy(update={"repeat_count": len(rates)})
    return replace(outcome, plan=plan, ended=record_by_launch)


def test_summary_of_a_plan_lists_its_runs(
    run_plan_text: Callable[..., list[SeriesEntry]],
    launcher: Launcher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every state, geometric means and intervals of few and many launches, reasons, exit code."""
    # The figures that ``set_rates`` sets below are invented, and would not match the raw events.
    monkeypatch.setattr(series, "check_record", lambda record, _: record)
    # ``launcher`` runs nothing, but leaves the record that a launch shall end with: by entry, or by
    # entry and launch ("r1"). All others pass. "between": it passes too, but the user stops the
    # command before the next launch. "mp" is skipped, as the fake machine has two devices, not 8.
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
    # The first three entries run before: two are then finished, and "again" is tried again.
    run_plan_text(text.partition("- {case: toy, name: oom")[0])
    launcher.endings.pop("again")
    few, many, *others = run_plan_text(text)
    current_folder = Path.cwd()
    outcomes = [
        # ``set_rates`` makes copies of an entry's launch, one with each of these samples/s: too few
        # for a confidence interval (it needs five), then eight. A second folder r2 is invented.
        replace(
            set_rates(few, [510.0, 512.0, 511.0]),
            earlier_failures=(current_folder / "runs/plan/few/r2",),
        ),
        set_rates(many, [500.0 + rate for rate in (3, 1, 4, 1, 5, 9, 2, 6)]),
        *others,
    ]

    def format_path(path: Path) -> str:
        """Return a path as the golden file has it: relative to the current folder."""
        return str(path.relative_to(current_folder))

    table = build_series_table(outcomes, format_path=format_path, width=110)
    check_golden("plan_summary.txt", f"{table}\nexit code {choose_exit_code(outcomes)}\n")


@pytest.fixture
def check_plan_file_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[SeriesEntry]]:
    """Return a function that checks the text of a plan file, and returns its entries."""
    # Paths in a plan file, and the folder ``runs``, are relative to the current folder.
    monkeypatch.chdir(tmp_path)

    def check(text: str) -> list[SeriesEntry]:
        path = tmp_path / "plan.yaml"
        path.write_text(text, encoding="utf-8")
        return series.check_entries(read_plan_file(RunRequest(case=str(path), device="cpu")))

    return check


def leave_events(plan: Plan) -> Path:
    """Leave a launch that passed, with the events that its record is computed from.

    ``rank_events`` are those of a rank that trained 16 steps and ended after 12 s; ``S`` is a
    second in nanoseconds. Return the folder.
    """
    folder = Path(plan.run_dir)
    folder.mkdir(parents=True)
    plan.save(folder)
    end_of_ranks = make_event("ranks_ended", 13 * S, failures=[])  # after 13 s, without a failure
    # Soon after the plan was made, as the checks of a record require.
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_run(folder, [launch_event(started=started), end_of_ranks], rank_events())
    records.write_record(reduce.reduce(folder), folder)
    return folder


def test_resumed_plan_verifies_its_finished_launches(cli: Any, tmp_path: Path) -> None:
    """A record that a plan finds is computed again from its raw events, and compared with them.

    ``leave_events`` leaves a passed launch of the plan with both, in which the accuracy is 0.9375.
    Each call of ``check_entries`` or of the command then finds it as finished, and runs nothing.
    The toy case generates its data, so its results are never to be quoted.
    """
    path = tmp_path / "plan.yaml"
    path.write_text("runs:\n- {case: toy, name: a}\n", encoding="utf-8")
    (planned,) = series.check_entries(read_plan_file(RunRequest(case=str(path))))
    folder = leave_events(planned.plan)
    (entry,) = series.check_entries(read_plan_file(RunRequest(case=str(path))))
    assert entry.state == "finished"
    assert [record.verification for record in entry.records] == ["verified"]
    code, out, _ = cli("run", path)
    assert code == 0
    assert "not to be quoted, verified" in out
    assert "unverified" not in out
    assert "contradicted" not in out

    # After a quality was changed in the raw events, the record does not follow from them any more.
    events = folder / "events.rank0.jsonl"
    events.write_text(events.read_text().replace('"value":0.9375', '"value":0.9376'))
    (entry,) = series.check_entries(read_plan_file(RunRequest(case=str(path))))
    assert [record.verification for record in entry.records] == ["contradicted"]
    code, out, _ = cli("run", path, "--json")
    (run,) = json.loads(out)["runs"]
    assert (code, run["status"]) == (1, "finished")
    assert run["reason"].startswith(planned.plan.run_id[:8])  # names the launch that is wrong
    with pytest.warns(UserWarning, match="does not match its raw events"):
        trainmark.run(str(path))


def test_dry_run_lists_the_runs_and_starts_none(cli: Any, tmp_path: Path) -> None:
    # Of the toy runs "a" and "b" of the plan, "a" has a record already. The third run, "mp", needs
    # 8 devices, but the fake machine has two, so it is skipped.
    text = PLAN_OF_A_AND_B + "- {case: toy, name: mp, nproc: 8}\n"
    entry_a, _entry_b, _entry_mp = check_plan_text(tmp_path, text)  # also writes plan.yaml
    # ``leave_record`` writes a record with this status into the folder of the plan.
    leave_record(entry_a.plan, "passed")  # type: ignore[arg-type]
    code, out, _ = cli("run", "plan.yaml", "--dry-run", "--json")
    document = json.loads(out)
    assert code == 0
    assert [run["status"] for run in document["runs"]] == ["finished", "to run", "skipped"]
    # Only the folder of "a", which ``leave_record`` made: nothing was started.
    assert [path.name for path in (tmp_path / "runs/plan").iterdir()] == ["a"]
    code, out, _ = cli("run", "plan.yaml", "--dry-run")
    lines = out.splitlines()
    # The key of the case: name, framework and version, device, nodes, ranks, launches.
    assert "b: to run as toy:pytorch_2.13:fake:1:1:1" in lines
    assert "b: runs/plan/b" in lines
    assert len([line for line in lines if line.startswith("b")]) == 3  # its row and these lines


def test_dry_run_refuses_a_folder_that_the_series_could_not_create(
    cli: Any, tmp_path: Path
) -> None:
    """The runs would be in a folder below ``plan.yaml``, which is a file."""
    (tmp_path / "plan.yaml").write_text(PLAN_OF_A_AND_B)

    code, _, error = cli("run", "plan.yaml", "--dry-run", "--out", "plan.yaml/runs")

    assert code == 2
    assert "plan.yaml/runs" in error


def test_series_in_a_read_only_folder_is_shown_once_it_is_finished(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the runs "a" and "b" of the plan, first only "a" has a record, then both."""
    entry_a, entry_b = check_plan_text(tmp_path, PLAN_OF_A_AND_B)  # also writes plan.yaml
    assert entry_a.plan is not None
    assert entry_b.plan is not None
    leave_record(entry_a.plan, "passed")
    statvfs = os.statvfs
    # All that is there is then on a file system that is mounted read-only.
    monkeypatch.setattr(os, "statvfs", lambda path: ReadOnly(statvfs(path)))

    code, _, error = cli("run", "plan.yaml", "--dry-run")
    assert code == 2
    assert "Read-only file system" in error

    leave_record(entry_b.plan, "passed")
    code, out, _ = cli("run", "plan.yaml", "--dry-run", "--json")
    assert code == 0
    assert [run["status"] for run in json.loads(out)["runs"]] == ["finished", "finished"]


def test_dry_run_shows_launches_in_their_order_with_the_time_of_earlier_ones(
    cli: Any, tmp_path: Path
) -> None:
    """Of two launches of ``a`` the first is done, of two of ``b`` none.

    The first round has b/r1 alone. The second one is in reverse order: b/r2, then a/r2.

    ``PLAN_OF_A_AND_B`` is the text of a plan file with two toy runs of these names.
    ``leave_record`` leaves the record of a launch in its folder, and returns it. The folder ``a``
    exists already, so the next attempt of that run gets the next name, ``a-2``. A launch is
    expected to take as long as an earlier one of its run took (``e2e_time``); of ``b`` none is
    known.
    """
    text = PLAN_OF_A_AND_B.replace("case: toy", "case: toy, repeat: 2")
    entry_a, _entry_b = check_plan_text(tmp_path, text)  # also writes plan.yaml
    first, _second = list_launches(entry_a.plan)  # type: ignore[arg-type]
    took_s = leave_record(first, "passed").figures["e2e_time"].value
    code, out, _ = cli("run", "plan.yaml", "--dry-run", "--json")
    order = [
        (
            launch["name"],
            launch["launch"],
            launch["run_dir"],
            launch["expected_s"],
            launch["limit_s"],
        )
        for launch in json.loads(out)["launches_to_do"]
    ]
    limit_s = first.recipe["timeout_s"]
    assert code == 0
    assert order == [
        ("b", 1, "runs/plan/b/r1", None, limit_s),
        ("b", 2, "runs/plan/b/r2", None, limit_s),
        ("a", 2, "runs/plan/a-2/r2", took_s, limit_s),
    ]
    code, out, _ = cli("run", "plan.yaml", "--dry-run")
    lines = [line.split() for line in out.splitlines()]
    header_line = lines.index(["order", "run", "launch", "time"])  # a ruling follows it
    assert [line[:3] for line in lines[header_line + 2 : header_line + 5]] == [
        ["1", "b", "1/2"],
        ["2", "b", "2/2"],
        ["3", "a", "2/2"],
    ]
    assert out.splitlines()[-1].startswith("launches to do: 3; about ")


def test_table_of_a_plan_shows_the_settings_that_differ(check_plan_file_text: Any) -> None:
    # The fixture checks the text of a plan file and returns an entry for each of its runs. Lists
    # under ``set`` are combined with each other; ``build_series_table`` then has a column for each
    # setting that differs between the runs, such as the batch size (bs).
    outcomes = check_plan_file_text("runs:\n- {case: toy, set: {bs: [8, 32], seed: [1, 2]}}\n")
    text = build_series_table(outcomes, width=110)
    # Heads, a ruling, and the four combinations of two batch sizes and two seeds.
    heads, _, *rows = (line.split() for line in text.splitlines()[:6])
    assert "bs" in heads
    assert "seed" not in heads  # a seed is no part of the work
    assert [row[heads.index("bs")] for row in rows] == ["8", "8", "32", "32"]


def test_table_of_a_plan_fits_a_narrow_screen(check_plan_file_text: Any) -> None:
    # Four runs that differ in two settings, each of which gets a column: a wide table. None has
    # run.
    outcomes = check_plan_file_text(
        "runs:\n- {case: toy, set: {bs: [8, 32], precision: [fp32, bf16]}}\n"
    )
    for width in (80, 60):
        text = build_series_table(outcomes, width=width)
        # Below the table are the folders, whose paths are not cut.
        lines = [line for line in text.splitlines() if "/toy-" not in line]
        assert max(map(len, lines)) <= width
        # A run's name, a value and the head of the result are each still one word: no cell is cut.
        assert {"toy-bs_8-precision_fp32", "bf16", "final_result"} <= set(text.split())
