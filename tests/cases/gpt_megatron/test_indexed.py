"""Megatron's indexed files: bytes, reading back, and every kind of damage."""

import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_tokens import document_of
from trainmark.cases.gpt_megatron.data import indexed
from trainmark.cases.gpt_megatron.data.indexed import IndexedReader, dtype_for, write_pair
from trainmark.errors import DataError

# Three sequences of 3, 0 and 1 tokens, each a document, put together from the layout.
GOLDEN_IDX = (
    "4d4d494449445800 00 0100000000000000 08 0300000000000000 0400000000000000"
    "03000000 00000000 01000000"
    "0000000000000000 0600000000000000 0600000000000000"
    "0000000000000000 0100000000000000 0200000000000000 0300000000000000"
)
GOLDEN_BIN = "0100 0200 ffff 0700"


def write(prefix, documents, dtype=np.uint16):
    tokens = np.array([token for document in documents for token in document], np.int64)
    sizes = np.array([len(document) for document in documents], np.int32)
    write_pair(prefix, tokens, sizes, np.dtype(dtype))


def raw_idx(sizes, pointers, bounds, *, version=1, code=8, sequences=None, tail=b""):
    count = len(sizes) if sequences is None else sequences
    return (
        struct.pack("<9sqBqq", b"MMIDIDX\0\0", version, code, count, len(bounds))
        + np.array(sizes, "<i4").tobytes()
        + np.array(pointers, "<i8").tobytes()
        + np.array(bounds, "<i8").tobytes()
        + tail
    )


@pytest.fixture
def pair(tmp_path):
    write(tmp_path / "a.b_text_document", [[1, 2, 65_535], [], [7]])
    return tmp_path / "a.b_text_document"


def parts(prefix):
    return prefix.with_name(prefix.name + ".idx"), prefix.with_name(prefix.name + ".bin")


def fault(prefix):
    with pytest.raises(DataError) as caught:
        IndexedReader.open(prefix)
    error = caught.value
    assert error.where
    assert error.rule
    assert error.remedy
    return str(error)


def test_the_bytes_are_megatrons(pair):
    idx, data = parts(pair)
    assert idx.read_bytes() == bytes.fromhex(GOLDEN_IDX)
    assert data.read_bytes() == bytes.fromhex(GOLDEN_BIN)
    assert sorted(pair.parent.iterdir()) == [data, idx]


def test_a_pair_reads_back(pair):
    reader = IndexedReader.open(pair)
    assert reader.dtype == np.uint16
    assert (len(reader.sizes), reader.num_documents, reader.num_tokens) == (3, 3, 4)
    assert [document_of(reader, i) for i in range(3)] == [[1, 2, 65_535], [], [7]]
    assert isinstance(reader.tokens, np.memmap)
    assert not reader.tokens.flags.writeable


def test_a_document_may_hold_many_sequences_or_none(tmp_path):
    prefix = tmp_path / "many"
    idx, data = parts(prefix)
    idx.write_bytes(raw_idx([2, 1, 3], [0, 8, 12], [0, 0, 2, 3, 3], code=4))
    data.write_bytes(np.arange(6, dtype="<i4").tobytes())
    reader = IndexedReader.open(prefix)
    assert reader.num_documents == 4
    assert [document_of(reader, i) for i in range(4)] == [[], [0, 1, 2], [3, 4, 5], []]
    assert list(reader.token_starts(range(1, 4))) == [0, 3, 6, 6]
    assert list(reader.token_starts(range(4, 4))) == [6]


@pytest.mark.parametrize(("ids", "dtype"), [([65_536], np.uint16), ([-1], np.uint16)])
def test_an_id_that_the_element_type_cannot_hold_is_never_written(tmp_path, ids, dtype):
    with pytest.raises(AssertionError):
        write(tmp_path / "x", [ids], dtype)
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_do_not_cut_the_tokens_are_never_written(tmp_path):
    with pytest.raises(AssertionError):
        write_pair(tmp_path / "x", np.array([5]), np.array([2], np.int32), np.dtype("<u2"))
    assert list(tmp_path.iterdir()) == []


