"""Submit a run to a launcher's engine, follow its job, and make the record from the nodes' files.

The nodes measure and write files; this process waits, shows the engine's state, cancels the job and
collects the files. It may end before the job: ``attach`` continues from the run directory.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import EnvironmentFault, RecordError, TrainmarkError
from trainmark.events.schema import JOB_EVENTS_FILE, LAUNCHER_FILE, EventWriter
from trainmark.launch import launchers, run_dir
from trainmark.launch.cluster import Cluster
from trainmark.launch.job_spec import NODE_MODULE, JobSpec
from trainmark.launch.job_watch import JobWatch
from trainmark.launch.launchers import EngineJob, JobState
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.record.record import RECORD_FILE
from trainmark.validation import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.launchers import EngineCommand, Launcher
    from trainmark.launch.processes import StopRequest
    from trainmark.record.record import Record

CLUSTER_FILE = "cluster.json"  # in the run directory: the settings that ``attach`` needs


def require_launcher(cluster: Cluster, name: str) -> Launcher:
    """Return a launcher that can be used on this machine.

    Raises:
        EnvironmentFault: a program or setting that it needs is missing.
    """
    reason = launchers.explain_unusable_launcher(name, cluster)
    if reason is not None:
        raise EnvironmentFault(
            f"launcher {name} cannot be used on this machine: {reason}",
            where="--launcher",
            fix="see `trainmark list launchers`, and docs/launchers.md for the requirements",
        )
    return launchers.load_launcher(name)


def describe_job(plan: Plan) -> JobSpec:
    """Return the job of a run: its nodes start the ranks, and end them at the run's time limit."""
    return JobSpec.from_plan(
        plan,
        node_module=NODE_MODULE,
        ends_with_a_node=True,
        timeout_s=float(plan.recipe["timeout_s"]),
    )


def prepare_job(plan: Plan, cluster: Cluster) -> Callable[[], EngineJob]:
    """Check the plan, create the run directory, and return a function that starts the job.

    An error of this call means that there is no run. After it the run exists, and an error of the
    returned function means that the engine refused the job.

    Raises:
        TrainmarkError: a check failed, or the run directory cannot be written; nothing was
            started.
    """
    spec = describe_job(plan)
    require_launcher(cluster, plan.launcher).check(spec, cluster)
    command = build_command(plan, cluster)
    folder = Path(plan.run_dir)
    with run_dir.create_run_dir(folder):  # locks the folder in the block
        try:
            for name, content in command.files.items():
                _write_file(folder / name, content)
            # The file of the launcher's events is closed: `follow` opens it again. The nodes
            # describe their environments themselves.
            run_dir.begin_run(plan, folder, environment={}).close()
        except EnvironmentFault:
            run_dir.remove_files(folder, command.files)
            raise
    # From here on the lock is free, but the files keep other runs out of the folder.
    return lambda: launchers.start_job(command, spec, cluster)


