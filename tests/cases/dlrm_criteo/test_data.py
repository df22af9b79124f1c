"""A click log on disk: its description, the check of its values, batches, generated clicks."""

import os
import re
from hashlib import sha256
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tiny_dlrm import write_log
from trainmark.cases.dlrm_criteo import data
from trainmark.cases.dlrm_criteo.data import SplitReader, generated
from trainmark.cases.dlrm_criteo.data.layout import (
    PUBLISHED_RULES,
    FeatureSpec,
    read_spec,
    write_spec,
)
from trainmark.errors import DataError
from trainmark.plan import resolving
from trainmark.plan.request import RunRequest

REAL = SimpleNamespace(data="real", seed=1)
CARDINALITIES = (100, 1_000, 50_000)
ROWS = {"train": 103, "test": 7}
_FILE_TIMES_NS = count(1)  # of files that a test changes; no two are equal

# As the reference implementation writes it: YAML aliases for shared lists, its order of keys.
NVIDIA_FORM = """\
channel_spec:
  categorical:
  - cat_0.bin
  - cat_1.bin
  label:
  - label
  numerical: &id001
  - num_0
  - num_1
feature_spec:
  cat_0.bin:
    cardinality: 127
    dtype: int16
  cat_1.bin:
    cardinality: 2147483648
    dtype: int32
  label:
    dtype: bool
  num_0:
    dtype: float16
  num_1:
    dtype: float16
metadata: {}
source_spec:
  test: &id002
  - features: *id001
    files:
    - test/numerical.bin
    type: split_binary
  - features:
    - label
    files:
    - test/label.bin
    type: split_binary
  - features:
    - cat_0.bin
    files:
    - test/cat_0.bin
    type: split_binary
  - features:
    - cat_1.bin
    files:
    - test/other.bin
    type: split_binary
  train: *id002
"""


def make_rows(split):
    """Return numbers, labels and categories whose values are derived from their row number.

    Shapes: (rows, 2), (rows,) and (3 tables, rows).
    """
    numbers = np.arange(ROWS[split])
    numerical = (numbers[:, None] + np.arange(2) / 2).astype(np.float16)
    # Categories are below ``CARDINALITIES``: there are at most 103 rows.
    return numerical, numbers % 3 == 0, np.stack([numbers % 100, numbers * 9, numbers * 450])


@pytest.fixture
def spec(tmp_path):
    """Write valid click data to ``tmp_path``; return their description.

    There are 103 training rows and 7 test rows (``ROWS``) with two numbers and categories of three
    tables (``CARDINALITIES``).
    """
    return write_log(tmp_path, CARDINALITIES, {split: make_rows(split) for split in ROWS})


def read_fault(act, *arguments):
    """Return the error of ``act(*arguments)``; it must name a place, a rule and a fix.

    Args:
        act: the function that must refuse its arguments, such as ``data.check``.
    """
    with pytest.raises(DataError) as caught:
        act(*arguments)
    error = caught.value
    assert all((error.where, error.rule, error.fix)), error.what
    return error


def test_written_spec_is_read_back(spec, tmp_path):
    """The fixture writes a click log and returns its description, which ``read_spec`` reads.

    The log has two numbers in a row and three tables, of ``CARDINALITIES`` 100, 1,000 and 50,000
    categories; ``ROWS`` is the number of rows of each split: 103 and 7.
    """
    assert (
        read_spec(tmp_path) == spec == FeatureSpec.create(tmp_path, CARDINALITIES, num_numerical=2)
    )
    # The smallest types for ids of 100, 1,000 and 50,000 categories.
    assert spec.category_dtypes == ("int8", "int16", "int32")
    assert spec.files["test"].categories[2] == tmp_path / "test" / "cat_2.bin"
    # Bytes of a row in each file: label, two float16 numbers, and the three columns of categories.
    assert [kind.itemsize for kind in spec.get_row_types("train").values()] == [1, 4, 1, 2, 4]
    assert {split: spec.count_rows(split) for split in ROWS} == ROWS
    assert "&" not in (tmp_path / "feature_spec.yaml").read_text()  # no YAML aliases
    assert not list(tmp_path.glob(".*"))  # no temporary files


