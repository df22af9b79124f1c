"""Turn Criteo's click logs into the binary form, completely or not at all.

A source is a log; a part is consecutive rows of one source that belong to one split. The stages
are: read every log, number the categories, encode the rows, write every split. A call that was
interrupted resumes after its last finished stage, whose tables are in the scratch database. The
bytes do not depend on the number of threads. The default rules are those of the published runs,
which used NVIDIA's DLRM preprocessing with Spark.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trainmark.affinity import count_allowed_cores
from trainmark.data import prepared
from trainmark.extras import import_extra

from ..data.layout import PUBLISHED_RULES, FeatureSpec, write_spec
from . import tables
from .sources import SPLITS, find_sources, split_rows

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.prepared import PartialFolder, Say

    from .sources import RowRange

FORMAT = 2  # version of the format that is written, noted in the manifest
ROWS_PER_RANGE = 1 << 22  # rows that are sorted and written at once


def prepare(raw: Path, data: Path, say: Say, *, workers: int | None = None, **options: Any) -> None:
    """Write ``data``: the files of each split, ``feature_spec.yaml`` and a manifest.

    Frequencies of categories are counted over the rows of all splits. If ``raw`` has several days,
    the last one is divided into the test and the validation split. If it is a single log, its last
    seventh is the test split, without a validation split. Training rows are shuffled; the rows of
    the other splits keep their order.

    Args:
        raw: folder with day_0, day_1, … or train.txt, plain or gzip; or a single log.
        data: a missing or empty folder. If it was prepared from the same files with the same
            options, it stays as it is.
        say: called with each line of progress.
        workers: number of threads; None: one for each usable core.
        options: the rules that the case declares; the defaults are those of the published runs:

            - frequency_threshold (15): rarer categories share id 0.
            - log_offset (3): with 3, the number x becomes ``log(x + 3)``, or 0 if the cell is
              empty or the logarithm does not exist. With 1, x becomes ``log(x + 1)``, or 0 if the
              cell is empty or x is negative.
            - seed (0): of the order of the training rows.

    Raises:
        DataError: the logs are missing or damaged, or ``data`` has any other
            content.
        EnvironmentFault: duckdb is not installed, or memory, disk space or a permission is missing.
    """
    threads = count_allowed_cores() if workers is None else workers
    rules = {**PUBLISHED_RULES, "seed": 0, **options}
    import_extra("duckdb", where=raw)  # raises an error now if it is not installed
    sources = find_sources(raw)
    with prepared.write_data_folder(
        data, raw, sources, say, case="dlrm_criteo", format_version=FORMAT, **rules
    ) as partial_folder:
        if partial_folder is None:  # ``data`` is complete already
            return
        # Finished stages have their tables in the scratch database: without it they must run again.
        if not (partial_folder.work / tables.SCRATCH_FILE).exists():
            partial_folder.discard_results()
        with tables.open_database(partial_folder.work, threads) as db:
            rows = _read_logs(db, sources, partial_folder, threads)
            spec = _run_stages(db, sources, rows, partial_folder, rules)
        write_spec(partial_folder.folder, spec.cardinalities, rules=rules)


def _read_logs(
    db: Any, sources: dict[str, Path], partial_folder: PartialFolder, threads: int
) -> dict[Path, int]:
    """Read every log that no earlier call has read; return the number of rows of each log.

    Args:
        db: the scratch database, in which the rows of the logs become tables.
        sources: the logs by name.
        partial_folder: the data folder that is being written; it stores the results of stages.
        threads: maximum number of logs that are read at the same time.
    """
    report = partial_folder.report
    results = partial_folder.state["stages"]  # result of each finished stage, by its name
    sizes = {name: path.stat().st_size for name, path in sources.items()}
    finished_bytes = sum(size for name, size in sizes.items() if f"read {name}" in results)
    report.begin("reading logs and counting categories", sum(sizes.values()), finished_bytes)
    names = list(sources)
    # The logs by their number among all sources, with which the names of their tables end.
    unread_logs = {
        number: sources[name] for number, name in enumerate(names) if f"read {name}" not in results
    }
    for number, num_rows in tables.read_logs(db, unread_logs, threads):
        name = names[number]
        partial_folder.save_result(f"read {name}", num_rows)  # adds it to ``results``
        report.advance(sizes[name])
    return {path: results[f"read {name}"] for name, path in sources.items()}


def _run_stages(
    db: Any,
    sources: dict[str, Path],
    rows: dict[Path, int],
    partial_folder: PartialFolder,
    rules: dict[str, Any],
) -> FeatureSpec:
    """Run the stages that follow the reading of the logs; return the spec of the data folder.

    Stages that an earlier call has finished do not run again.

    Args:
        db: the scratch database, in which stages leave their tables.
        sources: the logs by name.
        rows: number of rows of each log, in the order of ``sources``.
        partial_folder: the data folder that is being written; it stores the results of stages.
        rules: options of ``prepare``.
    """
    report = partial_folder.report
    # Consecutive rows of one log that belong to one split, by the number of the part.
    parts = dict(enumerate(split_rows(rows)))
    # ``run_stage`` returns the stored result if an earlier call has finished the stage.
    assign_ids = partial(tables.assign_category_ids, db, len(rows), rules)
    # Of each categorical column, the number of ids: the rows of its embedding table.
    cardinalities = partial_folder.run_stage("number categories", assign_ids)
    report(f"tables of {', '.join(f'{cardinality:,}' for cardinality in cardinalities)} rows")
    report.begin("encoding rows", sum(rows.values()))
    for source, (name, path) in enumerate(sources.items()):
        parts_of_source = {number: part for number, part in parts.items() if part.source == source}
        encode = partial(tables.encode_rows, db, source, parts_of_source, cardinalities, rules)
        partial_folder.run_stage(f"encode {name}", encode)
        report.advance(rows[path])
    spec = FeatureSpec.create(partial_folder.folder, cardinalities)
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
    """Write every split that no earlier call has written; put their row counts into the manifest.

    Args:
        db: the scratch database, with the encoded rows of each part.
        parts: of all splits, by number. A part is a range of rows of one log that belongs to one
            split.
        spec: describes the files of a split.
        partial_folder: the data folder that is being written; it stores the results of stages.
        rules: options of ``prepare``.
    """
    report = partial_folder.report
    for split in SPLITS:
        part_numbers = [number for number, part in parts.items() if part.split == split]
        num_rows = sum(parts[number].end - parts[number].start for number in part_numbers)
        partial_folder.manifest["counts"][split] = num_rows
        if f"write {split}" in partial_folder.state["stages"]:
            report.advance(num_rows)
            continue
        if num_rows == 0:  # a single log has no validation split
            continue
        # ``get_row_types`` returns the types of rows by file. ``spec`` only has the splits that a
        # run reads, without validation; the files of all splits have the same names.
        names = [file.name for file in spec.get_row_types("train")]
        files = [partial_folder.folder / split / name for name in names]
        files[0].parent.mkdir(exist_ok=True)
        # Rows are written in the order of their keys. The keys of training rows are hashes, which
        # shuffle them; those of other rows are row numbers within the split, which keep the order.
        num_keys = tables.NUM_HASH_KEYS if split == "train" else num_rows
        # Rows are sorted one range of keys after the other, which bounds the memory.
        key_ranges = _divide_keys(num_keys, num_rows)
        batches = (
            batch
            for keys in key_ranges
            for batch in tables.read_encoded_rows(db, part_numbers, spec, rules, keys)
        )
        write = partial(tables.write_rows, files, batches, report.advance)
        num_written = partial_folder.run_stage(f"write {split}", write)
        assert num_written == num_rows, f"{split}: {num_written} of {num_rows} rows were written"


def _divide_keys(num_keys: int, num_rows: int) -> list[range]:
    """Divide the possible keys of a split into ranges of about equal width.

    The caller sorts the rows of one range at a time. A range has the keys of about
    ``ROWS_PER_RANGE`` rows or fewer.

    Args:
        num_keys: number of possible keys, from 0 on. The keys of the rows are evenly distributed
            among them; if they are hashes, there are many more possible keys than rows.
        num_rows: number of rows of the split, at least 1.
    """
    num_ranges = -(-num_rows // ROWS_PER_RANGE)  # rounded up
    bounds = [num_keys * number // num_ranges for number in range(num_ranges + 1)]
    return [range(begin, end) for begin, end in pairwise(bounds)]
