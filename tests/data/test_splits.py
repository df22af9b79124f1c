"""Files of a folder that are its splits; cached arrays; YAML and JSON documents."""

from functools import partial
from hashlib import sha256

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict

from trainmark import documents
from trainmark.data.cache import Extremes, compute_extremes, load_or_build_arrays, load_or_scan
from trainmark.data.splits import Form, find_layout
from trainmark.errors import DataError, UsageError

FAULT = partial(DataError, rule="a folder holds both", fix="run prepare")
FORMS = (
    Form(
        "table", {"train": ("train.parquet",), "validation": ("validation.parquet",)}, (".", "data")
    ),
    Form(
        "text",
        {"train": ("train.tsv",), "validation": ("validation.tsv", "dev.tsv")},
        (".", "data"),
    ),
)


def find_splits(folder):
    """Return the kind of files that were found, and their paths by split.

    ``FORMS`` has two kinds: "table" (parquet) and then "text" (tsv), each in the folder itself or
    in its subfolder "data". A folder without both splits is a ``FAULT``, a ``DataError``.
    """
    layout = find_layout(folder, FORMS, FAULT)
    return layout.kind, {
        split: [file.relative_to(folder).as_posix() for file in files]
        for split, files in layout.files.items()
    }


def write_files(folder, *names):
    """Write files that are not empty; return the folder."""
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    return folder


def test_first_existing_file_format_is_read(tmp_path):
    # ``FORMS`` lists two formats: "table" (parquet), then "text" (tsv).
    # The validation split may have two names; validation.tsv comes first in ``FORMS``.
    write_files(tmp_path, "train.tsv", "dev.tsv", "validation.tsv")
    assert find_splits(tmp_path) == (
        "text",
        {"train": ["train.tsv"], "validation": ["validation.tsv"]},
    )
    # Tables precede texts, also in the subfolder and in numbered parts.
    parts = [f"data/train-0000{part}-of-00002.parquet" for part in range(2)]
    # A file whose part number is not a number, ``0a``, is no part.
    write_files(tmp_path, *parts, "data/train-0a-of-2b.parquet", "data/validation.parquet")
    expected = {"train": parts, "validation": ["data/validation.parquet"]}
    assert find_splits(tmp_path) == ("table", expected)


@pytest.mark.parametrize(
    ("damage", "where", "what"),
    [
        (
            lambda folder_path: (folder_path / "dev.tsv").write_bytes(b""),
            "DIR/dev.tsv",
            "empty (0 bytes)",
        ),
        (
            # The second part is missing.
            lambda folder_path: write_files(folder_path, "train-00000-of-00002.parquet"),
            "DIR",
            "numbered parts",
        ),
        (
            # One part each of two versions, which differ in their number of parts.
            lambda folder_path: write_files(
                folder_path, "train-00000-of-00002.parquet", "train-00001-of-00003.parquet"
            ),
            "DIR",
            "numbered parts",
        ),
        (
            lambda folder_path: (folder_path / "dev.tsv").unlink(),
            "DIR, validation.tsv or dev.tsv",
            "no validation split",
        ),
        (
            lambda folder_path: [file.unlink() for file in folder_path.iterdir()],
            "DIR",
            "no data files",
        ),
        (
            lambda folder_path: folder_path.rename(folder_path.with_name("other")),
            "DIR",
            "no such folder",
        ),
    ],
)
def test_a_folder_without_both_splits_is_refused(tmp_path, damage, where, what):
    # ``damage`` changes a folder with both splits, train.tsv and dev.tsv (for validation). Numbered
    # parquet files are parts of a split, which would be read before texts; they must be complete.
    # ``where``: the place that the error names, with DIR for the folder; ``what``: a part of its
    # text.
    folder = tmp_path / "data"
    folder.mkdir()
    damage(write_files(folder, "train.tsv", "dev.tsv"))
    with pytest.raises(DataError) as caught:
        find_splits(folder)
    assert caught.value.where.replace(str(folder), "DIR") == where
    assert what in str(caught.value)


VALUES = np.array([3, -2, 9, 9, -2, 4], np.int32)
EXPECTED_EXTREMES = Extremes(digest=sha256(VALUES.tobytes()).hexdigest(), smallest=-2, largest=9)


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_extremes_do_not_depend_on_block_size(size):
    assert compute_extremes(np.split(VALUES, range(size, 6, size))) == EXPECTED_EXTREMES