def _write_file(file: Path, content: str) -> None:
    """Write a file of a job into its folder.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise run_dir.build_write_fault(file.parent, error) from error


def build_command(plan: Plan, cluster: Cluster) -> EngineCommand:
    """Return the command that starts ``plan``; its files include the plan and the cluster file."""
    command = launchers.load_launcher(plan.launcher).build_command(describe_job(plan), cluster)
    # ``attach`` reads these files, and so do nodes that share the run directory. They belong to the
    # command, so that they also exist if a user starts it by hand.
    files = {
        PLAN_FILE: plan.model_dump_json(indent=2),
        CLUSTER_FILE: cluster.model_dump_json(indent=2, exclude_defaults=True) + "\n",
    }
    return replace(command, files=files | dict(command.files))


def attach(folder: Path) -> tuple[Plan, EngineJob]:
    """Return the plan of a run directory, and the job that was started for it.

    Raises:
        RecordError: the folder has a record already, or lacks a valid plan or cluster file.
        EnvironmentFault: this machine cannot use the launcher.
    """
    folder = folder.absolute()
    if (folder / RECORD_FILE).exists():
        raise RecordError(
            "the record already exists",
            where=str(folder),
            fix="run `trainmark report` to show the record",
        )
    try:
        # The folder that was given counts, not its path at the start of the run.
        plan = Plan.read(folder).model_copy(update={"run_dir": str(folder)})
        cluster = Cluster.model_validate_json((folder / CLUSTER_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise RecordError(
            f"not a run that a launcher started: {describe_error(error)}",
            where=str(folder),
            rule=f"the folder must contain plan.json and {CLUSTER_FILE}",
        ) from None
    # If the user started the job by hand, with the script that a dry run prints, the launcher's
    # first event is missing.
    if not (folder / LAUNCHER_FILE).exists():
        run_dir.begin_run(plan, folder, environment={}).close()
    require_launcher(cluster, plan.launcher)  # raises if this machine lacks its programs
    return plan, EngineJob(describe_job(plan), cluster)


def follow(
    job: EngineJob, stop: StopRequest, on_poll: Callable[[str], None] = lambda _: None
) -> Record:
    """Wait for the end of ``job``, collect its nodes' files, and return the record.

    Args:
        stop: the job is cancelled as soon as it holds a signal.
        on_poll: called about once a second with the engine's words about the job.

    Raises:
        RecordError: another process follows the job.
        LostRunError: the run directory was deleted meanwhile, or the disk is full.
    """
    folder = job.folder
    launcher = launchers.load_launcher(job.spec.launcher)
    with ExitStack() as stack:
        try:
            stack.enter_context(run_dir.lock_folder(folder))
        except BlockingIOError:
            raise RecordError(
                "another process is already following the job", where=str(folder)
            ) from None
        stop_event = _wait_for_end(launcher, job, stop, on_poll)
        try:
            launcher.collect(job)
        except EnvironmentFault as fault:  # the record then names nodes whose end is missing
            print(f"trainmark: files of nodes are missing: {fault}", file=sys.stderr)
        return _finish(folder, stop_event)


def _wait_for_end(
    launcher: Launcher, job: EngineJob, stop: StopRequest, on_poll: Callable[[str], None]
) -> dict[str, Any] | None:
    """Wait until the job has ended, or has ignored being cancelled for too long.

    Args:
        stop: the job is cancelled once it holds a stop signal.
        on_poll: called about once a second with the engine's words about the job.

    Returns:
        Why the job was cancelled, as fields of the event ``stop``; None: it was not.
    """
    watch = JobWatch(launcher, job)
    written_state = watch.state  # the first one, "submitted", needs no event
    stop_event: dict[str, Any] | None = None
    for state in watch.iterate_states():
        if state != written_state:
            _emit_state(job.folder, state)
            written_state = state
        on_poll(state.description)
        if stop_event is None:
            stop_event = _find_stop_reason(job.spec, stop, watch.running_s)
            if stop_event is not None:
                watch.cancel()
    return stop_event


def _find_stop_reason(spec: JobSpec, stop: StopRequest, running_s: float) -> dict[str, Any] | None:
    """Return why the job must be cancelled, as fields of the event ``stop``; None: it need not.

    The reason is a stop signal or the time limit.

    Args:
        running_s: for how many seconds the job has been running.
    """
    if stop.signal_name:
        return {"reason": "signal", "signal": stop.signal_name}
    if running_s > spec.engine_limit_s:
        # The event has the run's own limit. The engine's is longer, because the nodes should end
        # their ranks at that limit themselves.
        return {"reason": "timeout", "timeout_s": spec.timeout_s}
    return None


def _emit_state(folder: Path, state: JobState) -> None:
    """Write a state of the job into the run directory."""
    # If the directory was deleted or the disk is full, the job must still be watched and perhaps
    # cancelled: only the end of the run reports it.
    with suppress(OSError):
        events = EventWriter(folder / JOB_EVENTS_FILE, time.perf_counter_ns)
        events.emit("job", phase=state.phase, text=state.description)
        events.close()


def _finish(folder: Path, stop_event: dict[str, Any] | None) -> Record:
    """Write the end of a run, and its record.

    Args:
        stop_event: why the job was cancelled, as fields of the event ``stop``; None: it was not.

    Raises:
        LostRunError: the folder was deleted meanwhile, or the disk is full.
    """
    try:
        events = EventWriter(folder / LAUNCHER_FILE, time.perf_counter_ns)
        if stop_event is not None:
            events.emit("stop", **stop_event)
    except OSError as error:
        raise run_dir.build_lost_error(folder, error) from error
    return run_dir.finish_run(folder, events)


def launch(
    plan: Plan, cluster: Cluster, stop: StopRequest, on_poll: Callable[[str], None]
) -> Record:
    """Submit ``plan``, follow its job and return the record, also if the engine refuses the job.

    Args:
        stop: the job is cancelled as soon as it holds a signal.
        on_poll: called about once a second with the engine's words about the job.
    """
    start = prepare_job(plan, cluster)
    try:
        job = start()
    except TrainmarkError as fault:
        # ``lost`` stands for a refused job, too. The record then says so, with the first 2000
        # characters of the engine's words.
        state = JobState(phase="lost", description=str(fault.what)[:2000])
        _emit_state(Path(plan.run_dir), state)
        return _finish(Path(plan.run_dir), stop_event=None)
    return follow(job, stop, on_poll)
