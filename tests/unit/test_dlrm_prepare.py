"""Click logs into the binary form: exact bytes, bounded parts, damage, interruption."""

import gzip
import json
import math
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmark.cases.dlrm_criteo import (
    prepare_counts,
    prepare_passes,
    prepare_rows,
    prepare_sources,
    prepare_vocabulary,
)
from trainmark.cases.dlrm_criteo.layout import FeatureSpec
from trainmark.cases.dlrm_criteo.prepare import prepare
from trainmark.cases.dlrm_criteo.prepare_passes import Progress
from trainmark.cases.dlrm_criteo.prepare_rows import RowFault, columns_of
from trainmark.cases.dlrm_criteo.prepare_sources import find_sources
from trainmark.errors import DataError, UsageError

TYPES = {"int8": "<i1", "int16": "<i2", "int32": "<i4"}


def row(rng):
    """A row whose columns have 1 to some hundred categories, a tenth of the fields empty."""
    numbers = [rng.choice(["", "-1", "0", "7", "31", "70000", "123456789012"]) for _ in range(13)]
    sizes = [1 + 12 * column for column in range(26)]
    values = [int(rng.random() ** 2 * size) * 2654435761 % 2**32 for size in sizes]
    names = [f"{value:08x}" if rng.random() > 0.1 else "" for value in values]
    return [str(rng.randrange(2)), *numbers, *names]


def rows_of(seed, count):
    rng = random.Random(seed)
    return [row(rng) for _ in range(count)]


def text(rows):
    return "".join("\t".join(fields) + "\n" for fields in rows).encode()


def expected(rows, splits, threshold):
    """Encode all rows in plain Python; return the files' bytes by name and the cardinalities."""
    files, cardinalities = {}, []
    for column in range(26):
        counts = Counter(fields[14 + column] for fields in rows)
        kept = [name for name, count in counts.items() if count >= threshold]
        kept.sort(key=lambda name: (name != "", -counts[name], name))
        numbers = {name: number for number, name in enumerate(kept, start=1)}
        cardinalities.append(1 + len(kept))
        dtype = np.int8 if len(kept) < 128 else np.int16
        for split, part in splits.items():
            found = [numbers.get(fields[14 + column], 0) for fields in part]
            files[f"{split}/cat_{column}.bin"] = np.array(found, dtype).tobytes()
    for split, part in splits.items():
        files[f"{split}/label.bin"] = bytes(int(fields[0]) for fields in part)
        logs = [[math.log1p(max(int(x or 0), 0)) for x in fields[1:14]] for fields in part]
        files[f"{split}/numerical.bin"] = np.array(logs, "<f2").tobytes()
    return files, cardinalities


def files_of(folder, suffix=".bin"):
    found = folder.rglob(f"*{suffix}")
    return {str(p.relative_to(folder)): p.read_bytes() for p in found if p.is_file()}


def run(raw, data, **options):
    said = []
    prepare(raw, data, said.append, **{"workers": 2, **options})
    return said


DAYS = [rows_of(1, 700), rows_of(2, 300), rows_of(3, 401)]
ALL = [*DAYS[0], *DAYS[1], *DAYS[2]]
SPLITS = {"train": DAYS[0] + DAYS[1], "test": DAYS[2][:201], "validation": DAYS[2][201:]}


@pytest.fixture
def days(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "day_0").write_bytes(text(DAYS[0]))
    (raw / "day_1.gz").write_bytes(gzip.compress(text(DAYS[1])))
    (raw / "day_2").write_bytes(text(DAYS[2]))
    (raw / "readme.txt").write_text("not part of it")
    return raw


@pytest.fixture
def small(monkeypatch):
    """Pieces, blocks, runs, slices and buckets so small that a few rows make many."""
    monkeypatch.setattr(prepare_rows, "PIECE_BYTES", 5_000)
    monkeypatch.setattr(prepare_sources, "BLOCK_BYTES", 30_000)
    monkeypatch.setattr(prepare_counts, "HELD_COUNTS", 3_000)
    monkeypatch.setattr(prepare_vocabulary, "SLICE_COUNTS", 150)
    monkeypatch.setattr(prepare_vocabulary, "BUCKETS", 8)


