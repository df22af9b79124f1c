"""Submit a run to a launcher's engine, follow its job, and make the record from what nodes left.

The nodes measure and write; this process waits, shows the engine's words, cancels, and collects.
It may end in between: ``attach`` goes on from the files in the run directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from trainmark.data import json_documents
from trainmark.errors import EnvironmentFault, RecordError, TrainmarkError
from trainmark.launch import launchers, run_dir
from trainmark.launch.contract import JOB_FILE, MISSING_FILE, SITE_FILE, JobState
from trainmark.launch.own_files import OwnFiles
from trainmark.launch.site import Site
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.rank.events import JOB_EVENTS_FILE, LAUNCHER_FILE, EventWriter
from trainmark.record import evidence, record
from trainmark.record.record import RECORD_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.contract import Command, Job, Launcher
    from trainmark.launch.stopping import StopRequest
    from trainmark.record.record import Record

_POLL_S = 1.0
_CANCEL_PATIENCE_S, _CANCEL_AGAIN_S = 90.0, 30.0
_LOST_GRACE_S = 30.0  # for the other nodes to fail by themselves
_GRACE_S = 300.0  # after the run's own time limit, which the nodes keep


def launcher_of(site: Site, name: str) -> Launcher:
    """Return a launcher that can be used here.

    Raises:
        UsageError: no launcher is called so.
        EnvironmentFault: what it needs is not here.
    """
    found = launchers.load(name)
    why = found.absent(site)
    if why is not None:
        raise EnvironmentFault(
            f"launcher {name} cannot be used here: {why}",
            where="--launcher",
            remedy="see `trainmark list launchers`, and docs/launchers.md for what each needs",
        )
    return found


def start(plan: Plan, site: Site) -> Job:
    """Check, create the run directory, and start the job.

    Raises:
        TrainmarkError: nothing was submitted.
    """
    launcher = launcher_of(site, plan.launcher)
    launcher.check(plan, site)
    command = launcher.command(plan, site)
    folder = Path(plan.run_dir)
    run_dir.create(folder)
    own = run_dir.begin(plan, folder, {})
    own.events.close()
    _write(folder, command, site)
    return launcher.start(command, plan, site)


def _told(site: Site) -> str:
    return site.model_dump_json(indent=2, exclude_defaults=True) + "\n"


def _write(folder: Path, command: Command, site: Site) -> None:
    for name, content in command.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    (folder / SITE_FILE).write_text(_told(site), encoding="utf-8")


def whole(command: Command, plan: Plan, site: Site) -> Command:
    """Return ``command`` with plan and site among its files, as its pasted text needs them."""
    own = {PLAN_FILE: plan.model_dump_json(indent=2), SITE_FILE: _told(site)}
    return replace(command, files=own | dict(command.files))


def submit(command: Command, folder: Path) -> str:
    """Run ``command`` in the run directory; return what it printed, kept if it is the job's id.

    Raises:
        EnvironmentFault: it failed, with what it said.
    """
    try:
        with (folder / JOB_FILE).open("w+b") if command.prints_job else TemporaryFile() as out:
            ended = subprocess.run(
                command.argv, cwd=folder, env=os.environ | dict(command.env), stdout=out,
                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            out.seek(0)
            printed, errors = (text.decode(errors="replace") for text in (out.read(), ended.stderr))
    except OSError as error:
        raise EnvironmentFault(f"{command.argv[0]}: {error.strerror}") from None
    if ended.returncode:
        said = (errors or printed).strip()[-2000:] or f"exit code {ended.returncode}"
        raise EnvironmentFault(f"the engine refused the job: {said}", where=command.argv[0])
    return printed


def folder_of(word: str, runs: Path) -> Path:
    """Return the run directory that ``word`` names, itself or by its job's id.

    Raises:
        RecordError: there is none below ``runs``, or several.
    """
    with suppress(OSError):  # longer than any name
        if word and Path(word).is_dir():
            return Path(word).absolute()
    found = [file.parent for file in sorted(runs.rglob(JOB_FILE)) if word in _words_of(file)]
    if len(found) > 1:  # another cluster, or one whose numbers began again
        found = [folder for folder in found if not (folder / RECORD_FILE).exists()] or found
    if len(found) == 1:
        return found[0].absolute()
    if found:
        raise RecordError(
            f"{len(found)} runs have a job {word!r}: {', '.join(map(str, found[:5]))}",
            where="JOB",
            remedy="name the folder of the run",
        )
    raise RecordError(
        f"no run directory and no job {word!r} below {runs}",
        where="JOB",
        remedy="name the folder that `--detach` printed, or give --runs",
    )


def _words_of(file: Path) -> list[str]:
    """Return the words of a small file that anybody may have written; none if it is no text."""
    try:
        return json_documents.read_bytes(file, max_bytes=4096).decode().split()
    except (OSError, ValueError):
        return []


def attach(folder: Path) -> tuple[Plan, Job]:
    """Return the plan of a run directory and the job that was started for it.

    Raises:
        RecordError: no such run, or it has a record already that lacks no node's files.
    """
    if (folder / RECORD_FILE).exists() and not (folder / MISSING_FILE).exists():
        raise RecordError(
            "the record exists already", where=str(folder), remedy="`trainmark show` prints it"
        )
    try:
        plan = Plan.read(folder).model_copy(update={"run_dir": str(folder)})
        site = Site.model_validate_json(json_documents.read_bytes(folder / SITE_FILE))
    except (OSError, ValueError) as error:
        raise RecordError(
            f"not a run of a launcher: {str(error).splitlines()[0]}",
            where=str(folder),
            rule=f"it needs plan.json and {SITE_FILE}",
        ) from None
    if not (folder / LAUNCHER_FILE).exists():  # a pasted script
        run_dir.begin(plan, folder, {}).events.close()
    return plan, launcher_of(site, plan.launcher).attach(plan, site)


@dataclass(slots=True)
class _Watch:
    """A job that is watched, and ended where it must be.

    Args:
        stop: why this process ended it; None if it did not.
    """

    plan: Plan
    job: Job
    request: StopRequest
    stop: dict[str, Any] | None = None
    state: JobState = field(default_factory=lambda: JobState(phase="waiting"))
    _lost: tuple[int, ...] = ()
    _lost_s: float = inf
    _started_s: float = inf
    _ending_s: float = inf  # since when it is being ended
    _asked_s: float = -inf  # when it was last told to end

    def over(self, now_s: float) -> bool:
        """Ask for the state and end the job where it must be; tell whether there is no more."""
        if self.state.phase == "ended" or now_s > self._ending_s + _CANCEL_PATIENCE_S:
            return True  # ended, or the engine does not end it: collect what is there
        self.state = self._named(self.job.state(), now_s)
        if self.state.phase == "running":
            self._started_s = min(self._started_s, now_s)
        if self.stop is None and self.state.phase != "ended":
            self.stop = self._reason_to_stop(now_s)
        # The other nodes of a lost one may wait for it until their time limit.
        if self.stop is not None or now_s > self._lost_s + _LOST_GRACE_S:
            self._ending_s = min(self._ending_s, now_s)
        if self._ending_s < inf and now_s >= self._asked_s + _CANCEL_AGAIN_S:
            self._asked_s = now_s
            self.job.cancel()
        return False

    def _named(self, state: JobState, now_s: float) -> JobState:
        """Return a state with the nodes that were lost before the job was ended for it."""
        if state.lost:
            self._lost, self._lost_s = state.lost, min(self._lost_s, now_s)
        if state.phase != "ended" or not self._lost:
            return state
        return replace(state, ending="node_lost", lost=self._lost)

    def _reason_to_stop(self, now_s: float) -> dict[str, Any] | None:
        if self.request.signal_name is not None:
            return {"reason": "signal", "signal": self.request.signal_name}
        limit_s = float(self.plan.recipe["timeout_s"])
        if now_s - self._started_s > limit_s + _GRACE_S:
            return {"reason": "timeout", "timeout_s": limit_s}
        return None


def follow(
    plan: Plan, job: Job, request: StopRequest, on_poll: Callable[[str], None] = lambda _: None
) -> Record:
    """Wait for the end of ``job``, collect what its nodes left, and return the record.

    Args:
        request: the job is cancelled as soon as it holds a signal.
        on_poll: called about once a second with what the engine says.
    """
    ended = False

    def wait() -> None:
        nonlocal ended
        on_poll("another process follows it")
        if request.signal_name is not None and not ended:
            ended = True
            job.cancel()

    with run_dir.locked(Path(plan.run_dir), wait):
        return _followed(plan, job, request, on_poll)


def _followed(plan: Plan, job: Job, request: StopRequest, on_poll: Callable[[str], None]) -> Record:
    folder = Path(plan.run_dir)
    if (folder / MISSING_FILE).exists() and (folder / RECORD_FILE).exists():
        return _fetch_missing(job, folder)
    if (folder / RECORD_FILE).exists():
        return record.read(folder)
    watch = _Watch(plan, job, request)
    events = EventWriter(folder / JOB_EVENTS_FILE, time.perf_counter_ns)
    known: JobState | None = None
    while not watch.over(time.monotonic()):
        if watch.state != known:
            known = watch.state
            events.emit("job", **asdict(known) | {"lost": list(known.lost)})
        on_poll(known.said)
        if known.phase != "ended":
            time.sleep(_POLL_S)
    events.close()
    try:
        job.collect()
    except EnvironmentFault as fault:
        (folder / MISSING_FILE).write_text(f"{fault}\n", encoding="utf-8")
        said = (
            f"files of nodes are missing: {fault}\n  `trainmark run --attach {folder}` fetches them"
        )
        print(f"trainmark: {said}", file=sys.stderr)
    return _finish(plan, folder, watch.stop)


def _fetch_missing(job: Job, folder: Path) -> Record:
    """Fetch what nodes still had when the record was made, which stays as it is.

    Raises:
        EnvironmentFault: a node cannot be reached; what was fetched stays.
    """
    job.collect()
    (folder / MISSING_FILE).unlink()
    evidence.redact(folder)
    return record.read(folder)


def _finish(plan: Plan, folder: Path, stop: dict[str, Any] | None) -> Record:
    events = EventWriter(folder / LAUNCHER_FILE, time.perf_counter_ns)
    own = OwnFiles.written(plan.run_id, folder, events)
    return run_dir.finish(own, stop=stop, ended=None)


def launch(plan: Plan, site: Site, request: StopRequest, on_poll: Callable[[str], None]) -> Record:
    """Submit ``plan`` and follow it to its record, also where the engine refuses the job."""
    try:
        job = start(plan, site)
    except TrainmarkError as fault:
        folder = Path(plan.run_dir)
        if not (folder / LAUNCHER_FILE).exists():
            raise  # before the run began
        state = {"phase": "ended", "said": str(fault.what)[:2000], "ending": "refused"}
        events = EventWriter(folder / JOB_EVENTS_FILE, time.perf_counter_ns)
        events.emit("job", **state, exit_code=None, lost=[])
        events.close()
        return _finish(plan, folder, None)
    return follow(plan, job, request, on_poll)
