"""Submit a run to a launcher's engine, follow its job, and make the record from what nodes left.

The nodes measure and write; this process waits, shows the engine's words, cancels, and collects.
It may end in between: ``attach`` goes on from the files in the run directory.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import EnvironmentFault, RecordError, TrainmarkError
from trainmark.launch import launchers, run_dir
from trainmark.launch.cluster import Cluster
from trainmark.launch.launchers import EngineJob, JobState, compute_job_limit_s
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.rank.events import JOB_EVENTS_FILE, LAUNCHER_FILE, EventWriter
from trainmark.record.record import RECORD_FILE
from trainmark.validation import in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.launchers import Command, Launcher
    from trainmark.launch.processes import StopRequest
    from trainmark.record.record import Record

_POLL_S = 1.0
_CANCEL_PATIENCE_S, _CANCEL_AGAIN_S = 90.0, 30.0
CLUSTER_FILE = "cluster.json"  # in the run directory: the settings that ``attach`` needs


def require_launcher(cluster: Cluster, name: str) -> Launcher:
    """Return a launcher that can be used here.

    Raises:
        EnvironmentFault: what it needs is not here.
    """
    why = launchers.explain_absence(name, cluster)
    if why is not None:
        raise EnvironmentFault(
            f"launcher {name} cannot be used here: {why}",
            where="--launcher",
            fix="see `trainmark list launchers`, and docs/launchers.md for what each needs",
        )
    return launchers.load_launcher(name)


def prepare_job(plan: Plan, cluster: Cluster) -> Callable[[], EngineJob]:
    """Check, create the run directory, and return what starts the job.

    Raises:
        TrainmarkError: there is no run.
    """
    require_launcher(cluster, plan.launcher).check(plan, cluster)
    asked, folder = build_command(plan, cluster), Path(plan.run_dir)
    with run_dir.create_run_dir(folder):
        run_dir.begin_run(plan, folder, {}).close()
        for name, content in asked.files.items():
            (folder / name).write_text(content, encoding="utf-8")
    return lambda: launchers.start_job(asked, plan, cluster)


def build_command(plan: Plan, cluster: Cluster) -> Command:
    """Return what starts ``plan``, with what its pasted text needs among the files."""
    found = launchers.load_launcher(plan.launcher).command(plan, cluster)
    settings = cluster.model_dump_json(indent=2, exclude_defaults=True) + "\n"
    own = {PLAN_FILE: plan.model_dump_json(indent=2), CLUSTER_FILE: settings}
    return replace(found, files=own | dict(found.files))


def attach(folder: Path) -> EngineJob:
    """Return the job that was started for the plan of a run directory.

    Raises:
        RecordError: no such run, or it has a record already.
    """
    folder = folder.absolute()
    if (folder / RECORD_FILE).exists():
        raise RecordError(
            "the record exists already", where=str(folder), fix="`trainmark report` prints it"
        )
    try:
        plan = Plan.read(folder).model_copy(update={"run_dir": str(folder)})
        cluster = Cluster.model_validate_json((folder / CLUSTER_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise RecordError(
            f"not a run of a launcher: {in_words(error)}",
            where=str(folder),
            rule=f"it needs plan.json and {CLUSTER_FILE}",
        ) from None
    if not (folder / LAUNCHER_FILE).exists():  # a pasted script
        run_dir.begin_run(plan, folder, {}).close()
    require_launcher(cluster, plan.launcher)
    return EngineJob(plan, cluster)


def follow(
    job: EngineJob, request: StopRequest, on_poll: Callable[[str], None] = lambda _: None
) -> Record:
    """Wait for the end of ``job``, collect what its nodes left, and return the record.

    Args:
        request: the job is cancelled as soon as it holds a signal.
        on_poll: called about once a second with what the engine says.

    Raises:
        RecordError: another process follows it.
    """
    folder, launcher = job.folder, launchers.load_launcher(job.plan.launcher)
    with ExitStack() as stack:
        try:
            stack.enter_context(run_dir.lock_folder(folder))
        except BlockingIOError:
            raise RecordError("another process follows the job", where=str(folder)) from None
        stop = _wait_for_end(launcher, job, request, on_poll)
        try:
            launcher.collect(job)
        except EnvironmentFault as fault:
            print(f"trainmark: files of nodes are missing: {fault}", file=sys.stderr)
        return _finish(folder, stop)


def _wait_for_end(
    launcher: Launcher, job: EngineJob, request: StopRequest, on_poll: Callable[[str], None]
) -> dict[str, Any] | None:
    """Wait until the job ended, or does not although told to; return why it was told to."""
    state, stop = JobState(phase="waiting", said="submitted"), None
    deadline_s = give_up_s = cancel_s = inf
    ask_s = 0.0
    while state.phase in ("waiting", "running") and time.monotonic() < give_up_s:
        now_s, before = time.monotonic(), state
        if now_s >= ask_s:
            state, ask_s = _ask_state(launcher, job, before), now_s + launcher.poll_s
        if state != before:
            _emit_state(job.folder, state)
        on_poll(state.said)
        if state.phase == "running":
            deadline_s = min(deadline_s, now_s + compute_job_limit_s(job.plan))
        if stop is None and (request.signal_name or now_s > deadline_s):
            stop = {"reason": "timeout", "timeout_s": float(job.plan.recipe["timeout_s"])}
            if request.signal_name:
                stop = {"reason": "signal", "signal": request.signal_name}
            give_up_s, cancel_s = now_s + _CANCEL_PATIENCE_S, now_s
        if state.phase in ("waiting", "running"):
            if now_s >= cancel_s:
                cancel_s, ask_s, job.cancels = now_s + _CANCEL_AGAIN_S, now_s, job.cancels + 1
                with suppress(EnvironmentFault):  # the state shows that it is still there
                    launcher.cancel(job)
            time.sleep(_POLL_S)
    return stop


def _ask_state(launcher: Launcher, job: EngineJob, before: JobState) -> JobState:
    """Return where a job is; where it was, while its engine does not answer."""
    try:
        return launcher.state(job)
    except EnvironmentFault as fault:
        return replace(before, said=fault.what)


def _emit_state(folder: Path, state: JobState) -> None:
    events = EventWriter(folder / JOB_EVENTS_FILE, time.perf_counter_ns)
    events.emit("job", **asdict(state))
    events.close()


def _finish(folder: Path, stop: dict[str, Any] | None) -> Record:
    events = EventWriter(folder / LAUNCHER_FILE, time.perf_counter_ns)
    if stop is not None:
        events.emit("stop", **stop)
    return run_dir.finish_run(folder, events)


def launch(
    plan: Plan, cluster: Cluster, request: StopRequest, on_poll: Callable[[str], None]
) -> Record:
    """Submit ``plan`` and follow it to its record, also where the engine refuses the job."""
    start = prepare_job(plan, cluster)
    try:
        job = start()
    except TrainmarkError as fault:
        refused = JobState(phase="lost", said=str(fault.what)[:2000])
        _emit_state(Path(plan.run_dir), refused)
        return _finish(Path(plan.run_dir), None)
    return follow(job, request, on_poll)
