"""Create a run directory, and write the record into it, also after its launcher was killed."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from trainmark.errors import (
    EnvironmentFault,
    LostRunError,
    RecordError,
    TrainmarkError,
    escape_controls,
)
from trainmark.events.schema import LAUNCHER_FILE, EventFile, EventWriter
from trainmark.launch import processes
from trainmark.launch.environment import read_node_name
from trainmark.plan.plan import PLAN_FILE, Plan, read_plan
from trainmark.rank.failure import describe_failure
from trainmark.record import index_record, record, reduce
from trainmark.record.messages import render
from trainmark.spec import Message
from trainmark.validation import describe_error
from trainmark.witness.printed import list_outputs, read_printed, thin_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.plan.resolving import UnplannableError
    from trainmark.record.record import Record

LOCK_FILE = ".lock"  # held by the launcher, and by whoever makes the record later
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # from such file systems
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_END_PATIENCE_S = 2.0  # for a sampler whose launcher died


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder in the block; the kernel releases it if this process dies.

    Raises:
        BlockingIOError: another process holds it.
    """
    with (folder / LOCK_FILE).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            # The file system has no locks: the block runs without one.
        yield


def is_locked(folder: Path) -> bool:
    """Tell whether a process holds the lock of a folder, because its run is under way."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            # Shared, so that two processes that ask at the same time do not see each other's lock.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # there is no lock file, or the file system has no locks
    return False


@contextmanager
def create_run_dir(run_dir: Path) -> Iterator[None]:
    """Create the folder of one run and hold its lock in the block.

    Raises:
        EnvironmentFault: the folder cannot be written, or is in use.
    """
    with ExitStack() as stack:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            refuse_used(run_dir)  # before the file of the lock is written into it
            stack.enter_context(lock_folder(run_dir))
            refuse_used(run_dir)  # another launch may have come first
        except FileExistsError:
            raise _build_used_fault(run_dir) from None
        except BlockingIOError:  # of another run that begins in the folder, which is still empty
            raise _build_used_fault(run_dir, "another run uses the folder") from None
        except OSError as error:
            raise build_write_fault(run_dir, error) from error
        yield


def refuse_used(run_dir: Path) -> None:
    """Refuse a path that is a file, or a folder that holds anything.

    Raises:
        EnvironmentFault: it does. A run never writes into another run's folder.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise _build_used_fault(run_dir)
    # The file of the lock does not count: this run may hold the lock already.
    if run_dir.is_dir() and any(path.name != LOCK_FILE for path in run_dir.iterdir()):
        raise _build_used_fault(run_dir)


def refuse_unwritable(folder: Path) -> None:
    """Refuse a folder that this process may not write, or not create; write nothing.

    Raises:
        EnvironmentFault: it may not. The error is the one that writing would raise.
    """
    nearest = folder.absolute()  # what exists of the path
    while not os.path.lexists(nearest):  # false also below a file or an unreadable folder
        nearest = nearest.parent
    code = None
    if not nearest.is_dir():
        code = errno.ENOTDIR
    elif os.statvfs(nearest).f_flag & os.ST_RDONLY:
        code = errno.EROFS
    elif not os.access(nearest, os.W_OK | os.X_OK):
        code = errno.EACCES
    if code is not None:
        raise build_write_fault(folder, OSError(code, os.strerror(code)))


def _build_used_fault(run_dir: Path, what: str | None = None) -> EnvironmentFault:
    """Return the fault of a folder in which no run can begin.

    Args:
        what: the fault; None: the folder holds something, or is a file.
    """
    if what is None:
        what = "the folder is not empty" if run_dir.is_dir() else "not a folder"
    return EnvironmentFault(
        what,
        where=str(run_dir),
        rule="a run never writes to the folder of another run",
        fix="choose another --out",
    )


def build_write_fault(run_dir: Path, error: OSError) -> EnvironmentFault:
    """Return the fault of a folder into which a run cannot write."""
    fix = "choose an --out that is writable and has free space"
    return EnvironmentFault(
        f"cannot write to this folder: {error.strerror}", where=str(run_dir), fix=fix
    )


