"""The three steps from click logs to the binary form: count, number, encode.

Owns their order and what of each an earlier call has finished. Must not know what is checked
before and listed after. Imports numpy: for use inside functions only.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError, EnvironmentFault

from .layout import largest_cardinality
from .prepare_counts import DayCounts, counts_of
from .prepare_encode import PartWriter, encode, file_types, part_is_sound, row_bytes
from .prepare_passes import Progress, work_on
from .prepare_rows import NUM_CATEGORIES
from .prepare_sources import SPLITS, no_row, split_rows
from .prepare_vocabulary import Vocabulary, number_column, read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from trainmark.preparing import Say, Unfinished

    from .prepare_rows import Columns
    from .prepare_sources import Sources

COUNTS, VOCABULARY = "counts", "vocabulary"


class Steps:
    """The three steps over one unfinished folder."""

    def __init__(
        self,
        sources: Sources,
        unfinished: Unfinished,
        say: Say,
        pool: Executor,
        threads: int,
    ) -> None:
        self._sources = sources
        self._unfinished = unfinished
        self._manifest = unfinished.manifest
        self._folder = unfinished.partial
        self._say = say
        self._pool = pool
        self._threads = threads
        self._total_bytes = sum(file.stat().st_size for file in sources.files.values())

    def all(self) -> None:
        """Do what no earlier call finished."""
        self._count()
        rows = {name: self._manifest["counted"][name]["rows"] for name in self._sources.files}
        parts = split_rows(self._sources, rows)
        if not self._sources.days:
            self._say("a single log: its last seventh is the test")
        self._number()
        self._encode(parts)

    def _count(self) -> None:
        counted = self._manifest["counted"]
        progress = Progress("counting", self._total_bytes, self._say)
        for name, path in self._sources.files.items():
            size_bytes = path.stat().st_size
            if name in counted and self._all_there(run["file"] for run in counted[name]["runs"]):
                progress.skip(size_bytes)
                continue
            counted.pop(name, None)
            day = DayCounts(self._unfinished, f"{COUNTS}/{name}", self._pool)
            for block, (counts, missing, rows) in work_on(
                path,
                lambda columns: (*counts_of(columns), len(columns)),
                self._pool,
                self._threads,
            ):
                day.add(counts, missing, rows)
                progress.at(name, block.read_bytes, day.rows)
            if not day.rows:
                raise no_row(path)
            counted[name] = day.close()
            progress.finish(size_bytes, day.rows)
            self._unfinished.save()
            self._say(f"counted {name}: {day.rows:,} rows")

    def _all_there(self, names: Iterable[str]) -> bool:
        return all(name in self._unfinished.files for name in names)

    def _number(self) -> None:
        """Number the categories of all columns, unless an earlier call did."""
        names = [f"{VOCABULARY}/{column}/{file}" for column in range(NUM_CATEGORIES)
                 for file in ("values.bin", "numbers.bin")]  # fmt: skip
        if not (self._manifest["vocabulary"] and self._all_there(names)):
            self._manifest["vocabulary"] = [
                self._number_column(column) for column in range(NUM_CATEGORIES)
            ]
            for name in names:
                self._unfinished.keep(name)
        sizes = [facts["cardinality"] for facts in self._manifest["vocabulary"]]
        self._manifest["cardinalities"] = sizes
        self._unfinished.save()
        self._say(f"tables of {', '.join(f'{size:,}' for size in sizes)} rows")

    def _number_column(self, column: int) -> dict[str, int]:
        days = self._manifest["counted"].values()
        runs = [read_run(self._folder, run, column) for day in days for run in day["runs"]]
        missing = sum(day["missing"][column] for day in days)
        threshold = self._manifest["frequency_threshold"]
        folder = self._folder / VOCABULARY / str(column)
        folder.mkdir(parents=True, exist_ok=True)
        facts = number_column(runs, missing, threshold, folder)
        if facts["cardinality"] > largest_cardinality("int32"):
            raise DataError(
                f"category column {column} has {facts['cardinality']:,} frequent categories",
                where="--frequency-threshold",
                rule=f"a table has at most {largest_cardinality('int32'):,} rows",
                remedy="ask for a higher threshold",
            )
        return facts

    def _encode(self, parts: Mapping[str, list[tuple[str, int, int]]]) -> None:
        vocabularies = [
            Vocabulary.open(self._folder / VOCABULARY / str(column), facts)
            for column, facts in enumerate(self._manifest["vocabulary"])
        ]
        cardinalities = self._manifest["cardinalities"]
        sizes = row_bytes(cardinalities)
        self._refuse_small_disk(sum(sizes.values()), parts)
        work = partial(encode, vocabularies=vocabularies, types=file_types(cardinalities))
        encoded = self._manifest["encoded"]
        progress = Progress("encoding", self._total_bytes, self._say)
        filled = dict.fromkeys(SPLITS, 0)
        for name, path in self._sources.files.items():
            firsts = dict(filled)
            for split, start, end in parts[name]:
                filled[split] += end - start
            if name in encoded and all(
                part_is_sound(self._folder / split, sizes, part)
                for split, part in encoded[name].items()
            ):
                progress.skip(path.stat().st_size)
                self._say(f"kept {name}: its sha256 fits")
                continue
            encoded[name] = self._encode_file(
                name, parts[name], sizes=sizes, firsts=firsts, work=work, progress=progress
            )
            self._unfinished.save()
            self._say(f"encoded {name}")
        self._manifest["rows"] = filled

    def _encode_file(
        self,
        name: str,
        parts: list[tuple[str, int, int]],
        *,
        sizes: Mapping[str, int],
        firsts: Mapping[str, int],
        work: Callable[[Columns], list[NDArray[Any]]],
        progress: Progress,
    ) -> dict[str, Any]:
        """Write one file's rows to where they belong; return its parts by split."""
        path, rows = self._sources.files[name], parts[-1][2]
        with ExitStack() as stack:
            writers = {
                split: stack.enter_context(PartWriter(self._folder / split, sizes, firsts[split]))
                for split, _, _ in parts
            }
            for block, arrays in work_on(path, work, self._pool, self._threads):
                first = block.first_row
                for split, start, end in parts:
                    own = slice(max(start - first, 0), max(end - first, 0))
                    writers[split].add([array[own] for array in arrays])
                rows -= len(arrays[0])
                progress.at(name, block.read_bytes, first + len(arrays[0]))
            if rows:
                raise DataError(
                    f"{abs(rows)} rows {'fewer' if rows > 0 else 'more'} than were counted",
                    where=str(path), rule="a log stays as it is between counting and encoding",
                    remedy="call again when nobody writes to it",
                )  # fmt: skip
            progress.finish(path.stat().st_size, parts[-1][2])
            return {split: writer.close() for split, writer in writers.items()}

    def _refuse_small_disk(
        self, row_bytes: int, parts: Mapping[str, list[tuple[str, int, int]]]
    ) -> None:
        """Refuse before hours of encoding what the disk will not take."""
        rows = sum(end - start for name in parts for _, start, end in parts[name])
        there = sum(file.stat().st_size for file in self._folder.glob("*/*.bin"))
        need = rows * row_bytes - there
        free = shutil.disk_usage(self._folder).free
        if need > free:
            raise EnvironmentFault(
                f"{rows:,} rows need {need / 1e9:,.1f} GB more, {free / 1e9:,.1f} GB are free",
                where=str(self._folder),
                rule="the folder to write lies on a disk with room",
                remedy="free some space and call again: what was counted is kept",
            )
