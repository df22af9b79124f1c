"""Turn a corpus of JSON lines into the pair of indexed token files that this case reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.data.corpus import find_source_files
from trainmark.data.pairs import write_pairs

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.prepared import Say

_PAIR_NAME = "corpus_text_document"


def prepare(raw: Path, data: Path, say: Say, **options: Any) -> None:
    """Write the data folder ``data``: one pair of indexed token files.

    Args:
        raw: a file of JSON lines, or a folder of such files.
        say: called with each line of progress.
        options: the user's options, such as ``tokenizer``; parameters of ``write_pairs``.
    """
    pairs = {_PAIR_NAME: find_source_files(raw)}
    write_pairs(raw, data, say, case="gpt_megatron", pairs=pairs, **options)
