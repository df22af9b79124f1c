"""Turn Criteo's click logs into the binary form, whole or not at all.

Owns the steps and what the manifest says: count the categories of every file, number the
frequent ones, encode every file. What a step has finished of a file is kept when a call is
stopped. The bytes are the same for any number of threads and of interruptions.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark import preparing
from trainmark.errors import DataError, TrainmarkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainmark.preparing import Say, Unfinished

    from .prepare_sources import Sources

FORMAT = 1
SPEC = "feature_spec.yaml"
FREQUENCY_THRESHOLD = 15
MAX_WORKERS = 512


def prepare(
    raw: Path,
    data: Path,
    say: Say,
    *,
    frequency_threshold: int = FREQUENCY_THRESHOLD,
    workers: int | None = None,
) -> None:
    """Write ``data``: the files of each split, ``feature_spec.yaml`` and a manifest.

    Frequencies are those in all rows, of all splits. Of days, the last is cut into test and
    validation; of a single log, the last seventh is the test.

    Args:
        raw: folder with day_0, day_1, … or train.txt, plain or gzip; or a single log.
        say: called with one line for each thing done, kept or found.
        frequency_threshold: rarer categories share number 0.
        workers: threads; none: as many as there are usable cores.

    Raises:
        UsageError: a threshold or a number of workers that cannot be.
        DataError: the logs are missing or damaged, or ``data`` is not this call's to write.
        EnvironmentFault: no room or no permission.
    """
    from .prepare_counts import MOST

    count = len(os.sched_getaffinity(0)) if workers is None else workers
    _refuse_outside("frequency_threshold", frequency_threshold, MOST)
    _refuse_outside("workers", count, MAX_WORKERS)
    with preparing.alone(data) as folder:
        try:
            _prepare(raw.resolve(), folder, say, frequency_threshold, count)
        except KeyboardInterrupt:
            say("interrupted; call again to go on after the last finished file")
            raise


def _refuse_outside(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        option = "--" + name.replace("_", "-")
        raise UsageError(
            f"{option} is {value}", where=option, rule=f"a whole number from 1 to {most}",
            remedy="leave it out for the default",
        )  # fmt: skip


def _prepare(raw: Path, data: Path, say: Say, threshold: int, threads: int) -> None:
    from .prepare_sources import find_sources, refuse_cut_off
    from .prepare_steps import Steps

    preparing.refuse_inside(data, raw)
    sources = find_sources(raw)
    refuse_cut_off(sources)
    stamps = _stamps(sources)
    size_bytes = sum(size for size, _ in stamps.values())
    say(f"{len(stamps)} files, {size_bytes / 1e6:,.1f} MB: taking their sha256")
    prints = preparing.fingerprints(sources.files)
    made_of = {
        "format": FORMAT,
        "case": "dlrm_criteo",
        "sources": prints,
        "frequency_threshold": threshold,
    }
    fresh: dict[str, Any] = {
        "counted": {},
        "vocabulary": [],
        "encoded": {},
        "rows": {},
        "cardinalities": [],
    }
    unfinished = preparing.resume(
        data, made_of=made_of, fresh=fresh, say=say,
        salvage=partial(_keep_counts, sources=prints, fresh=fresh),
    )  # fmt: skip
    if unfinished is None:
        return
    pool = ThreadPoolExecutor(threads, "prepare")
    try:
        Steps(sources, unfinished, say, pool, threads).all()
    except TrainmarkError:
        if not unfinished.manifest["counted"]:
            unfinished.discard()  # nothing in it is worth going on with
        else:
            say("what was counted is kept; call again when this is mended")
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if _stamps(sources) != stamps:
        unfinished.discard()
        raise DataError(
            "a file changed while it was read", where=str(raw),
            rule="the manifest names the bytes that were encoded",
            remedy="call again when nobody writes to it",
        )  # fmt: skip
    _finish(unfinished, say)


def _keep_counts(
    unfinished: Unfinished, *, sources: list[dict[str, Any]], fresh: Mapping[str, Any]
) -> bool:
    """Leave the counts of those files that are as they were; nothing else depends on one file.

    So a day that was fetched again, or another threshold, costs no day that was counted.
    """
    from .prepare_sources import SPLITS

    manifest = unfinished.manifest
    same = {source["name"] for source in sources if source in manifest["sources"]}
    counted = {name: found for name, found in manifest["counted"].items() if name in same}
    runs = {run["file"] for found in counted.values() for run in found["runs"]}
    files = {name: found for name, found in unfinished.files.items() if name in runs}
    manifest.update(deepcopy(dict(fresh)), counted=counted, files=files)
    for split in SPLITS:  # rows are written to their places: longer files must not stay below
        shutil.rmtree(unfinished.partial / split, ignore_errors=True)
    return bool(counted)


def _stamps(sources: Sources) -> dict[str, tuple[int, int]]:
    """Return size and time of change of every file."""
    found = {name: file.stat() for name, file in sources.files.items()}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def _finish(unfinished: Unfinished, say: Say) -> None:
    """List the finished files, remove what led to them, give the folder its name."""
    from .layout import write_spec
    from .prepare_encode import row_bytes
    from .prepare_steps import COUNTS, VOCABULARY

    manifest = unfinished.manifest
    say("taking the sha256 of what was written")
    for split, rows in manifest["rows"].items():
        for name in row_bytes(manifest["cardinalities"]):
            if rows:
                unfinished.keep(f"{split}/{name}")
    write_spec(unfinished.partial, manifest["cardinalities"])
    unfinished.keep(SPEC)
    manifest.update(counted={}, vocabulary=[], encoded={})
    for name in [name for name in unfinished.files if name.startswith((COUNTS, VOCABULARY))]:
        del unfinished.files[name]
    unfinished.save()
    for name in (COUNTS, VOCABULARY):
        shutil.rmtree(unfinished.partial / name)
    unfinished.finish()
    say(f"done: {unfinished.data}")