def begin_run(plan: Plan, run_dir: Path, environment: dict[str, Any]) -> EventWriter:
    """Write the plan and the launcher's first event; after this the run exists.

    Args:
        environment: description of this machine; empty if nodes describe themselves.

    Returns:
        The writer of the launcher's events.

    Raises:
        EnvironmentFault: the folder cannot be written; what was written is removed again.
    """
    try:
        plan.save(run_dir)
        events = EventWriter(run_dir / LAUNCHER_FILE, time.perf_counter_ns)
        emit_launch(events, [Path(sys.argv[0]).name, *sys.argv[1:]], environment)
    except OSError as error:
        remove_files(run_dir, (PLAN_FILE, LAUNCHER_FILE))
        raise build_write_fault(run_dir, error) from error
    return events


def remove_files(run_dir: Path, names: Iterable[str]) -> None:
    """Remove what was written of a run that did not begin, so that its folder stays unused."""
    for name in names:
        (run_dir / name).unlink(missing_ok=True)


def record_failed_planning(error: UnplannableError) -> Record:
    """Write and return the record of a run that never started, because code of its case failed.

    Raises:
        EnvironmentFault: the run directory cannot be made.
        LostRunError: the record cannot be written.
    """
    folder = Path(error.plan.run_dir)
    fault = error.fault
    assert fault.__cause__ is not None, "a case error has its cause"
    report = describe_failure(fault.__cause__, fault.place)
    # The argument ``text`` is the error's own text. A message without it is a fixed sentence for
    # this kind of error, which is written out here.
    text = report["message"]["args"].get("text")
    if text is None:
        text = render(Message(**report["message"]), "en")
    with create_run_dir(folder):
        events = begin_run(error.plan, folder, environment={})
        events.emit(
            "stop",
            reason="case_error",
            message=text,
            fix=fault.fix,
            type=report["type"],
            place=report["place"],
            traceback=report["traceback"],
        )
        return finish_run(folder, events)


def emit_launch(
    events: EventWriter, argv: list[str], environment: dict[str, Any], node: int | None = None
) -> None:
    """Write the first event of a launcher or a node.

    Args:
        argv: command line of the launcher; of a node, its module and its number.
        environment: description of this machine; empty if nodes describe themselves.
        node: number of the node; None: the launcher writes the event.
    """
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    events.emit(
        "launch",
        unix_ns=time.time_ns(),  # relates the events' clock, which has no date, to the date
        started=started,
        argv=argv,
        environment=environment,
        node=node,
        node_name=read_node_name(),
    )


def finish_run(run_dir: Path, events: EventWriter) -> Record:
    """End the launcher's events and write the record, after every process has ended.

    Raises:
        LostRunError: the folder was deleted meanwhile, or the disk is full.
    """
    try:
        # This writes nothing unless the run is one of a user's own program.
        _emit_printed_speeds(run_dir, events)
        events.emit("finished")
        events.close()
        new_record = reduce.reduce(run_dir)
        record.write_record(new_record, run_dir)
    except OSError as error:
        raise build_lost_error(run_dir, error) from error
    try:
        # The record in one line, which result collections import.
        index_record.write_index(new_record, run_dir)
    except (OSError, TrainmarkError) as error:  # the record itself has been written
        print(
            escape_controls(f"trainmark: {run_dir / index_record.INDEX_DIR}: {error}"),
            file=sys.stderr,
        )
    # The record was computed from its events just now.
    return new_record.model_copy(update={"verification": "verified"})


def build_lost_error(run_dir: Path, error: OSError) -> LostRunError:
    """Return the error of a record that cannot be written, with a fix for its cause."""
    if not run_dir.exists():
        fix = "start the run again, and keep the folder until the run ends"
    elif error.errno in _FULL_DISK:
        fix = f"free space, then run `trainmark report {run_dir}`"
    else:
        fix = f"make the folder writable, then run `trainmark report {run_dir}`"
    what = f"the record cannot be written: {error.strerror}"
    return LostRunError(what, where=str(run_dir), fix=fix)