def test_a_file_is_scanned_again_only_when_it_changed(tmp_path):
    # ``VALUES``: an array of six numbers. ``EXPECTED_EXTREMES``: its digest, smallest and largest
    # number, which is what a scan of the file returns. ``load_or_scan`` returns the cached result
    # of an earlier scan, by the name of what is scanned, or scans.
    data = tmp_path / "values.bin"
    # Neither folder exists: both are made for the cache.
    cache = tmp_path / "indices" / "train" / "content.json"
    data.write_bytes(VALUES.tobytes())
    calls = []

    def scan():
        calls.append(1)
        return {"values": EXPECTED_EXTREMES}

    for _ in range(2):  # the second time the result is in the cache
        assert load_or_scan(cache, {"values": data}, scan) == {"values": EXPECTED_EXTREMES}
    assert len(calls) == 1
    # Four more scans: another content, another name of what is scanned, a damaged cache, no cache.
    data.write_bytes(b"more")
    load_or_scan(cache, {"values": data}, scan)
    load_or_scan(cache, {"values as int64": data}, scan)
    cache.write_text("{")
    load_or_scan(cache, {"values as int64": data}, scan)
    # A folder that cannot be written: no cache.
    load_or_scan(data / "nowhere.json", {"values": data}, scan)
    assert len(calls) == 5


def test_arrays_are_built_once_and_mapped(tmp_path):
    # ``VALUES``: an array of six numbers; the other one is empty.
    written_arrays = [
        VALUES,
        np.zeros(0, np.int64),
    ] * 6  # twelve, so that file numbers have one and two digits
    calls = []

    def build():
        calls.append(1)
        return written_arrays

    for _ in range(2):  # the second time the files are there
        arrays = load_or_build_arrays(tmp_path / "cache", build)
        assert [array.tolist() for array in arrays] == [array.tolist() for array in written_arrays]
        assert isinstance(arrays[0], np.memmap)
    assert len(calls) == 1


class Inner(BaseModel):
    """A part of a document, with a text and a number."""

    model_config = ConfigDict(extra="forbid")
    time: str = ""
    many: int = 1


class Outer(BaseModel):
    """A document with a part and a truth value."""

    model_config = ConfigDict(extra="forbid")
    inner: Inner | None = None
    on: bool = False


def read_outer(folder, text):
    """Write ``text`` as a YAML file and read it as ``Outer``.

    ``Outer`` declares the keys ``inner``, with ``time`` (a text) and ``many`` (a number) in it, and
    ``on``, a truth value; other keys are refused.
    """
    file = folder / "a.yaml"
    file.write_text(text)
    return documents.validate_document(Outer, documents.read_yaml(file), file, fix="see the docs")


def test_yaml_words_stay_text_and_are_converted_by_field_type(tmp_path):
    # YAML would make 12:30:00 a number of seconds and the key ``on`` a truth value.
    # ``Outer`` declares ``time`` as a text, ``many`` as a number and ``on`` as a truth value.
    assert read_outer(tmp_path, "inner:\n  time: 12:30:00\n  many: 8\non: true\n") == Outer(
        inner=Inner(time="12:30:00", many=8), on=True
    )
    assert read_outer(tmp_path, "inner:\n") == Outer()  # a key without a value is null


@pytest.mark.parametrize(
    ("text", "expected_error"),
    [
        ("inner: {tme: a}", "unknown key 'inner.tme'"),
        ("inner: {many: a}", "inner.many: 'a' is not valid"),
        ("on: [", "not YAML"),
    ],
)
def test_yaml_error_names_the_key(tmp_path, text, expected_error):
    # ``read_outer`` writes the text to a.yaml and reads it as a document with the keys ``inner``,
    # which has ``time`` and the number ``many``, and ``on``.
    with pytest.raises(UsageError, match=expected_error) as caught:
        read_outer(tmp_path, text)
    assert str(tmp_path / "a.yaml") in caught.value.where
    assert caught.value.fix


def test_document_is_written_atomically(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b"old")
    # The stream takes bytes: an error while writing keeps the old content.
    with pytest.raises(TypeError), documents.write_atomically(file) as stream:
        stream.write("text")
    assert file.read_bytes() == b"old"
    with documents.write_atomically(file) as stream:
        stream.write(b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.json", b"new")]


def test_document_above_the_size_limit_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    file.write_bytes(b"new")
    # The file has 3 bytes, the limit is 2, which the error states as 0 MiB, rounded.
    monkeypatch.setattr(documents, "_MAX_BYTES", 2)
    with pytest.raises(ValueError, match="larger than 0 MiB"):
        documents.read_bytes(file)
