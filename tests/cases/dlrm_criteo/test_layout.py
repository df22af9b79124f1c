"""The description of a click log, the sizes of its files, and everything that is refused."""

import re

import pytest

from trainmark.cases.dlrm_criteo.data.layout import FeatureSpec
from trainmark.cases.dlrm_criteo.data.spec_file import read_spec, write_spec
from trainmark.errors import DataError

CARDINALITIES = (3, 129, 40_000)

# The other program's form: aliases where lists are shared, keys in its order.
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


def fill(spec, rows):
    for split, count in rows.items():
        for file, size in spec.row_bytes(split).items():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(bytes(size * count))


@pytest.fixture
def folder(tmp_path):
    fill(FeatureSpec.of(tmp_path, CARDINALITIES), {"train": 5, "test": 2})
    write_spec(tmp_path, CARDINALITIES)
    return tmp_path


def fault(act, *arguments):
    with pytest.raises(DataError) as caught:
        act(*arguments)
    error = caught.value
    assert error.where, error.what
    assert error.rule, error.what
    assert error.remedy, error.what
    return error


def spec_fault(folder, pattern, new):
    file = folder / "feature_spec.yaml"
    text, count = re.subn(pattern, new, file.read_text(), count=1, flags=re.DOTALL)
    assert count == 1
    file.write_text(text)
    error = fault(read_spec, folder)
    assert str(file) in error.where
    return error


def test_what_is_written_is_read_again(folder):
    spec = read_spec(folder)
    assert spec == FeatureSpec.of(folder, CARDINALITIES)
    assert spec.num_numerical == 13
    assert spec.cardinalities == CARDINALITIES
    assert spec.category_dtypes == ("int8", "int16", "int32")
    assert spec.files["test"].categories[2] == folder / "test" / "cat_2.bin"
    assert list(spec.row_bytes("train").values()) == [1, 26, 1, 2, 4]
    assert (spec.num_rows("train"), spec.num_rows("test")) == (5, 2)
    assert "&" not in (folder / "feature_spec.yaml").read_text()
    assert not list(folder.glob(".*"))


def test_the_form_with_aliases_is_read(tmp_path):
    (tmp_path / "feature_spec.yaml").write_text(NVIDIA_FORM)
    spec = read_spec(tmp_path)
    assert (spec.num_numerical, spec.cardinalities) == (2, (127, 2**31))
    assert spec.category_dtypes == ("int16", "int32")
    assert spec.files["train"] == spec.files["test"]
    assert spec.files["train"].categories[1] == tmp_path / "test" / "other.bin"


@pytest.mark.parametrize(
    ("pattern", "new", "what"),
    [
        (r"int8\n    cardinality: 3\b", "int8\n    cardinality: 129", "cat_0.bin: cardinality 129"),
        (r"dtype: float16", "dtype: bool", "num_0: a column of this channel is float16"),
        (r"  num_4:\n    dtype: float16\n", "", "num_4 is not once in channel_spec and once"),
        (r"    - num_0\n    - num_1\n", "    - num_1\n    - num_0\n", "train: one file for all"),
        (r"channel_spec:", "channel_spec: [", "not YAML"),
    ],
)
def test_a_spec_that_breaks_a_rule_is_refused(folder, pattern, new, what):
    assert what in str(spec_fault(folder, pattern, new))


def test_files_of_other_rows_are_named_with_their_counts(folder):
    spec = read_spec(folder)
    spec.files["train"].categories[2].write_bytes(bytes(4 * 6))
    error = fault(spec.num_rows, "train")
    assert error.where == str(folder / "train" / "cat_2.bin")
    assert error.what == f"6 rows, where {folder / 'train' / 'label.bin'} has 5"