def test_an_empty_pair_reads_as_empty(tmp_path):
    write(tmp_path / "none", [])
    reader = IndexedReader.open(tmp_path / "none")
    assert (reader.num_documents, reader.num_tokens, len(reader.tokens)) == (0, 0, 0)
    assert reader.dtype == np.uint16


@pytest.mark.parametrize(
    ("vocabulary", "name"), [(50_257, "uint16"), (65_499, "uint16"), (65_500, "int32")]
)
def test_the_element_type_is_megatrons(vocabulary, name):
    assert dtype_for(vocabulary).name == name


@pytest.mark.parametrize(
    ("code", "name"),
    [(1, "uint8"), (2, "int8"), (3, "int16"), (4, "int32"), (5, "int64"), (8, "uint16")],
)
def test_every_whole_number_type_is_read(tmp_path, code, name):
    idx, data = parts(tmp_path / "x")
    data.write_bytes(np.array([3, 4], name).tobytes())
    idx.write_bytes(raw_idx([2], [0], [0, 1], code=code))
    reader = IndexedReader.open(tmp_path / "x")
    assert reader.dtype == np.dtype(name)
    assert list(reader.tokens) == [3, 4]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "begins with nothing"),
        (b"MMIDID", "begins with 4d4d49444944"),
        (b"PK\3\4 something else entirely, longer than a header", "begins with 504b030420736f6d65"),
        (b"TNTIDX\0\0" + bytes(40), "older form that is not memory-mapped"),
        (b"MMIDIDX\0\0" + bytes(5), "the header ends after 14 bytes"),
        (raw_idx([3, 0, 1], [0, 6, 6], [0, 1, 2, 3], version=2), "version 2"),
        (raw_idx([3, 0, 1], [0, 6, 6], [0, 1, 2, 3], code=7), "element type 7 (float32)"),
        (raw_idx([3, 0, 1], [0, 6, 6], [0, 1, 2, 3], code=6), "element type 6 (float64)"),
        (raw_idx([3, 0, 1], [0, 6, 6], [0, 1, 2, 3], code=0), "element type 0; tokens"),
        (raw_idx([3, 0, 1], [0, 6, 6], [0, 1, 2, 3], code=255), "element type 255"),
        (raw_idx([3, 0, 1], [0, 6, 6], [0, 1, 2, 3])[:-1], "101 bytes, cut short"),
        (raw_idx([3, 0, 1], [0, 6, 6], [0, 1, 2, 3], tail=b"\0"), "more than its header says"),
        (raw_idx([3, 0, 1], [0, 6, 6], [0, 1, 2, 3], tail=bytes(3)), "multimodal"),
        (raw_idx([], [], [0], sequences=2**60), "42 bytes, cut short"),
        (raw_idx([], [], [0], sequences=-1), "counts -1 sequences"),
        (raw_idx([], [], []), "0 document bounds"),
        (raw_idx([3, -1, 1], [0, 6, 4], [0, 1, 2, 3]), "size -1, pointer 6, where 6 is due"),
        (raw_idx([3, 0, 1], [0, 6, 8], [0, 1, 2, 3]), "size 1, pointer 8, where 6 is due"),
        (raw_idx([3, 0, 1], [2, 6, 6], [0, 1, 2, 3]), "sequence 0 (counted from 0)"),
        (raw_idx([3, 0, 1], [0, 6, 6], [1, 1, 2, 3]), "1 where 0 is due"),
        (raw_idx([3, 0, 1], [0, 6, 6], [0, 1, 2, 2]), "2 where 3 is due"),
        (raw_idx([3, 0, 1], [0, 6, 6], [0, 2, 1, 3]), "1 after 2"),
        (raw_idx([3, 0, 2], [0, 6, 6], [0, 1, 2, 3]), "8 bytes, cut short"),
        (raw_idx([3, 0, 0], [0, 6, 6], [0, 1, 2, 3]), "8 bytes, more than its index cuts"),
    ],
)  # fmt: skip
def test_a_damaged_index_is_refused(pair, content, said):
    parts(pair)[0].write_bytes(content)
    assert said in fault(pair)