def _emit_printed_speeds(run_dir: Path, events: EventWriter) -> None:
    """Write an event with the speeds that a program of the user's own printed.

    Of a program that printed very many, only some are kept, evenly spread: they are thinned out.
    """
    program = read_plan(run_dir).witness
    if program is None:
        return
    if program.spec.speed_line is not None:  # the user's pattern of the lines that have a speed
        speeds = read_printed(run_dir, program)  # its values are thinned out already
    else:  # without a pattern, known forms of lines are looked for
        # Imported here, because only such a program needs it.
        from trainmark.published.analysis.speeds import read_logged_speeds

        logged_speeds = read_logged_speeds(list_outputs(run_dir, program))
        speeds = [speed._asdict() | {"values": thin_out(speed.values)} for speed in logged_speeds]
    events.emit("printed", speeds=speeds)


def complete_records(folder: Path) -> None:
    """Make the missing records in the folder of a run, of its launches or of several runs.

    Launches of which no record can be made are skipped: those that still run, never began, are
    jobs of an engine such as Slurm, or cannot be read.

    Raises:
        RecordError: ``folder`` is the folder of a launch itself, and that launch is such a one.
    """
    # The folder is that of a launch, of a run with several launches, of the runs of a plan file, or
    # of several plan files.
    for prefix in ("", "*/", "*/*/", "*/*/*/"):
        for plan_file in sorted(folder.glob(f"{prefix}{PLAN_FILE}")):
            try:
                make_record(plan_file.parent)
            except RecordError:
                if plan_file.parent == folder:  # the caller asks for the record of this launch
                    raise


def make_record(folder: Path) -> None:
    """End the remaining processes of a launch and make its record, if its launcher did not.

    Raises:
        RecordError: the launch still runs, is a job of an engine such as Slurm, never began, or
            cannot be read.
    """
    if (folder / record.RECORD_FILE).exists():
        return
    try:
        plan = read_plan(folder)
    except RecordError as fault:
        raise RecordError(f"cannot be read: {fault}", where=str(folder)) from None
    # Node processes start the ranks on other machines or in a container: from here it cannot be
    # seen whether they have ended.
    if plan.node_processes:
        what = f"launcher {plan.launcher} started the run, and its job may still be running"
        fix = f"`trainmark run --attach {folder}` waits for the job and writes the record"
        raise RecordError(what, where=str(folder), fix=fix)
    try:
        with lock_folder(folder):
            # Another process may have made it before this one got the lock.
            if not (folder / record.RECORD_FILE).exists():
                _make_locked_record(plan, folder)
    except BlockingIOError:
        fix = "wait until the run ends, or stop it with Ctrl-C"
        raise RecordError("the run is still in progress", where=str(folder), fix=fix) from None
    except (OSError, ValueError) as error:
        what = f"cannot be read: {describe_error(error)}"
        raise RecordError(what, where=str(folder)) from None


def _make_locked_record(plan: Plan, folder: Path) -> None:
    """Make the record of a launch whose lock this process holds."""
    path = folder / LAUNCHER_FILE
    event_names = {event["event"] for event in EventFile(path)} if path.exists() else set()
    if "launch" not in event_names:
        fix = "delete the folder and start the run again"
        raise RecordError("the run never started", where=str(folder), fix=fix)
    # The process that samples the devices ends by itself after its launcher. It gets the time to
    # write its last reading; what runs after that is killed.
    psutil.wait_procs(processes.find_processes(plan.run_id), timeout=_END_PATIENCE_S)
    processes.kill_run(plan.run_id)
    events = EventWriter(path, time.perf_counter_ns)
    if not event_names & {"stop", "ranks_ended"}:  # killed before it could say how the run ended
        events.emit("stop", reason="launcher_killed")
    finish_run(folder, events)