@pytest.mark.parametrize("threshold", [1, 4, 15])
def test_days_give_the_bytes_of_a_plain_loop(days, tmp_path, threshold):
    data = tmp_path / "data"
    said = run(days, data, frequency_threshold=threshold)
    files, cardinalities = expected(ALL, SPLITS, threshold)
    assert files_of(data) == files
    spec = FeatureSpec.read(data)
    assert spec.cardinalities == tuple(cardinalities)
    assert (spec.num_rows("train"), spec.num_rows("test")) == (1000, 201)
    manifest = json.loads((data / "manifest.json").read_bytes())
    assert manifest["rows"] == {"train": 1000, "test": 201, "validation": 200}
    assert manifest["frequency_threshold"] == threshold
    assert manifest["complete"] is True
    assert sorted(manifest["files"]) == sorted([*files, "feature_spec.yaml"])
    assert [source["name"] for source in manifest["sources"]] == ["day_0", "day_1.gz", "day_2"]
    assert sorted(p.name for p in data.iterdir()) == [
        "feature_spec.yaml", "manifest.json", "test", "train", "validation"
    ]  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "raw"]
    assert said[-1] == f"done: {data}"


def test_the_bytes_do_not_depend_on_blocks_runs_slices_or_threads(days, tmp_path, small):
    for workers in (1, 3):
        data = tmp_path / f"data{workers}"
        run(days, data, frequency_threshold=3, workers=workers)
        assert files_of(data) == expected(ALL, SPLITS, 3)[0]


def test_a_single_log_keeps_its_last_seventh_for_the_test(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "train.txt.gz").write_bytes(gzip.compress(text(ALL)))
    run(tmp_path / "raw", tmp_path / "data")
    cut = 1401 - 1401 // 7
    splits = {"train": ALL[:cut], "test": ALL[cut:]}
    assert files_of(tmp_path / "data") == expected(ALL, splits, 15)[0]
    (tmp_path / "any.tsv").write_bytes(text(ALL))
    run(tmp_path / "any.tsv", tmp_path / "other")
    assert files_of(tmp_path / "other") == files_of(tmp_path / "data")


numbers = st.one_of(st.just(""), st.integers(-(10**18) + 1, 10**18 - 1).map(str),
                    st.sampled_from(["007", "-0", "-00000000", "0" * 18]))  # fmt: skip
names = st.integers(-1, 2**32 - 1).map(
    lambda n: "" if n < 0 else f"{n:08x}" if n % 2 else f"{n:08X}"
)
lines = st.tuples(
    st.sampled_from("01"),
    st.lists(numbers, min_size=13, max_size=13),
    st.lists(names, min_size=26, max_size=26),
).map(lambda parts: [parts[0], *parts[1], *parts[2]])


@settings(max_examples=40)
@given(st.lists(lines, min_size=1, max_size=3))
def test_any_good_row_is_read_as_python_reads_it(rows):
    found = columns_of(text(rows))
    for number, fields in enumerate(rows):
        assert found.labels[number] == int(fields[0])
        assert found.numericals[:, number].tolist() == [int(x or 0) for x in fields[1:14]]
        assert found.categories[:, number].tolist() == [int(x or "0", 16) for x in fields[14:]]
        assert found.missing[:, number].tolist() == [not x for x in fields[14:]]


@given(st.integers(0, 39), st.binary(max_size=12))
def test_a_field_is_refused_exactly_when_it_is_none(column, field):
    fields = [b"1", *[b"5"] * 13, *[b"0123abcd"] * 26]
    fields[column] = field
    try:
        value = int(field or b"0", 16 if column > 13 else 10)
        good = field == field.strip() and b"_" not in field and b"+" not in field
        if column == 0:
            good = field in (b"0", b"1")
        if column > 13:
            good = good and len(field) in (0, 8) and not field.lower().startswith((b"-", b"0x"))
    except ValueError:
        good = False
    line = b"\t".join(fields) + b"\n"
    if good:
        found = columns_of(line)
        read = [*found.labels, *found.numericals[:, 0], *found.categories[:, 0]]
        assert read[column] == value
    else:
        with pytest.raises(RowFault):
            columns_of(line)


