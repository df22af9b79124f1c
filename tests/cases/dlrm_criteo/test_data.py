"""The check of a click log's values: what is named, what is kept, what is refused."""

import os
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmark.cases.dlrm_criteo import data
from trainmark.cases.dlrm_criteo import data as clicks
from trainmark.cases.dlrm_criteo.data import generated as generate
from trainmark.cases.dlrm_criteo.data.layout import PUBLISHED_RULES, FeatureSpec
from trainmark.cases.dlrm_criteo.data.spec_file import write_spec
from trainmark.errors import DataError
from trainmark.plan import resolving
from trainmark.plan.request import RunRequest

REAL = SimpleNamespace(data="real", seed=1)
CARDINALITIES = (100, 1_000, 50_000)
ROWS = {"train": 40, "test": 10}


@dataclass
class Folder:
    path: object
    spec: FeatureSpec

    def put(self, file, at, value, dtype):
        """Change one value and the file's time of change."""
        stamp = file.stat().st_mtime_ns
        values = np.fromfile(file, dtype)
        values[at] = value
        values.tofile(file)
        os.utime(file, ns=(stamp + 1, stamp + 1))

    def fault(self):
        with pytest.raises(DataError) as caught:
            data.check(self.path, REAL)
        error = caught.value
        assert error.where, error.what
        assert error.rule, error.what
        assert error.remedy, error.what
        with pytest.raises(DataError) as again:
            data.load(self.path, REAL)
        assert str(again.value) == str(error)
        return error


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(2)
    spec = FeatureSpec.of(tmp_path, CARDINALITIES, num_numerical=3)
    for split, files in spec.files.items():
        files.label.parent.mkdir()
        rng.standard_normal((ROWS[split], 3)).astype(np.float16).tofile(files.numerical)
        (np.arange(ROWS[split]) % 2 == 0).tofile(files.label)
        for file, most, dtype in zip(
            files.categories, CARDINALITIES, spec.category_dtypes, strict=True
        ):
            rng.integers(0, most, ROWS[split]).astype(dtype).tofile(file)
    return Folder(tmp_path, write_spec(tmp_path, CARDINALITIES, num_numerical=3))


def test_a_sound_folder_passes_and_loads(folder):
    facts = data.check(folder.path, REAL)
    assert (facts.train_samples, facts.eval_samples) == (40, 10)
    assert (facts.layout, facts.best_quality) == ("criteo-split-binary", None)
    loaded = data.load(folder.path, REAL)
    assert loaded.spec == folder.spec
    assert loaded.num_rows == ROWS
    assert loaded.content_id == facts.content_id


def test_generated_data_passes_with_the_best_auc_it_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "ROWS", {"train": 2_000, "test": 500})
    generate._best_auc.cache_clear()
    recipe = SimpleNamespace(data="generated", seed=4)
    generate.generate(tmp_path, recipe)
    facts = data.check(tmp_path, recipe)
    assert facts.best_quality == generate.expected_auc(generate.clicks("test", 4).log_odds)
    assert (facts.train_samples, facts.eval_samples) == (2_000, 500)
    generate._best_auc.cache_clear()


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    split=st.sampled_from(["train", "test"]), table=st.integers(0, 2), row=st.integers(0, 9),
    value=st.sampled_from(["below", "above"]), block=st.integers(1, 30),
)  # fmt: skip
def test_a_category_outside_its_table_is_named(folder, split, table, row, value, block):  # noqa: PLR0917
    file, dtype = folder.spec.files[split].categories[table], folder.spec.category_dtypes[table]
    before, outside = file.read_bytes(), -3 if value == "below" else CARDINALITIES[table]
    folder.put(file, row, outside, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clicks, "BLOCK_BYTES", 4 * block)
        error = folder.fault()
    assert error.where == f"{file}, row {row} (counted from 0)"
    assert error.what == f"category {outside}"
    assert f"[0, {CARDINALITIES[table]})" in error.rule
    file.write_bytes(before)


def test_test_rows_of_one_label_alone_are_refused(folder):
    file = folder.spec.files["test"].label
    np.zeros(10, bool).tofile(file)
    error = folder.fault()
    assert (error.what, error.where) == ("all labels are 0", str(file))


@pytest.mark.parametrize(
    ("rules", "rated", "extra"),
    [
        (None, "closed", {}),
        ({**PUBLISHED_RULES, "seed": 3}, "closed", {}),
        ({**PUBLISHED_RULES, "order": "input", "log_offset": 1}, "open",
         {"prepare.order": "input", "prepare.log_offset": "1"}),
    ],
)  # fmt: skip
def test_a_run_on_data_of_other_rules_is_open(folder, rules, rated, extra):
    write_spec(folder.path, CARDINALITIES, num_numerical=3, rules=rules)
    found = resolving.resolve(
        RunRequest(case="dlrm_criteo", recipe="tiny", data=folder.path, device="cpu", nproc=1),
        generated_root=folder.path,
    )  # fmt: skip
    assert (found.rules, found.extra) == (rated, extra)
