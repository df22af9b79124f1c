"""Click logs into the binary form: exact bytes, bounded parts, damage, a call stopped."""

import gzip
import json
import math
import random
import threading
import time
from collections import Counter
from hashlib import md5

import numpy as np
import pytest

from trainmark.cases.dlrm_criteo import prepare as stages
from trainmark.cases.dlrm_criteo.data.layout import read_spec
from trainmark.cases.dlrm_criteo.prepare import prepare
from trainmark.cases.dlrm_criteo.prepare import tables as prepare_tables
from trainmark.data.prepared import PartialFolder, Reporter
from trainmark.errors import DataError

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: the extra `prepare`")


def make_row(rng):
    """Return a row; columns have up to some hundred categories, a tenth of fields is empty.

    A number x becomes ``log(x + 3)``, or 0 if there is no logarithm or no number. Another rule has
    ``log(x + 1)`` instead. So -2 is the smallest number with a logarithm, -3 the largest without
    one, and -1 the border of the other rule; 123456789012 needs more than 32 bits.
    """
    numbers = [
        rng.choice(["", "-1", "-2", "-3", "-70", "0", "7", "31", "70000", "123456789012"])
        for _ in range(13)
    ]
    sizes = [1 + 12 * column for column in range(26)]
    # Squared, so that some categories are frequent; times a large odd number, so that the
    # 32-bit names are spread.
    values = [int(rng.random() ** 2 * size) * 2654435761 % 2**32 for size in sizes]
    names = [f"{value:08x}" if rng.random() > 0.1 else "" for value in values]
    return [str(rng.randrange(2)), *numbers, *names]


def make_rows(seed, count):
    """Return ``count`` rows of a log, each as a list of its fields; equal seeds give equal rows."""
    rng = random.Random(seed)
    return [make_row(rng) for _ in range(count)]


def join_rows(rows):
    """Return the content of a log: a line for each row, with tabs between its fields."""
    return "".join("\t".join(fields) + "\n" for fields in rows).encode()


def encode_number(cell):
    """Encode by the published rule: log(x + 3), or 0 if the cell is empty or has no logarithm."""
    return math.log(int(cell) + 3) if cell and int(cell) > -3 else 0.0


def number_categories(cells, threshold):
    """Number by the published rule: from 1 by falling count; empty cells are not counted.

    Args:
        threshold: occurrences below which a category has no number.
    """
    counts = Counter(cell for cell in cells if cell)
    kept_names = [name for name, count in counts.items() if count >= threshold]
    return {
        name: number
        for number, name in enumerate(sorted(kept_names, key=lambda x: (-counts[x], x)), 1)
    }


def shuffle_rows(logs, seed=0):
    """Order rows as documented: by the first 8 bytes of the MD5 of seed, log and row."""
    keyed = {
        int.from_bytes(md5(f"{seed}:{log}:{number}".encode()).digest()[:8], "little"): fields
        for log, rows in enumerate(logs)
        for number, fields in enumerate(rows)
    }
    return [keyed[key] for key in sorted(keyed)]


def encode_plainly(rows, splits, threshold=15, *, logarithm=encode_number):
    """Encode all rows in plain Python; return the files' bytes by name and the cardinalities.

    Fields of a row: the label, 13 numbers, 26 categories.

    Args:
        rows: rows in which the occurrences of categories are counted, to number them.
        splits: rows to encode, by split.
        threshold: occurrences below which a category is rare, and has no number.
        logarithm: function that encodes the text of a number.
    """
    files, cardinalities = {}, []
    for column in range(14, 40):
        numbers = number_categories([fields[column] for fields in rows], threshold)
        cardinalities.append(1 + len(numbers))  # 0: rare and empty
        dtype = np.int8 if len(numbers) < 128 else np.int16
        for split, part in splits.items():
            codes = [numbers.get(fields[column], 0) for fields in part]
            files[f"{split}/cat_{column - 14}.bin"] = np.array(codes, dtype).tobytes()
    for split, part in splits.items():
        files[f"{split}/label.bin"] = bytes(int(fields[0]) for fields in part)
        numerical = [[logarithm(x) for x in fields[1:14]] for fields in part]
        files[f"{split}/numerical.bin"] = np.array(numerical, "<f2").tobytes()
    return files, cardinalities


def encode_files(rows, splits, threshold=15, **options):
    """Return only the files of ``encode_plainly``, which takes these arguments."""
    files, _ = encode_plainly(rows, splits, threshold, **options)
    return files


