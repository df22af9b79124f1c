"""Read sentences and labels from GLUE's files, parquet or TSV, and check each row.

Owns the two text formats and the errors in them. Must not know tokens or torch. Rows are
counted from 1 in the order of the file, without the header.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COLUMNS = ("sentence", "label")
ROW_RULE = "a row has a sentence with at least one word, and a label of 0 or 1"
REMEDY = "use GLUE's train and validation files (its test file has no labels), fetched again"
_fault = partial(DataError, rule=ROW_RULE, remedy=REMEDY)


@dataclass(frozen=True, slots=True)
class Texts:
    """The rows of one split: sentences, unchanged, and labels, 0 or 1."""

    sentences: list[str]
    labels: list[int]


def read_texts(files: Sequence[Path]) -> Texts:
    """Read one split from its files in order; each must have a row.

    Raises:
        DataError: a file is damaged, or holds a row that breaks a rule.
    """
    texts = Texts([], [])
    for file in files:
        before = len(texts.labels)
        for row, (sentence, label) in enumerate(_rows(file), start=1):
            where = f"{file}, row {row}"
            if not isinstance(sentence, str) or not sentence.strip():
                raise _fault(f"sentence is {sentence!r}", where=where)
            if label not in (0, 1):
                raise _fault(f"label is {label!r}", where=where)
            texts.sentences.append(sentence)
            texts.labels.append(label)
        if len(texts.labels) == before:
            raise _fault("no rows", where=str(file))
    return texts


def _rows(file: Path) -> Iterator[tuple[Any, Any]]:
    """Yield sentence and label of each row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file.suffix == ".parquet":
            table = pq.read_table(file)
            _refuse_names(file, table.column_names)
            columns = [table[name].to_pylist() for name in COLUMNS]
            return zip(*columns, strict=True)
        return _tsv_rows(file, file.read_text(encoding="utf-8"))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        first = str(error).partition("\n")[0]
        raise _fault(f"not readable as {file.suffix[1:]}: {first}", where=str(file)) from None


def _tsv_rows(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a TSV file with a header; quotes have no meaning in it."""
    header, *lines = text.removesuffix("\n").split("\n")
    names = header.rstrip("\r").split("\t")
    _refuse_names(file, names)
    sentence, label = map(names.index, COLUMNS)
    for number, line in enumerate(lines, start=1):
        fields = line.rstrip("\r").split("\t")
        if len(fields) != len(names):
            where = f"{file}, row {number} (line {number + 1})"
            raise _fault(f"{len(fields)} tab-separated field(s), not {len(names)}", where=where)
        yield fields[sentence], {"0": 0, "1": 1}.get(fields[label], fields[label])


def _refuse_names(file: Path, names: Sequence[str]) -> None:
    if any(names.count(name) != 1 for name in COLUMNS):
        what = f"no columns {' and '.join(COLUMNS)}, each once; there are: {', '.join(names)}"
        raise _fault(what, where=str(file))
