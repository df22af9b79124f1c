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


def auc(scores, labels):
    """Count the pairs in the right order; scores without ties."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    clicked = int(labels.sum())
    right = ranks[labels].sum() - clicked * (clicked + 1) / 2
    return right / (clicked * (len(labels) - clicked))


def auc_of_each_draw(log_odds, draws):
    rng = np.random.default_rng(5)
    chance = 1 / (1 + np.exp(-log_odds))
    return np.array([auc(log_odds, rng.random(len(chance)) < chance) for _ in range(draws)])


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


def test_the_best_auc_is_that_of_drawn_labels(clicks):
    best = generate.best_auc(SimpleNamespace(seed=3))
    found = auc_of_each_draw(clicks.log_odds, 40)
    assert found.std() < 0.0025  # what the sentence on sampling error says
    assert abs(found.mean() - best) < 4 * found.std() / 40**0.5
    assert abs(auc(clicks.log_odds, clicks.labels) - best) < 4 * found.std()
    assert best == pytest.approx(0.884, abs=0.004)


def test_adding_up_alone_does_not_come_near(clicks):
    """Without the products nine tenths of the way to the best AUC are out of reach."""
    model, best = generate.planted(), generate.best_auc(SimpleNamespace(seed=3))
    products = np.zeros(len(clicks.labels))
    for pair in generate.PAIRS:
        one, other = (model.factors[table][clicks.ranks[table]] for table in pair)
        products += generate.PRODUCT * one * other
    covered = {
        "products": (auc(products, clicks.labels) - 0.5) / (best - 0.5),
        "the rest": (auc(clicks.log_odds - products, clicks.labels) - 0.5) / (best - 0.5),
    }
    assert covered["products"] < 0.7
    assert covered["the rest"] < 0.8


def test_a_click_is_as_frequent_as_its_log_odds_say(clicks):
    order = np.argsort(clicks.log_odds)
    for tenth in np.array_split(order, 10):
        chance = (1 / (1 + np.exp(-clicks.log_odds[tenth]))).mean()
        error = (chance * (1 - chance) / len(tenth)) ** 0.5
        assert abs(clicks.labels[tenth].mean() - chance) < 4 * error


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
