"""Which files of a folder are its splits, and what is refused in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from trainmark.data.split_layout import Form, find_layout, numbered_files
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMS = (
    Form("table", {"train": ("train.parquet",), "validation": ("validation.parquet",)},
         (".", "data"), numbered_files),
    Form("text", {"train": ("train.tsv",), "validation": ("validation.tsv", "dev.tsv")},
         (".", "data")),
)  # fmt: skip
RULE, REMEDY = "a folder holds both", "run prepare"


def find(folder: Path) -> tuple[str, dict[str, list[str]]]:
    layout = find_layout(folder, FORMS, rule=RULE, remedy=REMEDY)
    names = {
        split: [file.relative_to(folder).as_posix() for file in files]
        for split, files in layout.files.items()
    }
    return layout.kind, names


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    return folder


def test_the_first_form_that_is_there_is_read(tmp_path: Path) -> None:
    write(tmp_path, "train.tsv", "dev.tsv", "validation.tsv")
    assert find(tmp_path) == ("text", {"train": ["train.tsv"], "validation": ["validation.tsv"]})
    parts = [f"data/train-0000{part}-of-00002.parquet" for part in range(2)]
    write(tmp_path, *parts, "data/validation.parquet")
    expected = {"train": parts, "validation": ["data/validation.parquet"]}
    assert find(tmp_path) == ("table", expected)


def an_empty_file(folder: Path) -> None:
    (folder / "dev.tsv").write_bytes(b"")


def a_pipe(folder: Path) -> None:
    (folder / "dev.tsv").unlink()
    os.mkfifo(folder / "dev.tsv")


def one_part(folder: Path) -> None:
    write(folder, "train-00000-of-00002.parquet")


def one_split(folder: Path) -> None:
    (folder / "dev.tsv").unlink()


def no_split(folder: Path) -> None:
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "where", "what"),
    [
        (an_empty_file, "DIR/dev.tsv", "the file is empty (0 bytes)"),
        (a_pipe, "DIR/dev.tsv", "cannot be read: not a regular file"),
        (one_part, "DIR/train-00001-of-00002.parquet", "no such file"),
        (one_split, "DIR, validation.tsv or dev.tsv", "no validation split beside train.tsv"),
        (no_split, "DIR", "no data files"),
    ],
)
def test_a_folder_without_both_splits_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], where: str, what: str
) -> None:
    damage(write(tmp_path, "train.tsv", "dev.tsv"))
    with pytest.raises(DataError) as caught:
        find(tmp_path)
    assert caught.value.where is not None
    assert caught.value.where.replace(str(tmp_path), "DIR") == where
    assert what in str(caught.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        find(tmp_path / "none")
