"""Read token rows from the published npz format, check them and drop their padding.

Owns the rules of the arrays. The published files hold 512 int64 a row, half a gigabyte, of
which about one fortieth are tokens. Pickled members are never loaded.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trainmark.errors import DataError

from .tokens import ragged

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.data.split import Ragged

MEMBERS = ("label", "attention_mask", "input_ids")  # others are not read
RULE = (
    "input_ids and attention_mask are (rows, tokens), the mask ones and then zeros; label has 0 "
    "or 1 for each row"
)
REMEDY = (
    "give the model folder and the recipe that the data was made for, or run "
    "`trainmark prepare distilbert_sst2`"
)
_fault = partial(DataError, remedy=REMEDY)


def read_npz(
    file: Path, *, seq_length: int | None, vocab_size: int
) -> tuple[Ragged, NDArray[np.int64]]:
    """Return the token ids and labels of one split.

    Args:
        seq_length: the recipe's; columns after it must be padding. None: the file's width.
        vocab_size: token ids are in [0, vocab_size).

    Raises:
        DataError: a damaged file, a missing member, or a row that breaks a rule.
    """
    try:
        with np.load(file) as arrays:
            labels, mask, ids = (arrays[name] for name in MEMBERS)
    except Exception as error:  # noqa: BLE001  the library raises whatever damage leads to
        what = f"not readable as npz with {', '.join(MEMBERS)}: {error}"
        raise _fault(what, where=str(file), rule=RULE) from None
    whole = all(array.dtype.kind in "iub" for array in (labels, mask, ids))
    if not whole or ids.ndim != 2 or mask.shape != ids.shape or labels.shape != ids.shape[:1]:
        what = f"label has shape {labels.shape}, input_ids {ids.shape}, attention_mask {mask.shape}"
        raise _fault(what, where=str(file), rule=RULE)
    if not len(ids):
        raise _fault("no rows", where=str(file), rule="a split has at least one row")
    lengths = mask.sum(1, dtype=np.int64)
    prefix = np.arange(mask.shape[1]) < lengths[:, None]
    for name, bad, rule in (
        ("label", (labels != 0) & (labels != 1), "a label is 0 or 1"),
        ("attention_mask", (prefix != mask).any(1) | (lengths == 0), RULE),
        ("attention_mask", lengths > (seq_length or mask.shape[1]),
         f"a row has at most seq_length={seq_length} tokens; rows are never cut silently"),
        ("input_ids", ((ids < 0) | (ids >= vocab_size)).any(1),
         f"a token id is in [0, {vocab_size}), the vocab_size of model/config.json"),
    ):  # fmt: skip
        if bad.any():
            row = int(bad.argmax())
            found = {"label": labels, "attention_mask": lengths}.get(name)
            shown = found[row] if found is not None else f"{ids[row].min()} to {ids[row].max()}"
            what = f"{name} of {shown}" + (" tokens" if name == "attention_mask" else "")
            raise _fault(what, where=f"{file}, {name}, row {row + 1}", rule=rule)
    return ragged(ids[prefix], lengths), labels.astype(np.int64)