def read_files(folder, suffix=".bin"):
    """Return the bytes of all files with this suffix by their paths within the folder."""
    paths = folder.rglob(f"*{suffix}")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


def run_prepare(raw, data, **options):
    """Prepare the logs in ``raw`` into the new folder ``data``; return the lines of progress.

    ``options`` are further arguments of ``prepare``. ``workers``, threads that read logs, are two
    unless they name another number.
    """
    progress_lines = []
    prepare(raw, data, progress_lines.append, **{"workers": 2, **options})
    return progress_lines


DAYS = [make_rows(seed=1, count=700), make_rows(seed=2, count=300), make_rows(seed=3, count=401)]
ALL_ROWS = [*DAYS[0], *DAYS[1], *DAYS[2]]
SPLITS_OF_LAST_DAY = {"test": DAYS[2][:200], "validation": DAYS[2][200:]}
SPLITS = {"train": shuffle_rows(DAYS[:2]), **SPLITS_OF_LAST_DAY}


@pytest.fixture
def raw_days(tmp_path):
    """Write three days of logs, plain, gzipped and plain, and a file that is no log.

    ``DAYS`` has the rows of each: 700, 300 and 401. The folder ``raw`` is returned.
    """
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "day_0").write_bytes(join_rows(DAYS[0]))
    packed = gzip.compress(join_rows(DAYS[1][:100])) + gzip.compress(join_rows(DAYS[1][100:]))
    (raw / "day_1.gz").write_bytes(packed)  # two members: a gzip file may be several in a row
    (raw / "day_2").write_bytes(join_rows(DAYS[2]))
    (raw / "readme.txt").write_text("not part of it")
    return raw


@pytest.fixture
def small_batches(monkeypatch):
    """Make key ranges, batches and column groups so small that few rows need many of them."""
    monkeypatch.setattr(stages, "ROWS_PER_RANGE", 150)
    monkeypatch.setattr(prepare_tables, "BATCH_ROWS", 64)
    # The memory that a category is assumed to need in a join. It is so large that only few
    # categories fit at once, and so few columns form a group.
    monkeypatch.setattr(prepare_tables, "ENTRY_BYTES", 1 << 24)


@pytest.mark.parametrize("threshold", [1, 4, 15])
def test_prepared_bytes_equal_a_plain_implementation_of_the_rules(raw_days, tmp_path, threshold):
    """Three days have 700, 300 and 401 rows.

    The first two are training rows; the first half of the last one (200 rows) is for tests, the
    other one (201 rows) for validation.
    """
    data = tmp_path / "data"
    progress_lines = run_prepare(raw_days, data, frequency_threshold=threshold)
    files, cardinalities = encode_plainly(ALL_ROWS, SPLITS, threshold)
    assert read_files(data) == files  # the bytes of all binary files by name
    spec = read_spec(data)
    assert spec.cardinalities == tuple(cardinalities)
    assert (spec.count_rows("train"), spec.count_rows("test")) == (1000, 200)
    # 15 is the published threshold.
    changed_rules = {} if threshold == 15 else {"frequency_threshold": str(threshold)}
    assert spec.changed_rules == changed_rules
    manifest = json.loads((data / "manifest.json").read_bytes())
    assert manifest["counts"] == {"train": 1000, "test": 200, "validation": 201}
    assert manifest["frequency_threshold"] == threshold
    assert sorted(manifest["files"]) == sorted([*files, "feature_spec.yaml"])
    assert [source["name"] for source in manifest["sources"]] == ["day_0", "day_1.gz", "day_2"]
    assert sorted(path.name for path in data.iterdir()) == [
        "feature_spec.yaml",
        "manifest.json",
        "test",
        "train",
        "validation",
    ]
    # No partial folder is left.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "raw"]
    assert progress_lines[-1] == f"done: {data}"


def test_compressed_logs_give_the_same_bytes(raw_days, tmp_path):
    """The fixture has written three days of logs, of which only day_1 is compressed already.

    ``ALL_ROWS`` are the rows of all days; ``SPLITS`` has those of each split, in the order in which
    they are written. From these ``encode_files`` computes the expected files in plain Python.
    """
    for name in ("day_0", "day_2"):
        (raw_days / f"{name}.gz").write_bytes(gzip.compress((raw_days / name).read_bytes()))
        (raw_days / name).unlink()
    run_prepare(raw_days, tmp_path / "data", workers=3)
    assert read_files(tmp_path / "data") == encode_files(ALL_ROWS, SPLITS)


