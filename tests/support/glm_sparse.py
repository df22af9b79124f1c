"""Write choice sequences as the published sparse HDF5 has them; the program only reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from trainmark.cases.glm_superglue.data.examples import ChoiceSequence


def write_matrix(
    file: h5py.File,
    name: str,
    rows: Sequence[Any],
    columns: int,
    *,
    form: str = "csr",
    **storage: Any,
) -> None:
    """Write rows as a CSR or CSC group of h5sparse; zeros fill rows shorter than ``columns``.

    Args:
        name: of the group in the file.
        rows: the numbers of each row, of any length up to ``columns``.
        form: ``csr`` or ``csc``.
        storage: further arguments of h5py's ``create_dataset`` for the numbers and their indices.
    """
    dense = np.zeros((len(rows), columns), np.int64)
    for number, row in enumerate(rows):
        dense[number, : len(row)] = row
    lines = dense if form == "csr" else dense.T  # CSC keeps columns as CSR keeps rows
    major, minor = np.nonzero(lines)  # the line of each number, and its place in the line
    group = file.create_group(name)
    group.attrs["h5sparse_format"] = form
    group.attrs["h5sparse_shape"] = dense.shape
    group.create_dataset("data", data=lines[major, minor], **storage)
    group.create_dataset("indices", data=minor.astype(np.int32), **storage)
    ends = np.cumsum(np.bincount(major, minlength=len(lines)))  # of the lines among the numbers
    group.create_dataset("indptr", data=np.concatenate([[0], ends]))


def write_split(
    path: Path,
    samples: Iterable[list[ChoiceSequence]],
    *,
    columns: int,
    evaluation: bool,
    **storage: Any,
) -> None:
    """Write a split of samples in the published format.

    ``target`` and ``logit_mask`` have a row for each sequence and a column for each of its tokens:
    the token to predict there, and 1 where one is scored. ``position`` has two rows for each
    sequence, its positions and those within the answer block. ``mask`` is the published name of the
    place of the separator.

    Args:
        columns: tokens that sequences are padded to.
        evaluation: also write which candidates are right.
        storage: further arguments of h5py's ``create_dataset``, such as ``chunks``.
    """
    all_samples = list(samples)
    sequences = [sequence for sample in all_samples for sequence in sample]
    ends = np.cumsum([len(sample) for sample in all_samples])  # of samples, among the sequences
    target, scored = (np.zeros((len(sequences), columns), np.int64) for _ in range(2))
    for number, item in enumerate(sequences):
        # The rows of the model's output that are scored are the columns of these matrices.
        target[number, item.target_rows] = item.target_ids
        scored[number, item.target_rows] = 1
    positions = [row for item in sequences for row in (item.positions, item.block_positions)]
    with h5py.File(path, "w") as file:
        write_matrix(file, "text", [item.ids for item in sequences], columns, **storage)
        write_matrix(file, "position", positions, columns, **storage)
        write_matrix(file, "target", target, columns, **storage)
        write_matrix(file, "logit_mask", scored, columns, **storage)
        write_matrix(file, "mask", [[item.separator] for item in sequences], columns=1, **storage)
        bounds = np.stack([np.append(0, ends[:-1]), ends], 1)  # of each sample's sequences
        write_matrix(file, "choice_start_end", bounds, columns=2, **storage)
        if evaluation:
            right = [np.flatnonzero([item.correct for item in sample]) for sample in all_samples]
            stops = np.cumsum([len(row) for row in right])  # of samples, among ``answers``
            answers = np.concatenate(right)  # each an index among the sample's candidates
            write_matrix(file, "answer_idx", answers[:, None], columns=1, **storage)
            bounds = np.stack([np.append(0, stops[:-1]), stops], 1)
            write_matrix(file, "answer_start_end", bounds, columns=2, **storage)
