"""Turn Criteo's click logs into the binary form, whole or not at all.

Owns the options, the order of the stages and what of them an earlier call has finished: read
every log, number the categories, encode every part, write every split. The bytes are the same
for any number of threads and of interruptions. The default rules are those of the published
runs, which NVIDIA's DLRM preprocessing with Spark made.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.data import prepared_first as prepared

from ..data.layout import PUBLISHED_RULES, FeatureSpec
from ..data.spec_file import write_spec
from . import tables
from .sources import SPLITS, find_sources, is_gzip, refuse_cut_off, split_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trainmark.data.prepared_first import Say, Unfinished

FORMAT = 2
WORK = "work"  # folder of what leads to the files, removed at the end
BUCKET_ROWS = 1 << 22  # sorted and written at once
COMPRESSION = 3  # bytes of a log over those of its gzip, about, for the published days


def prepare(raw: Path, data: Path, say: Say, *, workers: int | None = None, **options: Any) -> None:
    """Write ``data``: the files of each split, ``feature_spec.yaml`` and a manifest.

    Frequencies are those in all rows, of all splits. Of days, the last is cut into test and
    validation; of a single log, the last seventh is the test. Both keep their order.

    Args:
        raw: folder with day_0, day_1, … or train.txt, plain or gzip; or a single log.
        say: called with each line of progress.
        workers: threads; none: as many as there are usable cores.
        options: the rules, within what the case declares; those of the published runs where
            left out.

            - frequency_threshold: rarer categories share number 0; 15.
            - log_offset: 3: numbers are ``log(x + 3)``, and 0 where the cell is empty or the
              logarithm does not exist. 1: they are ``log(x + 1)``, negative and empty ones 0.
            - order: of the rows to train on, ``shuffled`` by ``seed`` or as in the ``input``.
            - seed: of that order; 0.
            - empty_category: an empty cell counts as ``rare``, or as a category of its ``own``.

    Raises:
        DataError: the logs are missing or damaged, or ``data`` is not this call's to write.
        EnvironmentFault: duckdb is missing, no room, no memory or no permission.
    """
    threads = len(os.sched_getaffinity(0)) if workers is None else workers
    rules = {**PUBLISHED_RULES, "seed": 0, **options}
    tables.require_duckdb()
    with prepared.alone(data, say) as folder:
        _prepare(raw.resolve(), folder, say, rules, threads)


def _prepare(raw: Path, data: Path, say: Say, rules: dict[str, Any], threads: int) -> None:
    prepared.refuse_inside(data, raw)
    sources = find_sources(raw)
    for path in sources.values():
        refuse_cut_off(path)
    stamps = prepared.stamps(sources)
    say(f"{len(stamps)} files: taking their sha256")
    prints = prepared.fingerprints(sources)
    made_of = {"format": FORMAT, "case": "dlrm_criteo", "sources": prints, **rules}
    fresh: dict[str, Any] = {"done": {}, "rows": {}}
    salvage = partial(_keep_logs, prints)
    unfinished = prepared.resume(data, made_of=made_of, fresh=fresh, say=say, salvage=salvage)
    if unfinished is None:
        return
    folder, work = unfinished.partial, unfinished.partial / WORK
    if not (work / tables.SCRATCH).exists():
        unfinished.manifest["done"].clear()
    work.mkdir(exist_ok=True)
    with unfinished.worth_keeping("done"):
        _refuse_small_disk(sources, folder)
        with tables.database(work, threads) as db:
            spec = _stages(db, sources, unfinished, say)
    prepared.refuse_changed(sources, stamps, unfinished)
    say("taking the sha256 of what was written")
    write_spec(folder, spec.cardinalities, rules=rules)
    for file in [folder / "feature_spec.yaml", *sorted(folder.glob("*/*.bin"))]:
        unfinished.keep(file.relative_to(folder).as_posix())
    unfinished.manifest["done"] = {}
    shutil.rmtree(work)
    unfinished.finish(say)


def _keep_logs(sources: list[dict[str, Any]], unfinished: Unfinished) -> bool:
    """Leave what was read of files that are as they were; the rest depends on all or on rules.

    So a day that was fetched again, or another threshold, costs no day that is still read.
    """
    manifest, done = unfinished.manifest, unfinished.manifest["done"]
    same = [source["name"] for source in sources if source in manifest["sources"]]
    read = [f"read {name}" for name in same if f"encode {name}" not in done]
    manifest["done"] = {name: done[name] for name in read if name in done}
    for split in SPLITS:
        shutil.rmtree(unfinished.partial / split, ignore_errors=True)
    return bool(manifest["done"])


def _refuse_small_disk(sources: Mapping[str, Path], folder: Path) -> None:
    """Refuse before hours of reading what the disk will not take."""
    logs = [log.stat().st_size * (COMPRESSION if is_gzip(log) else 1) for log in sources.values()]
    need = sum(logs) + max(logs)
    there = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    rule = "tables and files take about as much room as the plain logs, the largest as much again"
    prepared.refuse_full(folder, need - there, rule=rule)


def _stages(db: Any, sources: dict[str, Path], unfinished: Unfinished, say: Say) -> FeatureSpec:
    """Do every stage that the manifest does not list as done; return what was written."""
    manifest, done = unfinished.manifest, unfinished.manifest["done"]

    def once(name: str, stage: Callable[..., Any], *args: Any) -> Any:
        if name not in done:
            done[name] = stage(*args)
            unfinished.save()
            say(f"done: {name}")
        return done[name]

    rows = {}
    for number, (name, path) in enumerate(sources.items()):
        rows[path] = once(f"read {name}", tables.read_log, db, number, path)
    parts = dict(enumerate(split_rows(rows)))
    sizes = once("number categories", tables.number_categories, db, len(rows), manifest)
    say(f"tables of {', '.join(f'{size:,}' for size in sizes)} rows")
    for number, name in enumerate(sources):
        own = {p: part for p, part in parts.items() if part.source == number}
        once(f"encode {name}", tables.encode, db, number, own, sizes, manifest)
    spec = FeatureSpec.of(unfinished.partial, sizes)
    for split in SPLITS:
        own = {p: part for p, part in parts.items() if part.split == split}
        count = manifest["rows"][split] = sum(part.end - part.start for part in own.values())
        folder = unfinished.partial / split
        files = {folder / file.name: size for file, size in spec.row_bytes("train").items()}
        keys = tables.KEYS if tables.is_shuffled(split, manifest) else count
        turns, first = -(-count // BUCKET_ROWS), 0
        for turn in range(turns):
            folder.mkdir(exist_ok=True)
            name = f"write {split} {turn + 1} of {turns}"
            old = done.get(name)
            if old and old["sha256"] != tables.digest(files, first, old["rows"]):
                del done[name]
            between = range(keys * turn // turns, keys * (turn + 1) // turns)
            read = partial(tables.encoded_rows, db, [*own], spec, manifest, between)
            first += once(name, tables.write_rows, files, first, read)["rows"]
        assert first == count, f"{split}: {first} of {count} rows were written"
    return spec
