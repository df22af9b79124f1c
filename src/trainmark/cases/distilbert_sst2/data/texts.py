"""Read sentences and labels from GLUE's files, parquet or TSV, and check each row.

Owns the two text formats and the errors in them. Must not know tokens or torch. Rows are
counted from 1 in the order of the file, without the header.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COLUMNS = ("sentence", "label")
LABEL_RULE = "a label is 0 or 1"
SENTENCE_RULE = "a sentence is text with at least one word"
FETCH_AGAIN = "fetch the file again, or run `trainmark prepare distilbert_sst2`"
OTHER_SPLIT = "use GLUE's train and validation files; its test file has no labels"


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
        table = _table(file)
        _refuse_types(file, table)
        if not table.num_rows:
            raise DataError(
                "no rows", where=str(file), rule="a split has at least one row", remedy=FETCH_AGAIN
            )
        texts.sentences.extend(_sentences(file, table["sentence"]))
        texts.labels.extend(_labels(file, table["label"].to_pylist()))
    return texts


def _table(file: Path) -> Any:
    """Return the columns sentence and label of a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = "parquet" if file.suffix == ".parquet" else "TSV"
    try:
        if kind == "TSV":
            return _tsv(file)
        names = pq.read_schema(file).names
        _refuse_names(file, names)
        return pq.read_table(file, columns=list(COLUMNS))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"not readable as {kind}: {said}", where=str(file), remedy=FETCH_AGAIN
        ) from None


def _tsv(file: Path) -> Any:
    """Read a TSV file with the header ``sentence<TAB>label``; quotes have no meaning in it."""
    import pyarrow as pa
    from pyarrow import csv

    wrong: list[Any] = []

    def skip(row: Any) -> str:
        wrong.append(row)
        return "skip"

    table = csv.read_csv(
        file,
        read_options=csv.ReadOptions(use_threads=False),  # errors have row numbers only then
        parse_options=csv.ParseOptions(
            delimiter="\t", quote_char=False, ignore_empty_lines=False, invalid_row_handler=skip
        ),
        # What is not UTF-8 is found as the text is taken, with its row.
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(COLUMNS, pa.string()), check_utf8=False
        ),
    )
    _refuse_names(file, table.column_names)
    if wrong:
        raise DataError(
            f"{wrong[0].actual_columns} tab-separated field(s)",
            where=_place(file, wrong[0].number - 1),
            rule=f"every row has the header's {wrong[0].expected_columns}",
            remedy=FETCH_AGAIN,
        )
    return table


def _refuse_names(file: Path, names: Sequence[str]) -> None:
    for name in COLUMNS:
        if names.count(name) != 1:
            count = names.count(name)
            what = f"column {name} exists {count} times" if count else f"no column {name}"
            raise DataError(
                f"{what}; there are: {', '.join(names)}",
                where=str(file),
                rule="the file has the columns sentence and label, each once",
                remedy=OTHER_SPLIT,
            )


def _refuse_types(file: Path, table: Any) -> None:
    from pyarrow import types

    for name, rule in (("sentence", SENTENCE_RULE), ("label", LABEL_RULE)):
        kind = table[name].type
        values = kind.value_type if types.is_dictionary(kind) else kind
        text = types.is_string(values) or types.is_large_string(values)
        whole = name == "label" and types.is_integer(values)
        if not (whole or (text and (name == "sentence" or file.suffix == ".tsv"))):
            raise DataError(
                f"column {name} holds {kind}", where=str(file), rule=rule, remedy=FETCH_AGAIN
            )


def _sentences(file: Path, column: Any) -> list[str]:
    sentences = []
    for row, item in enumerate(column, start=1):
        try:
            sentence = item.as_py()
        except UnicodeDecodeError as error:
            what = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        else:
            if sentence is not None and sentence.strip():
                sentences.append(sentence)
                continue
            what = "sentence is null" if sentence is None else "the sentence is blank"
        raise DataError(
            what, where=_place(file, row), rule=SENTENCE_RULE,
            remedy="remove the row or fetch the file again",
        )  # fmt: skip
    return sentences


def _labels(file: Path, found: list[Any]) -> list[int]:
    known = {"0": 0, "1": 1} if file.suffix == ".tsv" else {0: 0, 1: 1}
    for row, label in enumerate(found, start=1):
        if label not in known:
            what = "label is null" if label is None else f"label is {label!r}"
            raise DataError(what, where=_place(file, row), rule=LABEL_RULE, remedy=OTHER_SPLIT)
    return [known[label] for label in found]


def _place(file: Path, row: int) -> str:
    line = f" (line {row + 1})" if file.suffix == ".tsv" else ""
    return f"{file}, row {row}{line}"
