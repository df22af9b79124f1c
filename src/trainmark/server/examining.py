"""Examine a stranger's bundle in a process of its own, with bounds on its time and memory.

Whatever the bundle does to that process, the server answers others meanwhile and afterwards.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import re
import resource
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainmark.errors import EnvironmentFault, TrainmarkError
from trainmark.library.bundle.archive import ENDING, DiskFullFault, unpack
from trainmark.library.bundle.checking import checks
from trainmark.record import record
from trainmark.record.messages import render
from trainmark.server.changes import sync
from trainmark.server.refused import Refused

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

BUNDLE = f"bundle{ENDING}"
MOST_UNPACKED_BYTES = 4 << 30
MOST_RECORD_BYTES = 64 << 20  # the server reads records itself; one of a million steps has 27 MB
_MOST_MEMORY_BYTES = 8 << 30  # of addresses
_RUN_ID = re.compile(r"[A-Za-z0-9_.<>~-]{1,200}")  # with placeholders of redaction
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

# Not forked from a server with threads; from one that has imported what is needed, and no more.
_PROCESSES = multiprocessing.get_context("forkserver")


def examined(folder: Path, *, most_s: float = 600) -> dict[str, tuple[str, str]]:
    """Unpack and verify ``BUNDLE`` in its folder; return when all of it is on the disk.

    Args:
        most_s: seconds that this may take.

    Returns:
        The run's id and the digest of the record of each launch, by its place in ``folder``.

    Raises:
        Refused: the bundle does not verify, or cannot be verified here.
    """
    _PROCESSES.set_forkserver_preload(["__main__", __name__])
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_answer, args=(folder, most_s, theirs))
    process.start()
    theirs.close()
    try:
        told: dict[str, Any] = json.loads(ours.recv_bytes())
    except EOFError:
        process.join()
        if (process.exitcode or 0) > 0:  # a fault of ours, not a bound that a signal kept
            raise RuntimeError("verification failed; its traceback is on standard error") from None
        rule = f"at most {most_s} s and {_MOST_MEMORY_BYTES >> 30} GiB"
        raise Refused(422, "verification was ended", rule=rule) from None
    finally:
        ours.close()
        process.join()
    if "status" in told:
        raise Refused(**told)
    return {place: (run_id, digest) for place, run_id, digest in told["launches"]}


def full(error: OSError) -> Refused:
    """Return the refusal for a full disk; any other error is raised again."""
    if error.errno not in _DISK_FULL:
        raise error
    return Refused(507, "the server's disk is full", remedy="tell whoever runs it")


def _answer(folder: Path, most_s: float, answer: Connection) -> None:
    """Examine a bundle and send what came of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends in its own way
    signal.setitimer(signal.ITIMER_REAL, most_s)  # ends this process
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = _MOST_MEMORY_BYTES if hard < 0 else min(hard, _MOST_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    told: dict[str, Any]
    try:
        told = {"launches": _launches(folder)}
    except Refused as error:
        names = ("status", "what", "where", "rule", "remedy", "checks")
        told = {name: getattr(error, name) for name in names}
    answer.send_bytes(json.dumps(told).encode())


def _launches(folder: Path) -> list[tuple[str, str, str]]:
    try:
        bundle = unpack(folder / BUNDLE, folder, most_bytes=MOST_UNPACKED_BYTES)
        for file in bundle.manifest.files:
            if file.name.endswith(record.RECORD_FILE) and file.bytes > MOST_RECORD_BYTES:
                rule = f"a record has {MOST_RECORD_BYTES:,} bytes at most"
                raise Refused(413, f"{file.bytes:,} bytes", where=file.name, rule=rule)
        found = [asdict(check) | {"said": check.said} for check in checks(bundle)]
        _refuse_broken(found)
        digests = {file.name: file.sha256 for file in bundle.manifest.files}
        launches = [
            (place, record.read(folder / place).run_id, digests[f"{place}/{record.RECORD_FILE}"])
            for place in bundle.launches
        ]
        _refuse_names([run_id for _, run_id, _ in launches])
        for path in (*folder.rglob("*"), folder):
            sync(path)
    except Refused:
        raise
    except DiskFullFault as error:
        raise Refused(507, error.what) from None
    except EnvironmentFault as error:
        raise Refused(503, error.what) from None
    except TrainmarkError as error:
        where = (error.where or "").replace(f"{folder}/", "").removeprefix(f"{BUNDLE}: ")
        check = {"name": "archive", "state": "broken", "said": [], "place": ""}
        raise Refused(422, error.what, where=where, rule=error.rule, checks=[check]) from None
    except OSError as error:
        raise full(error) from None
    except MemoryError:
        raise Refused(422, "it needs too much memory") from None
    return launches


def _refuse_broken(found: list[dict[str, Any]]) -> None:
    broken = [check for check in found if check["state"] in ("broken", "unverifiable")]
    if broken:
        first = broken[0]
        raise Refused(
            422,
            f"it does not verify: {render(first['said'][0], 'en')}",
            where=f"{first['name']} {first['place']}".strip(),
            remedy="`trainmark verify` shows all; pack with the server's version of the program",
            checks=[x | {"said": [said.as_dict() for said in x["said"]]} for x in broken],
        )


def _refuse_names(run_ids: list[str]) -> None:
    """Refuse ids that are no name of a page, or that two launches have."""
    for run_id in run_ids:
        if not _RUN_ID.fullmatch(run_id) or run_ids.count(run_id) > 1:
            rule = "letters, digits and ._-, and each launch its own"
            raise Refused(422, "not the id of a run", where=f"run_id {run_id[:80]!r}", rule=rule)