def test_error_names_the_earlier_of_two_faulty_logs_that_are_read_at_the_same_time(
    raw_days, tmp_path
):
    # ``FAULTS`` has by name what is done to the fields of a row, and the error of it. Three workers
    # read the three logs at once. Two are faulty: day_1 has a wrong number in row 137, counted from
    # 0, and day_2 ends in its gzip header.
    make_number_faulty, _error = FAULTS["number"]
    (raw_days / "day_1.gz").write_bytes(gzip.compress(break_row(137, make_number_faulty)))
    (raw_days / "day_2").unlink()
    (raw_days / "day_2.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError) as caught:
        run_prepare(raw_days, tmp_path / "data", workers=3)
    assert caught.value.where == f"{raw_days / 'day_1.gz'}, row 138"  # counted from 1


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_logs_with_byte_order_mark_and_crlf_give_the_same_bytes(raw_days, tmp_path, mark):
    """Two of three days are written anew with other line ends, and with the mark or without.

    The expected files are computed in plain Python: ``ALL_ROWS`` are the rows of all days, and
    ``SPLITS`` those of each split, in the order in which they are written.
    """
    for name in ("day_0", "day_2"):
        content = (raw_days / name).read_bytes()
        (raw_days / name).write_bytes(mark + content.replace(b"\n", b"\r\n"))
    run_prepare(raw_days, tmp_path / "data")
    assert read_files(tmp_path / "data") == encode_files(ALL_ROWS, SPLITS)


def test_faulty_row_of_a_log_with_byte_order_mark_and_crlf_is_named(raw_days, tmp_path):
    """The first day is replaced by the rows of the second, of which row 137 is faulty.

    ``break_row`` counts from 0. The fault: the fourth field, a number, is 1.5.
    """
    change, what = FAULTS["number"]  # an edit of the fields of a row, and what the error says
    content = break_row(137, change).replace(b"\n", b"\r\n")
    (raw_days / "day_0").write_bytes(b"\xef\xbb\xbf" + content)
    with pytest.raises(DataError) as caught:
        run_prepare(raw_days, tmp_path / "data")
    assert caught.value.what == what
    assert caught.value.where == f"{raw_days / 'day_0'}, row 138"  # counted from 1


def test_log_that_grows_while_it_is_read_is_refused(raw_days, tmp_path, monkeypatch):
    """The rows of a log are counted, then the database reads them; a row is added in between."""
    count_rows = prepare_tables.count_rows

    def count_and_grow(path, stop):
        """Count the rows of the log; add one to the first day."""
        rows = count_rows(path, stop)
        if path.name == "day_0":
            with path.open("ab") as log:
                log.write(join_rows(DAYS[0][:1]))
        return rows

    monkeypatch.setattr(prepare_tables, "count_rows", count_and_grow)
    with pytest.raises(DataError, match="the file changed while it was read") as caught:
        run_prepare(raw_days, tmp_path / "data")
    assert caught.value.where == str(raw_days / "day_0")


def test_faulty_log_ends_statements_that_other_threads_begin_after_it(
    raw_days, tmp_path, monkeypatch
):
    """The first day is faulty, while the second one is about to begin a very long statement.

    It begins it after the first interrupt of all threads, which is lost: only a later one ends it.
    """
    (raw_days / "day_0").unlink()
    (raw_days / "day_0.gz").write_bytes(b"\x1f\x8b")  # ends in its header
    ended_by_interrupt = []
    interrupted_once = threading.Event()

    def sleep_between_interrupts(seconds):
        interrupted_once.set()
        time.sleep(seconds)

    def read_long(db, number, path, stop):
        """Read day_0 as usual; execute a statement that takes hours for any other log."""
        if path.name == "day_0.gz":
            return read_log(db, number, path, stop)
        assert interrupted_once.wait(60)
        numbers = "range(10_000_000)"
        with pytest.raises(duckdb.InterruptException):
            db.execute(f"SELECT sum(a.range * b.range) FROM {numbers} a, {numbers} b")
        ended_by_interrupt.append(path.name)
        return 0

    read_log = prepare_tables.read_log
    monkeypatch.setattr(prepare_tables, "read_log", read_long)
    monkeypatch.setattr(prepare_tables, "sleep", sleep_between_interrupts)
    with pytest.raises(DataError):
        run_prepare(raw_days, tmp_path / "data")
    # The thread of the faulty log may have taken the third log before it was cancelled.
    assert ended_by_interrupt
    assert set(ended_by_interrupt) <= {"day_1.gz", "day_2"}


def test_lone_carriage_return_ends_no_row(raw_days, tmp_path):
    # ``DAYS[0]`` has the rows of the first day. Its rows 1 and 2 are separated by a carriage return
    # alone ([:-1] removes the line end), so they are one row, which has too many fields.
    (raw_days / "day_0").write_bytes(join_rows(DAYS[0][:1])[:-1] + b"\r" + join_rows(DAYS[0][1:]))
    with pytest.raises(DataError) as caught:
        run_prepare(raw_days, tmp_path / "data")
    assert caught.value.where == f"{raw_days / 'day_0'}, row 1"


def test_other_rules_give_other_bytes_and_are_recorded(raw_days, tmp_path):
    """The published rule is log(x + 3) of a number; here it is log(x + 1), with another seed.

    The fixture has written three days of logs; ``DAYS`` has their rows. The first two days are
    training rows, which are shuffled by the seed. ``SPLITS_OF_LAST_DAY`` has the rows of the third
    day, for tests and validation, which keep their order. ``ALL_ROWS`` are those of all days.
    """

    def compute_log_of_one_plus(cell):
        """Encode a number by the rule that ``log_offset=1`` means; negative numbers count as 0."""
        return math.log1p(max(int(cell or 0), 0))

    data = tmp_path / "data"
    run_prepare(raw_days, data, log_offset=1, seed=7)
    splits = {"train": shuffle_rows(DAYS[:2], seed=7), **SPLITS_OF_LAST_DAY}
    assert read_files(data) == encode_files(ALL_ROWS, splits, logarithm=compute_log_of_one_plus)
    # The seed is no changed rule: it only orders the rows.
    assert read_spec(data).changed_rules == {"log_offset": "1"}


def test_prepared_bytes_do_not_depend_on_batches_groups_or_threads(
    raw_days, tmp_path, small_batches
):
    """With tiny batches and groups of columns (``small_batches``) the files are the usual ones.

    Those are computed in plain Python from ``ALL_ROWS``, all rows, and ``SPLITS``, the rows of each
    split. 3 is any number of occurrences from which a category gets a number.
    """
    for workers in (1, 3):
        data = tmp_path / f"data{workers}"
        run_prepare(raw_days, data, frequency_threshold=3, workers=workers)
        assert read_files(data) == encode_files(ALL_ROWS, SPLITS, threshold=3)  # the same threshold


def break_row(position, change):
    """Return the log of the second day, as bytes, with a changed row.

    Args:
        position: of the row, from 0.
        change: edits the list of its fields in place.
    """
    rows = [list(fields) for fields in DAYS[1]]
    change(rows[position])
    return join_rows(rows)


FAULTS = {
    "fields": (lambda fields: fields.pop(), "the row has 39 fields, not 40"),
    "label": (lambda fields: fields.__setitem__(0, "2"), "field 1 is '2'"),
    "number": (lambda fields: fields.__setitem__(3, "1.5"), "field 4 is '1.5'"),
    "category": (lambda fields: fields.__setitem__(14, "0123abcg"), "field 15 is '0123abcg'"),
    "control": (lambda fields: fields.__setitem__(39, "\x000123abc"), "field 40 is '\\x000123abc'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_row_is_named_by_file_and_row(raw_days, tmp_path, small_batches, fault):
    """The first day is replaced by the rows of the second, with a fault in row 137 (from 0).

    ``FAULTS`` has by name such as ``label`` what is done to the fields of the row.
    """
    change, what = FAULTS[fault]  # an edit of the fields of a row, and what the error says
    (raw_days / "day_0").write_bytes(break_row(137, change))
    with pytest.raises(DataError) as caught:
        run_prepare(raw_days, tmp_path / "data")
    assert caught.value.what == what
    assert caught.value.where == f"{raw_days / 'day_0'}, row 138"  # counted from 1
    assert caught.value.rule
    assert caught.value.fix
    # Nothing is left of the attempt.
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def read_refusal(raw_days, data):
    """Return the text of the error of ``prepare``; it must leave no output.

    Args:
        raw_days: the folder of logs, one of which is damaged.
        data: the folder that would be written.
    """
    with pytest.raises(DataError) as caught:
        run_prepare(raw_days, data)
    assert caught.value.rule
    assert caught.value.fix
    assert not data.exists()
    return str(caught.value)


def test_damaged_files_are_refused(raw_days, tmp_path, small_batches):
    """The second day has 300 rows; its file is damaged in five ways."""
    content = (raw_days / "day_1.gz").read_bytes()
    data = tmp_path / "data"
    (raw_days / "day_1.gz").write_bytes(content[:-400])  # cut
    assert f"{raw_days / 'day_1.gz'}: not readable as gzip" in read_refusal(raw_days, data)
    (raw_days / "day_1.gz").write_bytes(content[:-8] + b"\0" * 8)  # checksum and length
    assert "not readable as gzip: CRC check failed" in read_refusal(raw_days, data)
    # Without the last line end: the 300th row may be incomplete.
    (raw_days / "day_1.gz").write_bytes(gzip.compress(join_rows(DAYS[1])[:-1]))
    assert (
        f"{raw_days / 'day_1.gz'}, row 300: the file ends in the middle of a row"
        in read_refusal(raw_days, data)
    )
    # A row longer than any that is read at once. Without gzip's signature the file is plain text.
    (raw_days / "day_1.gz").write_bytes(join_rows(DAYS[1][:2]) + b"x" * (5 << 20) + b"\n")
    assert f"{raw_days / 'day_1.gz'}, row 3: " in read_refusal(raw_days, data)
    (raw_days / "day_1.gz").write_bytes(b"")
    assert f"{raw_days / 'day_1.gz'}, row 1: the file has no rows" in read_refusal(raw_days, data)


STAGES = [
    "read day_0",
    "read day_1.gz",
    "read day_2",
    "number categories",
    "encode day_0",
    "encode day_1.gz",
    "encode day_2",
    "write train",
    "write test",
    "write validation",
]


@pytest.mark.parametrize("stop_after", range(len(STAGES)))
@pytest.mark.usefixtures("small_batches")
def test_interrupted_preparation_resumes_after_its_last_finished_stage(
    raw_days, tmp_path, monkeypatch, stop_after
):
    """The first call is interrupted after ``stop_after`` + 1 stages, the second one is not."""
    saved_stages = []
    resumed = False  # whether the second call has begun
    save_result = PartialFolder.save_result

    def save_and_stop(partial_folder, name, result):
        """Save the result of a stage, and interrupt the first call after its last stage."""
        save_result(partial_folder, name, result)
        saved_stages.append(name)
        if not resumed and len(saved_stages) == stop_after + 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(PartialFolder, "save_result", save_and_stop)
    data = tmp_path / "data"
    with pytest.raises(KeyboardInterrupt):
        prepare(raw_days, data, print, workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".data.partial", "raw"]
    resumed = True
    run_prepare(raw_days, data)
    assert saved_stages == STAGES  # no stage was done twice
    assert read_files(data) == encode_files(ALL_ROWS, SPLITS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "raw"]
    assert run_prepare(raw_days, data)[-1].startswith(f"{data} is already prepared")


@pytest.mark.usefixtures("small_batches")
def test_interrupted_preparation_restarts_with_other_rules(raw_days, tmp_path):
    """Work of an interrupted call is only used again if the rules are the same.

    By default a category needs 15 occurrences to get a number, in the second call 3. ``ALL_ROWS``
    and ``SPLITS``, the rows of all logs and of each split, give the expected files.
    """

    def stop(line):
        """Interrupt the work at a progress line from its middle."""
        if line.startswith("tables of"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(raw_days, tmp_path / "data", stop, workers=2)
    run_prepare(raw_days, tmp_path / "data", frequency_threshold=3)
    # Nothing of the first call, which had the usual threshold, was used.
    assert read_files(tmp_path / "data") == encode_files(ALL_ROWS, SPLITS, threshold=3)


@pytest.mark.usefixtures("small_batches")
def test_preparation_restarts_without_its_scratch_database(raw_days, tmp_path):
    """The database of an interrupted call is lost; finished stages are then repeated."""

    class Stopping(Reporter):
        """Shows progress; interrupts the call at its last stage, after all logs are encoded."""

        def begin(self, stage, total, done=0):
            if stage == "writing rows":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(raw_days, tmp_path / "data", Stopping(print), workers=2)
    (tmp_path / ".data.partial" / "work" / prepare_tables.SCRATCH_FILE).unlink()
    run_prepare(raw_days, tmp_path / "data")
    assert read_files(tmp_path / "data") == encode_files(ALL_ROWS, SPLITS)
