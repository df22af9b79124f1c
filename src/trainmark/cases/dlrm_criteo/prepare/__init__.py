"""Turn Criteo's click logs into the binary form, whole or not at all.

Owns the options and the order of the stages: read every log, number the categories, encode
every part, write every split. A call that was stopped goes on after the last finished stage, whose
tables are in the scratch database. The bytes are the same for any number of threads. The default
rules are those of the published runs, which NVIDIA's DLRM preprocessing with Spark made.
"""

from __future__ import annotations

import os
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trainmark.data import prepared
from trainmark.extras import import_extra

from ..data.layout import PUBLISHED_RULES, FeatureSpec, write_spec
from . import tables
from .sources import SPLITS, find_sources, split_rows

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.prepared import PartialFolder, Say

    from .sources import RowRange

FORMAT = 2
BUCKET_ROWS = 1 << 22  # sorted and written at once


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
            - seed: of the order of the rows to train on; 0.

    Raises:
        DataError: the logs are missing or damaged, or ``data`` is not this call's to write.
        EnvironmentFault: duckdb is missing, no room, no memory or no permission.
    """
    threads = len(os.sched_getaffinity(0)) if workers is None else workers
    rules = {**PUBLISHED_RULES, "seed": 0, **options}
    import_extra("duckdb", where=raw)
    sources = find_sources(raw)
    with prepared.write_data_folder(
        data, raw, sources, say, case="dlrm_criteo", form=FORMAT, **rules
    ) as partial_folder:
        if partial_folder is None:
            return
        if not (partial_folder.work / tables.SCRATCH).exists():  # stages are those of its tables
            partial_folder.discard_results()
        with tables.open_database(partial_folder.work, threads) as db:
            rows = _read_rows(db, sources, partial_folder, threads)
            spec = _run_stages(db, sources, rows, partial_folder, rules)
        write_spec(partial_folder.folder, spec.cardinalities, rules=rules)


def _read_rows(
    db: Any, sources: dict[str, Path], partial_folder: PartialFolder, threads: int
) -> dict[Path, int]:
    """Read every log that no earlier call has read; return the rows of all."""
    report, finished = partial_folder.report, partial_folder.state["stages"]
    sizes = {name: path.stat().st_size for name, path in sources.items()}
    earlier = sum(size for name, size in sizes.items() if f"read {name}" in finished)
    report.begin("reading logs and counting categories", sum(sizes.values()), earlier)
    names = dict(enumerate(sources))
    missing = {n: sources[name] for n, name in names.items() if f"read {name}" not in finished}
    for number, rows in tables.read_logs(db, missing, threads):
        partial_folder.save_result(f"read {names[number]}", rows)
        report.advance(sizes[names[number]])
    return {path: finished[f"read {name}"] for name, path in sources.items()}


def _run_stages(
    db: Any,
    sources: dict[str, Path],
    rows: dict[Path, int],
    partial_folder: PartialFolder,
    rules: dict[str, Any],
) -> FeatureSpec:
    """Do every stage after reading that no earlier call has finished; return what was written."""
    report = partial_folder.report
    parts = dict(enumerate(split_rows(rows)))
    number_all = partial(tables.assign_category_numbers, db, len(rows), rules)
    sizes = partial_folder.run_stage("number categories", number_all)
    report(f"tables of {', '.join(f'{size:,}' for size in sizes)} rows")
    report.begin("encoding rows", sum(rows.values()))
    for number, (name, path) in enumerate(sources.items()):
        parts_of_source = {p: part for p, part in parts.items() if part.source == number}
        partial_folder.run_stage(
            f"encode {name}", partial(tables.encode_rows, db, number, parts_of_source, sizes, rules)
        )
        report.advance(rows[path])
    spec = FeatureSpec.create(partial_folder.folder, sizes)
    report.begin("writing rows", sum(rows.values()))
    _write_splits(db, parts, spec, partial_folder, rules)
    return spec


def _write_splits(
    db: Any,
    parts: dict[int, RowRange],
    spec: FeatureSpec,
    partial_folder: PartialFolder,
    rules: dict[str, Any],
) -> None:
    """Write and count the rows of every split that no earlier call has written."""
    report = partial_folder.report
    for split in SPLITS:
        parts_of_split = {p: part for p, part in parts.items() if part.split == split}
        count = sum(part.end - part.start for part in parts_of_split.values())
        partial_folder.manifest["counts"][split] = count
        keys = tables.KEYS if split == "train" else count
        turns = -(-count // BUCKET_ROWS)
        bounds = [keys * turn // turns for turn in range(turns + 1)] if turns else []
        batches = (
            batch
            for between in pairwise(bounds)
            for batch in tables.read_encoded_rows(
                db, [*parts_of_split], spec, rules, range(*between)
            )
        )
        files = [partial_folder.folder / split / file.name for file in spec.get_row_types("train")]
        if f"write {split}" in partial_folder.state["stages"]:
            report.advance(count)
        elif count:
            files[0].parent.mkdir(exist_ok=True)
            write = partial(tables.write_rows, files, batches, report.advance)
            written = partial_folder.run_stage(f"write {split}", write)
            assert written == count, f"{split}: {written} of {count} rows were written"
