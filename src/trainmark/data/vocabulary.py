"""Whether a vocabulary has as many entries as the model that it is for.

Owns the one rule: a shorter vocabulary is not the model's own, for it was cut, or belongs to
another model whose ids mean other words; training would go on without an error. A model may
have its table padded, and which multiple is the case's to say: the published DistilBERT and
Llama-2 are not padded, GLM's and Megatron's tables are, to 128.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def refuse_short(
    file: Path, *, entries: int, vocab_size: int, of: str, remedy: str, multiple: int = 1
) -> None:
    """Refuse a vocabulary of ``entries`` for a model of ``vocab_size``.

    Args:
        file: the vocabulary.
        of: where ``vocab_size`` is said.
        multiple: of which the model's size may be, above ``entries``.

    Raises:
        DataError: the model has more, naming both numbers.
    """
    padded = -(-entries // multiple) * multiple
    if vocab_size <= padded:
        return
    padding = f", padded to {padded} at most" if multiple > 1 else ""
    raise DataError(
        f"{entries} entries, the model has {vocab_size}",
        where=str(file),
        rule=f"the vocabulary is the model's own{padding}; {of} says vocab_size {vocab_size}",
        remedy=remedy,
    )
