"""Sentences and labels out of GLUE's files, parquet or TSV, each row checked.

Owns the two text formats and the words of their faults. Knows no tokens and no torch.
Rows are counted from 1 as they stand in the file, a header not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LABEL_RULE = "a label is 0 or 1"
SENTENCE_RULE = "a sentence is text with at least one word"
FETCH_AGAIN = "fetch the file again, or run `trainmark prepare distilbert_sst2`"


@dataclass(slots=True)
class Texts:
    """The rows of one split: sentences as they stand in the file, labels 0 or 1."""

    sentences: list[str]
    labels: list[int]


def read_texts(files: Sequence[Path]) -> Texts:
    """Read one split from its files in order.

    Raises:
        DataError: a file is empty, damaged, or holds a row that breaks a rule.
    """
    texts = Texts([], [])
    for file in files:
        part = read_parquet(file) if file.suffix == ".parquet" else read_tsv(file)
        if not part.labels:
            raise DataError(
                "no rows", where=str(file), rule="a split has at least one row", remedy=FETCH_AGAIN
            )
        _refuse_bad_rows(part, file)
        texts.sentences += part.sentences
        texts.labels += part.labels
    return texts


def refuse_empty_file(file: Path) -> None:
    """Raise DataError when ``file`` is missing or holds no byte."""
    if not file.is_file():
        raise DataError("no such file", where=str(file), remedy=FETCH_AGAIN)
    if file.stat().st_size == 0:
        raise DataError("the file is empty (0 bytes)", where=str(file), remedy=FETCH_AGAIN)


def _refuse_bad_rows(texts: Texts, file: Path) -> None:
    for row, (sentence, label) in enumerate(
        zip(texts.sentences, texts.labels, strict=True), start=1
    ):
        if label not in (0, 1):
            remedy = "use the train and validation files; GLUE's test file has no labels"
            raise DataError(
                f"label is {label}", where=_place(file, row), rule=LABEL_RULE, remedy=remedy
            )
        if not sentence.strip():
            raise DataError(
                "the sentence is blank",
                where=_place(file, row),
                rule=SENTENCE_RULE,
                remedy="remove the row or fetch the file again",
            )


def _place(file: Path, row: int) -> str:
    line = f" (line {row + 1})" if file.suffix == ".tsv" else ""
    return f"{file}, row {row}{line}"


def read_parquet(file: Path) -> Texts:
    """Read the columns ``sentence`` (text) and ``label`` (whole numbers) of a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    refuse_empty_file(file)
    try:
        names = pq.read_schema(file).names
        _refuse_missing_columns(file, names)
        table = pq.read_table(file, columns=["sentence", "label"])
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"not readable as parquet: {_first_line(error)}", where=str(file), remedy=FETCH_AGAIN
        ) from None
    sentences, labels = table["sentence"], table["label"]
    kind = sentences.type.value_type if pa.types.is_dictionary(sentences.type) else sentences.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(
            f"column sentence holds {sentences.type}",
            where=str(file),
            rule=SENTENCE_RULE,
            remedy=FETCH_AGAIN,
        )
    if not pa.types.is_integer(labels.type):
        raise DataError(
            f"column label holds {labels.type}",
            where=str(file),
            rule=LABEL_RULE,
            remedy="store labels as whole numbers",
        )
    texts = Texts(_strings(file, sentences), labels.to_pylist())
    for name, values, rule in (
        ("sentence", texts.sentences, SENTENCE_RULE),
        ("label", texts.labels, LABEL_RULE),
    ):
        _refuse_null(file, name, values, rule)
    return texts


def _strings(file: Path, column: Any) -> list[str]:
    try:
        values: list[str] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte 0x{error.object[error.start]:02x} is not UTF-8",
            where=f"{file}, column sentence, row {_first_undecodable(column)}",
            rule=SENTENCE_RULE,
            remedy=FETCH_AGAIN,
        ) from None
    return values


def _first_undecodable(column: Any) -> int:
    """Return the row, counted from 1, at which reading ``column`` first fails."""
    row = 0
    for row, item in enumerate(column, start=1):  # noqa: B007
        try:
            item.as_py()
        except UnicodeDecodeError:
            break
    return row


def _refuse_null(file: Path, name: str, values: list[Any], rule: str) -> None:
    if None in values:
        raise DataError(
            f"{name} is null",
            where=_place(file, values.index(None) + 1),
            rule=rule,
            remedy="remove the row or fetch the file again",
        )


def _refuse_missing_columns(file: Path, names: Sequence[str]) -> None:
    missing = [name for name in ("sentence", "label") if name not in names]
    if missing:
        raise DataError(
            f"no column {' and no column '.join(missing)}; there are: {', '.join(names)}",
            where=str(file),
            rule="the file has the columns sentence and label",
            remedy="use GLUE's SST-2 train and validation files",
        )


def read_tsv(file: Path) -> Texts:
    """Read a TSV file with the header ``sentence<TAB>label``; quotes have no meaning in it."""
    refuse_empty_file(file)
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise DataError(
            f"byte 0x{error.object[error.start]:02x} is not UTF-8",
            where=f"{file}, line {number}",
            remedy=FETCH_AGAIN,
        ) from None
    if not lines[-1]:
        lines.pop()
    header = lines[0].rstrip("\r").split("\t")
    _refuse_missing_columns(file, header)
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(
            f"column {twice[0]} is there {header.count(twice[0])} times",
            where=f"{file}, line 1",
            rule="every column has a name of its own",
            remedy="use GLUE's SST-2 train and validation files",
        )
    texts = Texts([], [])
    sentence_at, label_at = header.index("sentence"), header.index("label")
    for row, line in enumerate(lines[1:], start=1):
        fields = line.rstrip("\r").split("\t")
        if len(fields) != len(header):
            raise DataError(
                f"{len(fields)} tab-separated field(s)",
                where=_place(file, row),
                rule=f"every row has the header's {len(header)}: {', '.join(header)}",
                remedy=FETCH_AGAIN,
            )
        texts.sentences.append(fields[sentence_at])
        texts.labels.append(_label(fields[label_at], file, row))
    return texts


def _label(text: str, file: Path, row: int) -> int:
    if text not in ("0", "1"):
        raise DataError(
            f"label is {text!r}",
            where=_place(file, row),
            rule=LABEL_RULE,
            remedy="use train.tsv and dev.tsv; GLUE's test file has no labels",
        )
    return int(text)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