def test_spec_with_yaml_aliases_is_read(tmp_path):
    """A description may use names for repeated parts (``&id001``, ``*id001``), as others write it.

    The constant is such a text: two numbers, and two tables with 127 and 2^31 categories.
    """
    (tmp_path / "feature_spec.yaml").write_text(NVIDIA_FORM)
    spec = read_spec(tmp_path)
    assert (spec.num_numerical, spec.cardinalities) == (2, (127, 2**31))
    # The types that ``NVIDIA_FORM`` states, though int8 could hold the ids of the first table.
    assert spec.category_dtypes == ("int16", "int32")
    # ``NVIDIA_FORM`` gives both splits the same files, and calls that of cat_1 other.bin.
    assert spec.files["train"] == spec.files["test"]
    assert spec.files["train"].categories[1] == tmp_path / "test" / "other.bin"


@pytest.mark.parametrize(
    ("pattern", "new", "what"),
    [
        # int8 has ids for 128 categories at most.
        (r"int8\n    cardinality: 100\b", "int8\n    cardinality: 129",
         "cat_0.bin: cardinality is 129"),
        (r"dtype: float16", "dtype: bool", "num_0: a column of numerical values must be float16"),
        # The next two: a feature without a channel; features in another order than channels.
        (r"  num_1:\n    dtype: float16\n", "", "channel_spec lists"),
        (r"    - num_0\n    - num_1\n", "    - num_1\n    - num_0\n", "train: there must be one"),
        # The same file, written differently.
        (r"train/cat_1.bin", "train/./cat_0.bin", "train/cat_0.bin is listed for several columns"),
        (r"channel_spec:", "channel_spec: [", "not YAML"),
    ],
)  # fmt: skip
def test_a_spec_that_breaks_a_rule_is_refused(spec, tmp_path, pattern, new, what):
    """The fixture has written a valid description (``spec``): two numbers and three tables.

    It says in YAML which type, cardinality and file each column has. One place is changed.

    Args:
        pattern: regular expression of the text that is replaced.
        new: the text in its place, which breaks a rule.
        what: a part of the error.
    """
    file = tmp_path / "feature_spec.yaml"
    text, count = re.subn(pattern, new, file.read_text(), count=1)
    assert count == 1
    file.write_text(text)
    error = read_fault(read_spec, tmp_path)
    assert str(file) in error.where
    assert what in str(error)


def test_files_with_other_numbers_of_rows_are_named_with_their_counts(spec, tmp_path):
    """All files of a split must have the same number of rows; the labels have 103.

    The ids of the third table are int32, 4 bytes each.
    """
    file = spec.files["train"].categories[2]
    file.write_bytes(bytes(4 * 6 + 1))  # 6 rows of int32, and a byte
    error = read_fault(spec.count_rows, "train")
    assert error.where == str(file)
    label = tmp_path / "train" / "label.bin"
    assert error.what == (
        f"the file has 25 bytes (6 rows and 1 extra bytes), but {label} has 103 rows"
    )


def test_valid_folder_passes_its_check_and_loads(spec, tmp_path):
    """``spec`` describes the folder; it has 103 training rows and 7 test rows."""
    facts = data.check(tmp_path, REAL)
    assert (facts.train_samples, facts.eval_samples) == (103, 7)
    assert (facts.layout, facts.best_quality) == ("criteo-split-binary", None)
    loaded = data.load(tmp_path, REAL)
    assert (loaded.spec, loaded.num_rows) == (spec, ROWS)
    assert loaded.content_id == facts.content_id


