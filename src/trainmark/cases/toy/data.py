"""Generate and check the data of the two clouds; no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from math import erf, sqrt
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from trainmark.errors import DataError
from trainmark.protocols import Counts
from trainmark.spec import DataFacts

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.recipe import Recipe

FEATURES = 16
DISTANCE = 3.0  # between the two means, in standard deviations
BAYES_ACCURACY = 0.5 * (1 + erf(DISTANCE / 2 / sqrt(2)))  # 0.933: no model scores higher
ROWS = {"train": 4_096, "validation": 1_000}


def generate(folder: Path, recipe: Recipe) -> None:
    """Write ``train.npz`` and ``validation.npz``: x (rows, 16) float32, y (rows,) int64.

    The rows of each label are a normally distributed cloud around a mean of their own.
    """
    rng = np.random.default_rng(recipe.seed)
    direction = rng.standard_normal(FEATURES)
    direction *= DISTANCE / np.linalg.norm(direction)  # the vector from one mean to the other
    for split, rows in ROWS.items():
        labels = rng.integers(0, 2, rows)
        means = (labels[:, None] - 0.5) * direction  # the clouds lie on both sides of the origin
        features = rng.standard_normal((rows, FEATURES)) + means
        np.savez(folder / f"{split}.npz", x=features.astype(np.float32), y=labels)


@dataclass(frozen=True, slots=True)
class Clouds:
    """One split: points of two clouds, and the cloud (0 or 1) of each as its label.

    It is a ``trainmark.data.splits.Split``.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: NDArray[np.int64]) -> tuple[tuple[Any, Any], Counts]:
        """Return features (B, FEATURES) and labels (B,) of ``rows``, and the number of samples."""
        # Each sample counts as one sequence.
        counts = Counts(samples=len(rows), sequences=len(rows))
        return (self.features[rows], self.labels[rows]), counts


def load(folder: Path) -> dict[str, Clouds]:
    """Read both splits; check shapes and labels.

    Raises:
        DataError: a file cannot be read, or a row is invalid.
    """
    splits = {}
    for split in ROWS:
        file = folder / f"{split}.npz"
        try:
            with np.load(file) as arrays:
                features = arrays["x"].astype(np.float32)
                labels = arrays["y"]
        except FileNotFoundError:  # only in a folder of --data; the case generates both files
            fix = "omit --data; the case generates its data"
            raise DataError("no such file", where=str(file), fix=fix) from None
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise DataError(f"cannot be read: {error}", where=str(file)) from None
        if labels.ndim != 1 or features.shape != (len(labels), FEATURES):
            raise DataError(
                f"x has shape {features.shape}, and y has shape {labels.shape}",
                where=str(file),
                rule=f"x must have shape (rows, {FEATURES}), and y must have shape (rows,)",
            )
        # Checked before they are converted, which would make a label of 0.5 a 0.
        invalid_rows = np.flatnonzero((labels != 0) & (labels != 1))
        if len(invalid_rows):
            raise DataError(
                "the label is neither 0 nor 1", where=f"{file}, row {invalid_rows[0] + 1}"
            )
        splits[split] = Clouds(features, labels.astype(np.int64))
    return splits


def check(folder: Path, recipe: Recipe) -> DataFacts:
    """Check both files; return their numbers of rows, content id and best possible accuracy."""
    rows = {split: len(samples) for split, samples in load(folder).items()}
    digest = sha256(b"".join((folder / f"{split}.npz").read_bytes() for split in ROWS))
    return DataFacts(
        train_samples=rows["train"],
        eval_samples=rows["validation"],
        content_id=digest.hexdigest()[:16],
        layout="npz",
        # The best accuracy of any model is known only for the distribution that is generated.
        best_quality=BAYES_ACCURACY if recipe.data == "generated" else None,
    )
