"""Read dialogues and summaries from the published file formats, and check each row.

Owns the places and formats of the splits: JSON, JSON lines, parquet, and the Arrow files of
a saved ``datasets`` folder. Must not know prompts, tokens or torch. Rows and lines are
counted from 1.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.data import split_layout
from trainmark.data.input_files import readable
from trainmark.data.model_config import read_json
from trainmark.data.split_layout import Form, Layout, complete_layout, numbered_files
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

# The corpus says val, the hub validation.
SPLITS = {"train": ("train",), "validation": ("val", "validation", "eval")}
FOLDERS = (".", "data", "samsum", "corpus")  # where archive and hub keep the files
COLUMNS = ("dialogue", "summary")
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
LAYOUT_RULE = (
    "a data folder holds train and val (or validation) as .json, .jsonl or .parquet (in the "
    "folder itself, data/, samsum/ or corpus/), or what `datasets` saved, with train/ and "
    "validation/"
)
ROW_RULE = "a row has dialogue and summary as text, the summary with at least one word"
FETCH = "fetch the file again, or run `trainmark prepare llama2_7b_lora --from RAW --data DIR`"
# The template of the published fine-tuning; another one would change the training set.
INSTRUCTION = "Summarize this dialog:\n{dialogue}\n---\nSummary:\n"


def training_text(dialogue: str, summary: str) -> str:
    """Return the training text of one dialogue; the end token follows it."""
    return INSTRUCTION.format(dialogue=dialogue) + summary


@dataclass(frozen=True, slots=True)
class Dialogues:
    """One split: the texts of its files, unchanged and in order."""

    dialogues: list[str]
    summaries: list[str]

    def __len__(self) -> int:
        return len(self.summaries)


def find_layout(folder: Path) -> Layout:
    """Find both splits of ``folder``, in the first of the known places and forms.

    Raises:
        DataError: no such folder, no splits, or only one of them.
    """
    return split_layout.find_layout(folder, FORMS, rule=LAYOUT_RULE, remedy=FETCH)


def splits_in(place: Path) -> Layout | None:
    """Return the splits directly in ``place``, in the first of the known formats.

    Raises:
        DataError: one split exists without the other.
    """
    found = (complete_layout(form, place, rule=LAYOUT_RULE, remedy=FETCH) for form in FORMS)
    return next(filter(None, found), None)


def saved_files(place: Path, name: str) -> list[Path]:
    """Return the Arrow files that ``save_to_disk`` of `datasets` left in a split's folder.

    Raises:
        DataError: the folder's ``state.json`` is damaged, or selects only some of the rows.
    """
    state = place / name / "state.json"
    if not state.is_file():
        return []
    told = read_json(state, rule=LAYOUT_RULE, remedy=FETCH)
    try:
        names = [str(item["filename"]) for item in told["_data_files"]]
        selection = told.get("_indices_data_files") or told.get("_indices_files")
    except (TypeError, KeyError, AttributeError):
        raise DataError(
            "does not say which files hold the rows", where=f"{state}, _data_files",
            rule="the folder is as `datasets` saved it", remedy=FETCH,
        ) from None  # fmt: skip
    if selection:
        raise DataError(
            "the dataset is only a selection of the rows", where=f"{state}, _indices_data_files",
            rule="all rows of the files are read",
            remedy="call flatten_indices() on the dataset and save it again",
        )  # fmt: skip
    return [place / name / file for file in names]


def _form(kind: str) -> Form:
    """Return the names of the splits in files of ``kind``, single or numbered ones."""
    names = {split: [f"{name}.{kind}" for name in names] for split, names in SPLITS.items()}
    return Form(kind, names, FOLDERS, numbered_files)


# The first that exists is read.
FORMS = (
    Form("arrow", SPLITS, FOLDERS, saved_files), *map(_form, ("jsonl", "json", "parquet")),
)  # fmt: skip


def read_dialogues(files: Sequence[Path]) -> Dialogues:
    """Read one split from its files in order.

    Raises:
        DataError: a file cannot be read, or a row is invalid, or there are no rows.
    """
    found = Dialogues([], [])
    for file in files:
        for where, row in _rows(file):
            dialogue, summary = _checked(row, where)
            found.dialogues.append(dialogue)
            found.summaries.append(summary)
    if not len(found):
        raise _fault("the split is empty", files[0])
    return found


def _fault(what: str, where: Path | str, remedy: str = FETCH) -> DataError:
    return DataError(what, where=str(where), rule=ROW_RULE, remedy=remedy)


def _rows(file: Path) -> Iterable[tuple[str, Any]]:
    """Yield each row with its file and row number, as errors name them."""
    if file.suffix in (".parquet", ".arrow"):
        return _columns(file)
    text = _text(file)
    # The hub has files named .json that hold one object a line.
    if file.suffix == ".jsonl" or text.lstrip().startswith("{"):
        return _lines(file, text)
    listed = _json(file, text)
    if not isinstance(listed, list):
        raise _fault(f"holds a {type(listed).__name__}, not a list of rows", file)
    return ((f"{file}, row {number}", row) for number, row in enumerate(listed, start=1))


def _lines(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{file}, line {number}"
            yield where, _json(where, line)


def _text(file: Path) -> str:
    with readable(file, rule=LAYOUT_RULE, remedy=FETCH):
        raw = file.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise _fault(what, f"{file}, line {line}") from None


def _json(where: Path | str, text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise _fault("not readable as JSON: nested too deeply", where) from None
    except ValueError as error:
        raise _fault(f"not readable as JSON: {error}", where) from None


def _columns(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a parquet or Arrow file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = "parquet" if file.suffix == ".parquet" else "an Arrow stream"
    try:
        with file.open("rb") as stream:
            if kind == "parquet":
                table = pq.read_table(stream)
            else:
                table = pa.ipc.open_stream(stream).read_all()
        missing = [name for name in COLUMNS if name not in table.column_names]
        if missing:
            names = ", ".join(table.column_names)
            raise _fault(f"no column {' and no column '.join(missing)}; there are: {names}", file)
        rows = table.select(list(COLUMNS)).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        told = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise _fault(f"not readable as {kind}: {told}", file) from None
    for number, row in enumerate(rows, start=1):
        yield f"{file}, row {number}", row


def _checked(row: Any, where: str) -> tuple[str, str]:
    """Return dialogue and summary of one row."""
    repair = "repair or remove the row"
    if not isinstance(row, dict):
        raise _fault(f"holds {row!r:.60}", where)
    for name in COLUMNS:
        if not isinstance(row.get(name), str):
            what = f"{name} is {row[name]!r:.60}" if name in row else f"no {name}"
            raise _fault(what, where, repair)
        lone = LONE_SURROGATE.search(row[name])
        if lone:  # valid in JSON, but no tokenizer accepts it
            raise _fault(f"{name} has a lone surrogate, \\u{ord(lone[0]):04x}", where, repair)
    if not row["summary"].strip():
        raise _fault("the summary is blank", where, repair)
    return row["dialogue"], row["summary"]