def broken(position, change):
    rows = [list(fields) for fields in DAYS[1]]
    change(rows[position])
    return text(rows)


FAULTS = {
    "fields": (lambda fields: fields.pop(), "39 fields, not 40"),
    "more": (lambda fields: fields.append(""), "41 fields, not 40"),
    "label": (lambda fields: fields.__setitem__(0, "2"), "the label is '2'"),
    "number": (lambda fields: fields.__setitem__(3, "1.5"), "integer column 2 is '1.5'"),
    "sign": (lambda fields: fields.__setitem__(13, "-"), "integer column 12 is '-'"),
    "long": (lambda fields: fields.__setitem__(1, "1" * 19), f"integer column 0 is '{'1' * 19}'"),
    "category": (lambda fields: fields.__setitem__(14, "0123abcg"),
                 "category column 0 is '0123abcg'"),
    "short": (lambda fields: fields.__setitem__(39, "abc"), "category column 25 is 'abc'"),
    "control": (lambda fields: fields.__setitem__(39, "\x000123abc"),
                "category column 25 is '\\x000123abc'"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_row_is_named_by_file_and_row(days, tmp_path, small, fault):
    change, what = FAULTS[fault]
    (days / "day_0").write_bytes(broken(137, change))
    with pytest.raises(DataError) as caught:
        run(days, tmp_path / "data")
    assert caught.value.what == what
    assert caught.value.where == f"{days / 'day_0'}, row 138"
    assert caught.value.rule
    assert caught.value.remedy
    assert [p.name for p in tmp_path.iterdir()] == ["raw"]


def refused(days, data):
    with pytest.raises(DataError) as caught:
        run(days, data)
    assert caught.value.rule
    assert caught.value.remedy
    assert not data.exists()
    return str(caught.value)


def test_damaged_files_are_refused(days, tmp_path, small):
    content = (days / "day_1.gz").read_bytes()
    data = tmp_path / "data"
    (days / "day_1.gz").write_bytes(content[:-400])
    assert f"{days / 'day_1.gz'}, after row " in refused(days, data)
    (days / "day_1.gz").write_bytes(content[:-8] + b"\0" * 8)  # checksum and length
    assert "not readable as gzip: CRC check failed" in refused(days, data)
    middle = len(content) // 2  # what comes of it may be rows: then one of those is refused
    (days / "day_1.gz").write_bytes(content[:middle] + b"\0" * 50 + content[middle + 50 :])
    assert refused(days, data).startswith(str(days / "day_1.gz"))
    (days / "day_1.gz").write_bytes(gzip.compress(text(DAYS[1])[:-1]))
    assert f"{days / 'day_1.gz'}, row 300: the file ends inside the row" in refused(days, data)
    (days / "day_1.gz").write_bytes(b"x" * 99_999 + b"\n")
    assert "row 1: no line end in 60,000 bytes" in refused(days, data)
    (days / "day_1.gz").write_bytes(b"")
    assert f"{days / 'day_1.gz'}: no row in the file" in refused(days, data)
    (days / "day_1.gz").write_bytes(gzip.compress(b""))
    assert f"{days / 'day_1.gz'}: no row in the file" in refused(days, data)


def test_a_cut_off_day_is_refused_before_any_is_read(days, tmp_path):
    content = text(DAYS[2])
    (days / "day_2").write_bytes(content[:-30])
    said = []
    with pytest.raises(DataError) as caught:
        prepare(days, tmp_path / "data", said.append)
    assert caught.value.where == f"{days / 'day_2'}, byte {len(content) - 30:,}"
    assert caught.value.what == "the file ends inside a row"
    assert said == []
    assert [p.name for p in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize("encoded", [False, True])
def test_a_day_that_was_mended_costs_no_other_day(days, tmp_path, small, encoded):
    data = tmp_path / "data"
    good = (days / "day_2").read_bytes()
    # Longer than the good one, so that what is left of its bytes would show.
    (days / "day_2").write_bytes(good * 2 if encoded else broken(5, FAULTS["label"][0]))

    def stop(line):
        if encoded and line.startswith("taking the sha256 of what"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt if encoded else DataError):
        prepare(days, data, stop, workers=2)
    (days / "day_2").write_bytes(good)
    said = run(days, data, frequency_threshold=4)
    assert [line for line in said if line.startswith("counted")] == ["counted day_2: 401 rows"]
    assert files_of(data) == expected(ALL, SPLITS, 4)[0]
    assert json.loads((data / "manifest.json").read_bytes())["frequency_threshold"] == 4


def test_files_that_make_no_log_are_refused(days, tmp_path):
    (days / "day_1").write_bytes(text(DAYS[1]))
    assert "day 1 is there twice: day_1 and day_1.gz" in refused(days, tmp_path / "data")
    (days / "day_1").unlink()
    (days / "day_1.gz").unlink()
    assert f"{days}: no day_1;" in refused(days, tmp_path / "data")
    for name in ("day_0", "day_2"):
        (days / name).unlink()
    assert f"{days}: no click log" in refused(days, tmp_path / "data")
    assert "no such file or folder" in refused(tmp_path / "nowhere", tmp_path / "data")
    (days / "train.txt").write_bytes(text(ALL[:6]))
    assert "6 rows to train on and 0 to test with" in refused(days, tmp_path / "data")


def test_days_are_ordered_by_number(tmp_path):
    for day in range(12):
        (tmp_path / f"day_{day}").touch()
    assert list(find_sources(tmp_path).files) == [f"day_{day}" for day in range(12)]


@pytest.mark.parametrize("option", ["frequency_threshold", "workers"])
def test_options_below_one_are_refused(days, tmp_path, option):
    with pytest.raises(UsageError, match="a whole number from 1 to"):
        run(days, tmp_path / "data", **{option: 0})


@pytest.mark.parametrize("stop_at", ["counted day_1.gz", "tables of", "encoded day_0", "taking"])
def test_a_stopped_call_goes_on_after_the_last_finished_file(days, tmp_path, small, stop_at):
    data = tmp_path / "data"
    said = []

    def say(line):
        said.append(line)
        if line.startswith(stop_at) and len(said) > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(days, data, say, workers=2)
    assert not data.exists()
    assert said[-1] == "interrupted; call again to go on after the last finished file"
    done = [line for line in said if line.startswith("counted")]
    again = run(days, data)
    assert files_of(data) == expected(ALL, SPLITS, 15)[0]
    assert not {line for line in done if line in again}
    if stop_at in {"encoded day_0", "taking"}:
        assert "kept day_0: its sha256 fits" in again
    assert run(days, data)[-1].startswith(f"{data} is already prepared: 85 files checked")


def test_damage_to_what_was_kept_is_written_again(days, tmp_path, small):
    data = tmp_path / "data"

    def say(line):
        if line.startswith("encoded day_1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(days, data, say, workers=1)
    partial = tmp_path / ".data.partial"
    with (partial / "train" / "cat_7.bin").open("r+b") as stream:
        stream.seek(-1, 2)  # day 1's last row
        stream.write(b"\x55")
    (partial / "counts" / "day_0" / "run_0.bin").write_bytes(b"damaged")
    (partial / "vocabulary" / "3" / "values.bin").unlink()
    said = run(days, data)
    assert "counted day_0: 700 rows" in said
    assert "kept day_0: its sha256 fits" in said
    assert "encoded day_1.gz" in said
    assert files_of(data) == expected(ALL, SPLITS, 15)[0]
    (data / "test" / "label.bin").write_bytes(b"")
    assert "damaged or missing, written again: test/label.bin" in run(days, data)
    assert files_of(data) == expected(ALL, SPLITS, 15)[0]


def test_a_folder_of_another_threshold_or_of_others_is_not_touched(days, tmp_path):
    run(days, tmp_path / "data")
    with pytest.raises(DataError, match="prepared with another frequency_threshold"):
        run(days, tmp_path / "data", frequency_threshold=3)
    with pytest.raises(DataError, match="inside the raw one"):
        run(days, days / "data")


def test_a_log_that_grows_between_the_passes_is_refused(days, tmp_path):
    def say(line):
        if line.startswith("tables"):
            with (days / "day_0").open("ab") as stream:
                stream.write(text(DAYS[1][:2]))

    with pytest.raises(DataError, match="2 rows more than were counted"):
        prepare(days, tmp_path / "data", say, workers=1)
    assert not (tmp_path / "data").exists()


@given(
    st.lists(st.dictionaries(st.integers(0, 2**32 - 1), st.integers(1, 9)), max_size=4),
    st.integers(0, 9),
    st.integers(1, 12),
)
def test_numbers_follow_frequency_then_value(tmp_path_factory, days, missing, threshold):
    folder = tmp_path_factory.mktemp("numbers")
    runs = [np.array([v << 32 | n for v, n in sorted(day.items())], np.uint64) for day in days]
    facts = prepare_vocabulary.number_column(runs, missing, threshold, folder)
    total = sum(map(Counter, days), Counter())
    first = 1 + (missing >= threshold)
    kept = sorted((v for v in total if total[v] >= threshold), key=lambda v: (-total[v], v))
    cardinality = first + len(kept)
    assert facts == {"size": len(kept), "missing": first - 1, "cardinality": cardinality}
    asked = [*total, 0, 5, 2**32 - 1]
    wanted = [first + kept.index(value) if value in kept else 0 for value in asked]
    vocabulary = prepare_vocabulary.Vocabulary.open(folder, facts)
    values = np.array([*asked, 0], np.uint32)
    empty = np.array([False] * len(asked) + [True])
    assert vocabulary.look_up(values, empty).tolist() == [*wanted, first - 1]


def test_neighbouring_categories_in_one_bucket_are_told_apart(tmp_path):
    words = np.array([value << 32 | 1 for value in range(0, 4000, 2)], np.uint64)
    facts = prepare_vocabulary.number_column([words], 0, 1, tmp_path)
    vocabulary = prepare_vocabulary.Vocabulary.open(tmp_path, facts)
    asked = np.arange(4100, dtype=np.uint32)
    wanted = [1 + value // 2 if value % 2 == 0 and value < 4000 else 0 for value in range(4100)]
    assert vocabulary.look_up(asked, np.zeros(4100, bool)).tolist() == wanted


def test_counts_beyond_32_bits_stay_at_the_most():
    most = np.uint64(prepare_counts.MOST)
    words = np.array([np.uint64(7 << 32) | most, np.uint64(7 << 32) | most], np.uint64)
    assert prepare_counts.add_up([words]).tolist() == [7 << 32 | prepare_counts.MOST]


def test_progress_tells_rate_and_time_left():
    said, now = [], [0.0]
    progress = Progress("counting", 1_000, said.append, clock=lambda: now[0])
    progress.skip(200)
    progress.at("day_1", 100, 50)
    now[0] = 10.0
    progress.at("day_1", 200, 100)
    progress.finish(300, 150)
    now[0] = 25.0
    progress.at("day_2", 200, 100)
    assert said == [
        "counting day_1: 100 rows, 40.0% of all, 10 rows/s, 0:00:30 left",
        "counting day_2: 100 rows, 70.0% of all, 10 rows/s, 0:00:15 left",
    ]


def test_an_interrupt_leaves_no_thread_waiting(days, small):
    with ThreadPoolExecutor(1) as pool:
        results = prepare_passes.work_on(days / "day_0", len, pool, 1)
        block, rows = next(results)
        assert block.first_row == 0
        assert rows == block.lines.count(b"\n")
        results.close()
        assert pool.submit(int).result(timeout=60) == 0