def test_file_whose_rows_are_no_multiple_of_the_block_is_read_whole(tmp_path):
    """Files are read in blocks of ``BLOCK_BYTES``; ``read_content`` gives digest and maximum.

    The file has 20 rows of 13 float16, the numbers 0/7, 1/7 and so on to 259/7.
    """
    file, value_type = tmp_path / "numerical.bin", np.dtype("<f2")
    (np.arange(13 * 20) / 7).astype("<f2").tofile(file)
    # A block of 64 bytes holds two rows of 13 float16, that is, 52 bytes.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "BLOCK_BYTES", 64)
        content = data.read_content(tmp_path, {file: value_type})[file]
    assert content.digest == sha256(file.read_bytes()).hexdigest()
    # The largest number is 259 / 7; ``largest`` has its bits as an integer.
    assert content.largest == np.float16(259 / 7).view(np.uint16)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    split=st.sampled_from(["train", "test"]),
    index=st.integers(0, 6),
    file_index=st.integers(0, 4),
    use_first_bad_value=st.booleans(),
    rows_per_block=st.integers(1, 30),
)
def test_a_value_outside_its_range_is_named(  # noqa: PLR0917
    spec, tmp_path, split, index, file_index, use_first_bad_value, rows_per_block
):
    """One value of valid click data becomes a bad one: both the check and a run name it.

    Args:
        spec: describes the files, which the fixture has written to ``tmp_path``.
        split: of the file.
        index: which value of the file becomes a bad one; a file of the test split has 7 rows.
        file_index: which of the five files of the split: labels, numbers, or one of three tables.
        use_first_bad_value: which of two bad values it becomes.
        rows_per_block: decides in which block of the file, as it is read, the value is.
    """
    # The files of a split, each with the type of its rows: labels, numbers, and three tables.
    file, row_type = list(spec.get_row_types(split).items())[file_index]
    before = file.read_bytes()
    # Two bad values for each file: labels, which are read as bytes, must be 0 or 1, numbers finite,
    # categories from 0 to below their cardinality.
    bad_values = [(2, 255), (np.inf, np.nan), *((cardinality, -3) for cardinality in CARDINALITIES)]
    value = bad_values[file_index][0 if use_first_bad_value else 1]
    # ``base`` is the type of a single number: a row of the numerical file is an array of them.
    values = np.fromfile(file, row_type.base)
    values[index] = value
    values.tofile(file)
    # The check caches its result by the times of files. Two writes in quick succession may get the
    # same time from the clock, so each gets a time of its own here.
    time_ns = next(_FILE_TIMES_NS)
    os.utime(file, ns=(time_ns, time_ns))
    with pytest.MonkeyPatch.context() as patch:
        # Rows have at most 4 bytes, so the bad one may be in any block of the file.
        patch.setattr(data, "BLOCK_BYTES", 4 * rows_per_block)
        error = read_fault(data.check, tmp_path, REAL)
        assert str(read_fault(data.load, tmp_path, REAL)) == str(error)
    assert error.where == str(file)
    assert str(value) in error.what.split()
    file.write_bytes(before)  # the next example uses the same folder


def test_split_with_a_single_label_is_refused(spec, tmp_path):
    """An AUC compares clicked rows with others, so a split needs both.

    The fixture wrote valid data. Here all labels of the test split become 0: no row is clicked.
    """
    file = spec.files["test"].label
    np.zeros(ROWS["test"], bool).tofile(file)
    error = read_fault(data.check, tmp_path, REAL)
    assert (error.what, error.where) == ("all labels in the test split are 0", str(file))


@pytest.mark.parametrize(
    ("rules", "rated", "extra"),
    # A plan is rated ``closed`` if it keeps the published rules, and ``open`` otherwise.
    [
        (None, "closed", {}),  # written by the reference implementation, which notes no rules
        ({**PUBLISHED_RULES, "seed": 3}, "closed", {}),  # another order of rows is allowed
        ({**PUBLISHED_RULES, "log_offset": 1}, "open", {"prepare.log_offset": "1"}),
    ],
)
def test_run_on_data_with_other_preprocessing_rules_is_open(spec, tmp_path, rules, rated, extra):
    """``PUBLISHED_RULES`` are the options with which the published data were prepared.

    The fixture ``spec`` has written valid data; here only their description is written anew.

    Args:
        rules: with which the data were prepared, as their description notes.
        rated: what the plan of a run on these data says.
        extra: the rules that were changed, as the plan lists them.
    """
    write_spec(tmp_path, CARDINALITIES, num_numerical=2, rules=rules)
    plan = resolving.resolve(
        RunRequest(case="dlrm_criteo", recipe="tiny", data=tmp_path, device="cpu", nproc=1),
        generated_root=tmp_path,
    )
    assert (plan.rules, plan.extra) == (rated, extra)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batch_size=st.integers(1, 120), world_size=st.integers(1, 5), seed=st.none() | st.just(3))