def test_pointers_written_before_sizes_are_refused(pair):
    idx, _ = parts(pair)
    good = idx.read_bytes()
    idx.write_bytes(good[:34] + good[46:70] + good[34:46] + good[70:])
    assert "sequence 0 (counted from 0): size 0, pointer" in fault(pair)


def test_rows_are_checked_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(indexed, "BLOCK_ROWS", 2)
    sizes, bounds = [1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]
    pointers = [0, 1, 3, 6, 10]
    idx, data = parts(tmp_path / "x")
    data.write_bytes(bytes(range(15)))
    idx.write_bytes(raw_idx(sizes, pointers, bounds, code=1))
    assert document_of(IndexedReader.open(tmp_path / "x"), 4) == [10, 11, 12, 13, 14]
    idx.write_bytes(raw_idx(sizes, [0, 1, 3, 6, 11], bounds, code=1))
    assert "sequence 4 (counted from 0)" in fault(tmp_path / "x")
    idx.write_bytes(raw_idx(sizes, pointers, [0, 1, 3, 2, 4, 5], code=1))
    assert "document bound 3 (counted from 0)" in fault(tmp_path / "x")


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 101), change=st.integers(1, 255))
def test_no_changed_byte_of_an_index_passes(tmp_path_factory, at, change):
    prefix = tmp_path_factory.mktemp("bytes") / "x"
    write(prefix, [[1, 2, 65_535], [], [7]])
    idx, _ = parts(prefix)
    content = bytearray(idx.read_bytes())
    content[at] ^= change
    idx.write_bytes(content)
    if at == 17 and content[at] == 3:  # int16 for uint16: the same bytes, other numbers
        assert IndexedReader.open(prefix).dtype == np.int16
    elif at in {78, 86} and content[78] <= content[86] <= 3:
        assert IndexedReader.open(prefix).num_documents == 3  # other documents, all sound
    else:
        fault(prefix)


@settings(max_examples=150, deadline=None)
@given(
    code=st.integers(0, 255),
    sequences=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    bounds=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    rest=st.binary(max_size=60),
)
def test_no_header_is_believed(tmp_path_factory, code, sequences, bounds, rest):
    prefix = tmp_path_factory.mktemp("header") / "x"
    idx, data = parts(prefix)
    idx.write_bytes(struct.pack("<9sqBqq", b"MMIDIDX\0\0", 1, code, sequences, bounds) + rest)
    data.write_bytes(b"\1")
    fault(prefix)


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_a_bin_cut_short_is_refused(pair, cut):
    data = parts(pair)[1]
    data.write_bytes(data.read_bytes()[:cut])
    assert f"{cut} bytes, cut short; the index beside it cuts 8 bytes" in fault(pair)


def test_swapped_files_are_recognised(pair):
    idx, data = parts(pair)
    one, other = idx.read_bytes(), data.read_bytes()
    idx.write_bytes(other)
    data.write_bytes(one)
    assert "a.b_text_document.bin is the index: the two files are swapped" in fault(pair)


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_file_or_something_else_in_its_place_is_refused(pair, number):
    file = parts(pair)[number]
    file.unlink()
    assert f"{file}: cannot be read: No such file" in fault(pair)
    file.mkdir()
    assert f"{file}: cannot be read: not a regular file" in fault(pair)
    file.rmdir()
    os.mkfifo(file)
    assert f"{file}: cannot be read: not a regular file" in fault(pair)


def test_an_unreadable_file_is_refused(pair, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    assert "cannot be read: Permission denied" in fault(pair)
