"""Generated clicks follow the planted model, and its best AUC is what it says."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmark.cases.dlrm_criteo.data import generated as generate
from trainmark.cases.dlrm_criteo.data.reader import SplitReader
from trainmark.cases.dlrm_criteo.data.spec_file import read_spec


@pytest.fixture(scope="module")
def clicks():
    return generate.clicks("test", 3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=8))
def test_the_expected_auc_counts_every_pair(values):
    scores = np.array(values, float)
    chance = 1 / (1 + np.exp(-scores))
    right = pairs = 0.0
    for i, one in enumerate(scores):
        for j, other in enumerate(scores):
            if i != j:
                weight = chance[i] * (1 - chance[j])
                pairs += weight
                right += weight * ((one > other) + (one == other) / 2)
    assert generate.expected_auc(scores) == pytest.approx(right / pairs, abs=1e-12)


def test_what_is_written_is_what_was_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "ROWS", {"train": 1_000, "test": 300})
    folders = [tmp_path / name for name in ("one", "again", "other")]
    for folder, seed in zip(folders, (7, 7, 8), strict=True):
        folder.mkdir()
        generate.generate(folder, SimpleNamespace(seed=seed))
    one, again, other = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*.*")}
        for folder in folders
    )
    assert one == again
    assert len(one) == 1 + 2 * 28
    assert one.keys() == other.keys()
    assert [name.name for name in one if one[name] == other[name]] == ["feature_spec.yaml"]
    spec = read_spec(folders[0])
    assert set(spec.category_dtypes) == {"int8", "int16", "int32"}
    assert spec.cardinalities == generate.CARDINALITIES
    made = generate.clicks("train", 7)
    (batch,) = SplitReader(spec, "train").batches(1_000)
    assert (batch.numerical == made.numerical).all()
    assert (batch.labels == made.labels).all()
    strides = np.array(generate.STRIDES)[:, None]
    assert (batch.categories == np.stack(made.ranks).astype(int) * strides).all()
    assert (batch.categories < np.array(generate.CARDINALITIES)[:, None]).all()
