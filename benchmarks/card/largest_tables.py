"""The largest tables that fit a device, and clicks on them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from benchmarks.dlrm_plain import DIM, NUM_NUMERICAL, NUM_TABLES
from trainmark.cases.dlrm_criteo.placement import FLOAT_BYTES, TABLES_SHARE

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT_BYTES = 1 << 30  # at most, of the process that asks, beside those that train


def count_rows_that_fit(device_name: str) -> int:
    """Return the rows of each table with which all of them take what the case allows them."""
    from trainmark import devices
    from trainmark.train.step_memory import read_rank_memory

    memory = read_rank_memory(devices.choose_vendor(device_name).open(0, 1), 1)
    assert memory is not None, f"{device_name} does not tell its memory"
    budget_bytes = int(TABLES_SHARE * (memory.rank_bytes - CONTEXT_BYTES))
    return budget_bytes // (DIM * FLOAT_BYTES) // NUM_TABLES


def write_clicks(folder: Path, rows: int, *, train: int, test: int) -> str:
    """Write clicks on uniform rows of tables of ``rows``, 130 bytes each; return ``folder``.

    Args:
        train, test: clicks of each split.
    """
    import numpy as np

    from trainmark.cases.dlrm_criteo.data.layout import FeatureSpec, write_spec

    shutil.rmtree(folder, ignore_errors=True)
    rng, tables = np.random.default_rng(1), (rows,) * NUM_TABLES
    spec = FeatureSpec.create(folder, tables)
    for split, files in spec.files.items():
        samples = train if split == "train" else test
        files.label.parent.mkdir(parents=True)
        (rng.random(samples) < 0.3).tofile(files.label)
        rng.random((samples, NUM_NUMERICAL), np.float32).astype("<f2").tofile(files.numerical)
        for file, dtype in zip(files.categories, spec.category_dtypes, strict=True):
            rng.integers(rows, size=samples, dtype=np.dtype(dtype).newbyteorder("<")).tofile(file)
    write_spec(folder, tables)
    return str(folder)
