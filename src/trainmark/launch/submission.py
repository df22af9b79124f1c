"""Submit a run to a launcher's engine, follow its job, and make the record from the nodes' files.

The nodes measure and write files; this process waits, shows the engine's state, cancels the job and
collects the files. It may end before the job: ``attach`` continues from the run directory.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import EnvironmentFault, RecordError, TrainmarkError
from trainmark.events.schema import JOB_EVENTS_FILE, LAUNCHER_FILE, EventWriter
from trainmark.launch import launchers, run_dir
from trainmark.launch.cluster import Cluster
from trainmark.launch.launchers import EngineJob, JobState, compute_job_limit_s
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.record.record import RECORD_FILE
from trainmark.validation import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.launchers import EngineCommand, Launcher
    from trainmark.launch.processes import StopRequest
    from trainmark.record.record import Record

_POLL_S = 1.0
_CANCEL_PATIENCE_S = 90.0  # from the first cancel until a job that ignores it is left alone
_CANCEL_INTERVAL_S = 30.0  # a second cancel may use more force, as in ``Slurm.cancel``
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


def prepare_job(plan: Plan, cluster: Cluster) -> Callable[[], EngineJob]:
    """Check the plan, create the run directory, and return a function that starts the job.

    An error of this call means that there is no run. After it the run exists, and an error of the
    returned function means that the engine refused the job.

    Raises:
        TrainmarkError: a check failed, or the run directory cannot be written; nothing was
            started.
    """
    require_launcher(cluster, plan.launcher).check(plan, cluster)
    command = build_command(plan, cluster)
    folder = Path(plan.run_dir)
    with run_dir.create_run_dir(folder):
        # The files come first: if they cannot be written, there is no run.
        try:
            for name, content in command.files.items():
                (folder / name).write_text(content, encoding="utf-8")
        except OSError as error:
            raise run_dir.build_write_fault(folder, error) from error
        # The nodes describe their environments themselves.
        run_dir.begin_run(plan, folder, environment={}).close()
    # From here on the lock is free, but the files keep other runs out of the folder.
    return lambda: launchers.start_job(command, plan, cluster)


def build_command(plan: Plan, cluster: Cluster) -> EngineCommand:
    """Return the command that starts ``plan``; its files include the plan and the cluster file."""
    command = launchers.load_launcher(plan.launcher).build_command(plan, cluster)
    # ``attach`` reads these files, and so do nodes that share the run directory. They belong to the
    # command, so that they also exist if a user starts it by hand.
    files = {
        PLAN_FILE: plan.model_dump_json(indent=2),
        CLUSTER_FILE: cluster.model_dump_json(indent=2, exclude_defaults=True) + "\n",
    }
    return replace(command, files=files | dict(command.files))


def attach(folder: Path) -> EngineJob:
    """Return the job that was started for the plan of a run directory.

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
    return EngineJob(plan, cluster)


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
    launcher = launchers.load_launcher(job.plan.launcher)
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


class _JobWatch:
    """Waits for the end of a job; cancels it on a stop signal and after its time limit.

    Times are seconds of the monotonic clock.

    Args:
        launcher: asks the engine for the job's state, and cancels the job.
        stop: holds the name of a stop signal once one has arrived.
    """

    def __init__(self, launcher: Launcher, job: EngineJob, stop: StopRequest) -> None:
        self._launcher = launcher
        self._job = job
        self._stop = stop
        self.state = JobState(phase="waiting", description="submitted")
        # Why the job is cancelled, as fields of the event ``stop``; None: it is not.
        self.stop_event: dict[str, Any] | None = None
        self._next_query_at_s = 0.0  # when the engine is next asked for the job's state
        self._deadline_s = inf  # set when the job runs: the time in a queue does not count
        # Both are set when the job is to be cancelled.
        self._next_cancel_at_s = inf  # moves on with each cancel, until the job ends
        self._give_up_at_s = inf  # end of the wait for a job that ignores being cancelled

    def is_over(self, now_s: float) -> bool:
        """Tell whether the job has ended, or has ignored being cancelled for too long."""
        return not self._is_alive or now_s >= self._give_up_at_s

    def update_state(self, now_s: float) -> None:
        """Query the job's state if that is due; keep the state if the engine does not answer."""
        if now_s < self._next_query_at_s:
            return
        self._next_query_at_s = now_s + self._launcher.poll_s
        try:
            state = self._launcher.read_state(self._job)
        except EnvironmentFault as fault:
            # The phase stays: an engine that does not answer has not ended the job.
            state = replace(self.state, description=fault.what)
        if state != self.state:
            self.state = state
            _emit_state(self._job.folder, state)

    def cancel_if_due(self, now_s: float) -> None:
        """Cancel the job on a stop signal and after its time limit, repeatedly until it ends."""
        # The job has just begun to run: its time limit counts from now.
        if self.state.phase == "running" and self._deadline_s == inf:
            self._deadline_s = now_s + compute_job_limit_s(self._job.plan)
        if self.stop_event is None:
            self.stop_event = self._find_reason_to_stop(now_s)
            if self.stop_event is not None:
                self._next_cancel_at_s = now_s
                self._give_up_at_s = now_s + _CANCEL_PATIENCE_S
        if self._is_alive and now_s >= self._next_cancel_at_s:
            self._cancel(now_s)

    @property
    def _is_alive(self) -> bool:
        """Tell whether the job waits or runs."""
        return self.state.phase in ("waiting", "running")

    def _find_reason_to_stop(self, now_s: float) -> dict[str, Any] | None:
        """Return why the job must be cancelled, as fields of the event ``stop``; None: it need not.

        The reason is a stop signal or the time limit.
        """
        if self._stop.signal_name:
            return {"reason": "signal", "signal": self._stop.signal_name}
        if now_s > self._deadline_s:
            # The event has the run's own limit. The deadline is later, because the nodes should end
            # their ranks at that limit themselves.
            timeout_s = float(self._job.plan.recipe["timeout_s"])
            return {"reason": "timeout", "timeout_s": timeout_s}
        return None

    def _cancel(self, now_s: float) -> None:
        """Cancel the job, and query its state at the next poll."""
        self._next_cancel_at_s = now_s + _CANCEL_INTERVAL_S
        self._next_query_at_s = now_s
        self._job.num_cancels += 1  # Slurm's launcher kills the job from the second attempt on
        with suppress(EnvironmentFault):  # the state shows that the job still runs
            self._launcher.cancel(self._job)


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
    watch = _JobWatch(launcher, job, stop)
    while not watch.is_over(time.monotonic()):
        now_s = time.monotonic()
        watch.update_state(now_s)
        on_poll(watch.state.description)
        watch.cancel_if_due(now_s)
        if not watch.is_over(time.monotonic()):  # else there is nothing to wait for
            time.sleep(_POLL_S)
    return watch.stop_event


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