def test_ranks_read_the_rows_of_their_shards(spec, batch_size, world_size, seed):
    """A global batch has ``batch_size`` rows of the file; each rank trains a part of them.

    ``make_rows`` returns what the fixture wrote: numbers and labels by row, and the categories of
    three tables. The tables are dealt to the ranks in turn. ``order`` is that of the batches; None:
    as in the file.
    """
    numerical, labels, categories = make_rows("train")
    count = -(-ROWS["train"] // batch_size)  # rounded up: the last batch may be short
    order = None if seed is None else np.random.default_rng(seed).permutation(count)
    numbers = range(count) if order is None else order  # of the batches, as read
    for rank in range(world_size):
        # A rank reads numbers and labels of its share, but its tables' categories of all rows.
        columns = [
            column_number for column_number in range(3) if column_number % world_size == rank
        ]
        batches = list(
            SplitReader(spec, "train", columns).read_batches(
                batch_size, rank=rank, world_size=world_size, order=order
            )
        )
        for number, batch in zip(numbers, batches, strict=True):
            global_batch = range(ROWS["train"])[number * batch_size : (number + 1) * batch_size]
            first, end = (
                len(global_batch) * rank_or_next // world_size for rank_or_next in (rank, rank + 1)
            )
            rows_of_rank = global_batch[first:end]
            assert batch.step_samples == len(global_batch)
            assert batch.numerical.tolist() == numerical[rows_of_rank].tolist()
            assert batch.labels.tolist() == labels[rows_of_rank].tolist()
            assert batch.categories.tolist() == categories[columns][:, global_batch].tolist()


def test_rows_are_complete_if_the_system_reads_less_than_asked_for(spec, monkeypatch):
    """``os.preadv`` may read fewer bytes than asked for; here at most five in a call.

    All 103 training rows are one batch, and must be those that the fixture wrote.
    """
    read = os.preadv

    def read_at_most_five_bytes(descriptor, buffers, offset):
        return read(descriptor, [buffers[0][:5]], offset)

    monkeypatch.setattr(os, "preadv", read_at_most_five_bytes)
    numerical, labels, categories = make_rows("train")
    (batch,) = SplitReader(spec, "train").read_batches(ROWS["train"])
    assert batch.numerical.tolist() == numerical.tolist()
    assert batch.labels.tolist() == labels.tolist()
    assert batch.categories.tolist() == categories.tolist()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=8))
def test_expected_auc_counts_every_pair(values):
    """The AUC is the share of pairs in which the clicked row has the higher score.

    Clicks are random, with the sigmoid of a score as their chance. So every ordered pair of rows
    counts with the chance that exactly its first row is clicked; equal scores count half.
    """
    scores = np.array(values, float)
    chance = 1 / (1 + np.exp(-scores))  # of a click
    right = pairs = 0.0
    for i, score in enumerate(scores):
        for j, other in enumerate(scores):
            if i != j:
                # The chance that row i is clicked and row j is not.
                weight = chance[i] * (1 - chance[j])
                pairs += weight
                right += weight * ((score > other) + (score == other) / 2)
    assert generated.compute_expected_auc(scores) == pytest.approx(right / pairs, abs=1e-12)


@pytest.fixture
def small_generated_splits(monkeypatch):
    """Let the generator write 1,000 training rows and 300 test rows."""
    # The best AUC is cached by seed: forget it before and after the smaller splits.
    monkeypatch.setattr(generated, "ROWS", {"train": 1_000, "test": 300})
    generated._compute_best_auc.cache_clear()
    yield
    generated._compute_best_auc.cache_clear()


@pytest.mark.usefixtures("small_generated_splits")
def test_generated_clicks_depend_only_on_the_seed(tmp_path):
    """Data are generated three times: twice with the seed 7, and once with 8.

    The files of a folder are compared by name. The recipe has only the fields that ``generate``
    reads.
    """
    folders = [tmp_path / name for name in ("one", "again", "other")]
    for folder, seed in zip(folders, (7, 7, 8), strict=True):
        folder.mkdir()
        generated.generate(folder, SimpleNamespace(data="generated", seed=seed))
    first, second, other = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*.*")}
        for folder in folders
    )
    assert first == second
    # Another seed changes all files but the description.
    assert [name.name for name in first if first[name] == other[name]] == ["feature_spec.yaml"]


@pytest.mark.usefixtures("small_generated_splits")
def test_generated_clicks_are_written_as_drawn_with_the_best_auc_they_allow(tmp_path):
    """The files on disk hold the rows that ``draw_rows`` draws from the same seed, 7.

    The fixture limits them to 1,000 training rows and 300 test rows. Clicks are drawn with chances
    that each row's ``log_odds`` give, so not even these score an AUC of 1.
    """
    recipe = SimpleNamespace(data="generated", seed=7)
    generated.generate(tmp_path, recipe)
    spec = read_spec(tmp_path)
    assert set(spec.category_dtypes) == {"int8", "int16", "int32"}
    assert spec.cardinalities == generated.CARDINALITIES
    drawn_rows = generated.draw_rows("train", 7)
    (batch,) = SplitReader(spec, "train").read_batches(1_000)
    assert (batch.numerical == drawn_rows.numerical).all()
    assert (batch.labels == drawn_rows.labels).all()
    # On disk, the categories of a table may be far apart.
    strides = np.array(generated.STRIDES)[:, None]
    assert (batch.categories == np.stack(drawn_rows.categories).astype(int) * strides).all()
    facts = data.check(tmp_path, recipe)
    assert facts.best_quality == generated.compute_expected_auc(
        generated.draw_rows("test", 7).log_odds
    )
    assert (facts.train_samples, facts.eval_samples) == (1_000, 300)
