"""The run directory, from its creation to the record in it.

Owns what the launcher, or the keeper in its place, writes before the ranks start and after
they ended.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import EnvironmentFault, TrainmarkError, escaped
from trainmark.launch import sampling
from trainmark.launch.contract import MISSING_FILE, SITE_FILE
from trainmark.launch.own_files import OwnFiles
from trainmark.plan.plan import Plan
from trainmark.rank.events import LAUNCHER_FILE, EventFile, EventWriter
from trainmark.record import building, evidence, index_of_run, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.record.record import Record

# Disk space reserved from the start and freed before the record is written, so that a full disk
# cannot prevent it. A record of 10,000 steps has about 0.3 MB.
RESERVE_FILE = ".reserve"
RESERVE_BYTES = 4 * 1024 * 1024


LOCK_FILE = ".lock"
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # from such file systems
_LOCK_POLL_S = 1.0


@contextmanager
def locked(folder: Path, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of a folder, which the kernel takes from a process that dies.

    Args:
        wait: called about once a second while another process holds it; None: do not wait.

    Raises:
        BlockingIOError: another process holds it, and there is no ``wait``.
    """
    with (folder / LOCK_FILE).open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if wait is None:
                    raise
                wait()
                time.sleep(_LOCK_POLL_S)
            except OSError as error:
                if error.errno not in _WITHOUT_LOCKS:
                    raise
                break
        yield


def create(run_dir: Path) -> None:
    """Create the folder of one run and reserve the disk space that its record needs.

    Raises:
        EnvironmentFault: it cannot be written, is in use, or the disk is too full.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        refuse_used(run_dir)
        with (run_dir / RESERVE_FILE).open("xb") as file:  # x: only one of two launches succeeds
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
    except FileExistsError:
        raise _in_use(run_dir) from None
    except OSError as error:
        raise _cannot_write(run_dir, error) from error


def refuse_used(run_dir: Path) -> None:
    """Refuse a folder that holds anything.

    Raises:
        EnvironmentFault: a run never writes into another run's folder.
    """
    if run_dir.is_dir() and any(run_dir.iterdir()):
        raise _in_use(run_dir)


def _in_use(run_dir: Path) -> EnvironmentFault:
    return EnvironmentFault(
        "the folder is not empty" if run_dir.is_dir() else "not a folder",
        where=str(run_dir),
        rule="a run never writes into another run's folder",
        remedy="choose another --out",
    )


def _cannot_write(run_dir: Path, error: OSError) -> EnvironmentFault:
    """Free the reserved space and return why a run cannot be written there."""
    if error.errno == errno.ENOSPC:
        (run_dir / RESERVE_FILE).unlink(missing_ok=True)
        what = f"less than {2 * RESERVE_BYTES >> 20} MiB are free"
        remedy = "free some space, or choose --out on another disk"
    else:
        what = f"cannot write there: {error.strerror}"
        remedy = "choose an --out with write permission"
    return EnvironmentFault(what, where=str(run_dir), remedy=remedy)


def begin(plan: Plan, run_dir: Path, described: dict[str, Any]) -> OwnFiles:
    """Write the plan and the launcher's first event; from here on the run exists."""
    try:
        plan.save(run_dir)
        events = EventWriter(run_dir / LAUNCHER_FILE, time.perf_counter_ns)
        events.emit(
            "launch",
            unix_ns=time.time_ns(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            argv=[Path(sys.argv[0]).name, *sys.argv[1:]],
            environment=described,
        )
        return OwnFiles.written(plan.run_id, run_dir, events)
    except OSError as error:
        raise _cannot_write(run_dir, error) from error


def finish(own: OwnFiles, *, stop: dict[str, Any] | None, ended: dict[str, Any] | None) -> Record:
    """Write the launcher's last events and the record, after every process has ended.

    Args:
        stop: why the ranks were stopped from outside.
        ended: how they ended; None if unknown.

    Raises:
        LostRunError: the folder was deleted, and no record can be written there.
    """
    lost = own.lost()
    if lost:
        own.restore()
        stop = {"reason": "files_lost", "files": lost}
    (own.run_dir / RESERVE_FILE).unlink(missing_ok=True)
    events = own.events
    if stop is not None:
        events.emit("stop", **stop)
    if ended is not None:
        kills = ended.pop("oom_kills")
        if kills:
            events.emit("oom_kills", count=kills)
        events.emit("agent_exit", **ended)
    events.emit("finished")
    events.close()
    return _leave_record(own.run_dir)


def finish_for_another(run_dir: Path) -> Record:
    """Finish the run of a launcher that was killed, after every rank has ended."""
    sampling.end(Plan.read(run_dir).run_id)  # the record holds the digest of what it wrote
    (run_dir / RESERVE_FILE).unlink(missing_ok=True)
    path = run_dir / LAUNCHER_FILE
    said = {event["event"] for event in EventFile(path)}
    events = EventWriter(path, time.perf_counter_ns)
    if not said & {"stop", "agent_exit"}:
        events.emit("stop", reason="launcher_killed")
    if "finished" not in said:
        events.emit("finished")
    events.close()
    return _leave_record(run_dir)


def _leave_record(run_dir: Path) -> Record:
    """Redact the evidence files, then write the record with their digests."""
    fault = f"{run_dir}: events and logs cannot be redacted"
    with _fault_said(fault, "pass on record.json alone, which is"):
        # Without real paths in it, the missing files could not be fetched.
        missing = (run_dir / MISSING_FILE).exists()
        evidence.redact(run_dir, but=SITE_FILE if missing else None)
    built = building.build(run_dir)
    record.write(built, run_dir)
    leave_index(built, run_dir)
    return built


def leave_index(built: Record, run_dir: Path) -> None:
    """Write the JSON records beside the written record; a failure is only printed."""
    fault = f"{run_dir / index_of_run.INDEX_DIR}: cannot be written"
    with _fault_said(fault, "`trainmark report RUN --format index` prints what belongs there"):
        index_of_run.write_index(built, run_dir)


@contextmanager
def _fault_said(what: str, way_out: str) -> Iterator[None]:
    """Print an error that does not affect the run."""
    try:
        yield
    except (OSError, TrainmarkError) as error:
        with suppress(OSError):  # standard error may be closed
            why = getattr(error, "strerror", None) or error
            print(escaped(f"trainmark: {what}: {why}\n  way out: {way_out}"), file=sys.stderr)
