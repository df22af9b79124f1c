"""The reader gives every rank its rows and columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmark.cases.dlrm_criteo.data.reader import SplitReader
from trainmark.cases.dlrm_criteo.data.spec_file import write_spec

CARDINALITIES = (100, 1_000, 50_000)
ROWS = {"train": 103, "test": 7}


def rows_of(split):
    """Numerical, labels and categories whose values tell the row they stand in."""
    numbers = np.arange(ROWS[split])
    numerical = (numbers[:, None] + np.arange(2) / 2).astype(np.float16)
    categories = np.stack([numbers % 100, numbers * 9, numbers * 450])
    return numerical, (numbers % 3 == 0).astype(np.float32), categories


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clicks")
    spec = write_spec(folder, CARDINALITIES, num_numerical=2)
    for split, files in spec.files.items():
        files.label.parent.mkdir()
        numerical, labels, categories = rows_of(split)
        numerical.tofile(files.numerical)
        labels.astype(bool).tofile(files.label)
        for file, column, dtype in zip(
            files.categories, categories, spec.category_dtypes, strict=True
        ):
            column.astype(dtype).tofile(file)
    return spec


@settings(max_examples=30, deadline=None)
@given(
    batch_size=st.integers(1, 120),
    world_size=st.integers(1, 5),
    seed=st.none() | st.integers(0, 9),
)
def test_ranks_share_rows_as_sharding_cuts_them(spec, batch_size, world_size, seed):
    numerical, labels, categories = rows_of("train")
    count = -(-103 // batch_size)
    order = None if seed is None else np.random.default_rng(seed).permutation(count)
    numbers = range(count) if order is None else order
    for rank in range(world_size):
        columns = [c for c in range(3) if c % world_size == rank]
        found = list(
            SplitReader(spec, "train", columns).batches(
                batch_size, rank=rank, world_size=world_size, order=order
            )
        )
        assert len(found) == count
        for number, batch in zip(numbers, found, strict=True):
            whole = range(103)[number * batch_size : (number + 1) * batch_size]
            first, end = (len(whole) * r // world_size for r in (rank, rank + 1))
            mine = whole[first:end]
            assert batch.step_samples == len(whole)
            assert batch.numerical.tolist() == numerical[mine].tolist()
            assert batch.labels.tolist() == labels[mine].tolist()
            assert batch.categories.tolist() == categories[columns][:, whole].tolist()
