"""Megatron's indexed files: bytes, reading back, and every kind of damage."""

import struct
from pathlib import Path

import numpy as np
import pytest

from support.gpt_tokens import read_document_tokens
from trainmark.data import indexed
from trainmark.data.indexed import IndexedReader, choose_dtype, write_pair
from trainmark.errors import DataError

# Three sequences of 3, 0 and 1 tokens, each a document, put together from the layout.
GOLDEN_IDX = (
    "4d4d494449445800 00 0100000000000000 08 0300000000000000 0400000000000000"
    "03000000 00000000 01000000"
    "0000000000000000 0600000000000000 0600000000000000"
    "0000000000000000 0100000000000000 0200000000000000 0300000000000000"
)
GOLDEN_BIN = "0100 0200 ffff 0700"


def write_data(prefix, documents, dtype=np.uint16):
    """Write the pair of files (index and data) for documents given as lists of tokens.

    Args:
        prefix: the path of both files without their endings.
        dtype: the type of a token in the data file.
    """
    tokens = np.array([token for document in documents for token in document], np.int64)
    sizes = np.array([len(document) for document in documents], np.int32)
    write_pair(prefix, tokens, sizes, np.dtype(dtype))


def make_index_bytes(sizes, pointers, bounds, *, version=1, code=8, sequences=None, tail=b""):
    """Return an index file written by hand, so that it may contradict itself.

    Args:
        sizes: tokens of each sequence.
        pointers: byte of the data file at which each sequence begins.
        bounds: first sequence of each document, and the end.
        version: of the format, in the header.
        code: the element type by Megatron's number; 8 is uint16.
        sequences: the number that the header claims; None: as many as ``sizes``.
        tail: bytes behind the arrays.
    """
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
    """Write an index and a data file of three documents; return their path without ending.

    The tokens are stored as uint16, of which 65,535 is the largest; one document is empty. A dot in
    the name must not be taken for the beginning of an ending.
    """
    write_data(tmp_path / "a.b_text_document", [[1, 2, 65_535], [], [7]])
    return tmp_path / "a.b_text_document"


def list_paths(prefix):
    return prefix.with_name(prefix.name + ".idx"), prefix.with_name(prefix.name + ".bin")


def test_bytes_follow_the_layout_of_megatron(pair):
    # ``GOLDEN_IDX`` and ``GOLDEN_BIN``: the bytes of the documents of ``pair``, written by hand.
    idx, data = list_paths(pair)
    assert idx.read_bytes() == bytes.fromhex(GOLDEN_IDX)
    assert data.read_bytes() == bytes.fromhex(GOLDEN_BIN)
    assert sorted(pair.parent.iterdir()) == [data, idx]  # no temporary file is left


def test_written_index_and_data_are_read_back(pair):
    # ``pair``: files of three documents of 3, 0 and 1 tokens, each in one sequence: 4 tokens.
    reader = IndexedReader.open(pair)
    assert reader.dtype == np.uint16
    assert (len(reader.sizes), reader.num_documents, reader.num_tokens) == (3, 3, 4)
    assert [read_document_tokens(reader, i) for i in range(3)] == [[1, 2, 65_535], [], [7]]
    assert isinstance(reader.tokens, np.memmap)
    # The data is mapped, not read into memory, and cannot be changed by mistake.
    assert not reader.tokens.flags.writeable


def test_a_document_may_hold_many_sequences_or_none(tmp_path):
    prefix = tmp_path / "many"
    idx, data = list_paths(prefix)
    # Four documents: without a sequence, of two sequences, of one, without one. The lists are the
    # tokens of each sequence, the byte at which it begins (a token has 4 bytes: code 4 is int32),
    # and the first sequence of each document, with the end.
    idx.write_bytes(make_index_bytes([2, 1, 3], [0, 8, 12], [0, 0, 2, 3, 3], code=4))
    data.write_bytes(np.arange(6, dtype="<i4").tobytes())
    reader = IndexedReader.open(prefix)
    assert reader.num_documents == 4
    assert [read_document_tokens(reader, i) for i in range(4)] == [[], [0, 1, 2], [3, 4, 5], []]
    # Where documents 1 to 3 begin among the six tokens, and where the last one ends.
    assert list(reader.find_token_starts(range(1, 4))) == [0, 3, 6, 6]
    assert list(reader.find_token_starts(range(4, 4))) == [6]  # no document: the end alone


def test_a_pair_may_have_no_document(tmp_path):
    write_data(tmp_path / "none", [])
    reader = IndexedReader.open(tmp_path / "none")
    assert (reader.num_documents, len(reader.sizes), reader.num_tokens) == (0, 0, 0)
    assert list(reader.find_token_starts(range(0))) == [0]


@pytest.mark.parametrize(("vocab_size", "name"), [(65_499, "uint16"), (65_500, "int32")])
def test_ids_have_16_bits_up_to_the_bound_of_megatron(vocab_size, name):
    assert choose_dtype(vocab_size) == np.dtype(name)


@pytest.mark.parametrize(
    ("code", "name"),
    [(1, "uint8"), (2, "int8"), (3, "int16"), (4, "int32"), (5, "int64"), (8, "uint16")],
)
def test_every_whole_number_type_is_read(tmp_path, code, name):
    idx, data = list_paths(tmp_path / "x")
    data.write_bytes(np.array([3, 4], name).tobytes())
    # One sequence of two tokens, which is the only document.
    idx.write_bytes(make_index_bytes([2], [0], [0, 1], code=code))
    reader = IndexedReader.open(tmp_path / "x")
    assert reader.dtype == np.dtype(name)
    assert list(reader.tokens) == [3, 4]


@pytest.mark.parametrize(
    ("ending", "damage", "expected_error"),
    [
        (".idx", lambda old: b"x" * len(old), "not an index"),
        # The header has 34 bytes, of which the first 9 say that the file is an index.
        (".idx", lambda old: old[:33], "has 33 bytes; an index must begin with a header of 34"),
        (".idx", lambda old: old[:-8], "must match its header"),
        # Byte 17 of the header is the element type; there is no type 7.
        (".idx", lambda old: old[:17] + b"\x07" + old[18:], "element type 7"),
        (".bin", lambda old: old[:-4], "belong together"),
        (".bin", lambda old: old[:-1], "the length must be a multiple of"),
    ],
)
def test_a_damaged_pair_is_refused(pair, ending, damage, expected_error):
    # ``damage`` changes the bytes of the index (.idx) or the data (.bin) of three documents with 4
    # tokens of 2 bytes: without the last 8 bytes a number of the index is missing, without the last
    # 4 bytes two tokens of the data, without the last one half a token.
    file = Path(f"{pair}{ending}")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=expected_error) as caught:
        IndexedReader.open(pair)
    assert caught.value.where == str(file)


@pytest.fixture(params=[1, 2, 1 << 20])
def sequences_per_block(request, monkeypatch):
    """Set the number of sequences that are checked at a time."""
    monkeypatch.setattr(indexed, "BLOCK_SEQUENCES", request.param)


SIZES, POINTERS, BOUNDS = [2, 1, 3], [0, 4, 6], [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arrays", "where", "what"),
    [
        ((SIZES, [4, 4, 6], BOUNDS), "pointers", "sequence 0 begins at byte 4"),
        ((SIZES, [0, 6, 6], BOUNDS), "pointers", "sequence 1 begins at byte 6"),
        ((SIZES, [0, -4, 6], BOUNDS), "pointers", "sequence 1 begins at byte -4"),
        ((SIZES, [0, 4, 1 << 62], BOUNDS), "pointers", f"sequence 2 begins at byte {1 << 62}"),
        (([2, -1, 5], [0, 4, 2], BOUNDS), "sizes", "sequence 1 has -1 tokens"),
        ((SIZES, POINTERS, [1, 2, 3]), "document index", "the bounds begin with 1 and end with 3"),
        ((SIZES, POINTERS, [0, 1, 2]), "document index", "the bounds begin with 0 and end with 2"),
        (
            (SIZES, POINTERS, [0, -1, 2, 3]),
            "document index",
            "bound 0 is 0, but the next one is -1",
        ),
        ((SIZES, POINTERS, [0, 2, 1, 3]), "document index", "bound 1 is 2, but the next one is 1"),
        ((SIZES, POINTERS, [0, 1, 9, 3]), "document index", "bound 2 is 9, but the next one is 3"),
    ],
)
@pytest.mark.usefixtures("sequences_per_block")
def test_arrays_of_an_index_that_contradict_each_other_are_refused(tmp_path, arrays, where, what):
    idx, data = list_paths(tmp_path / "x")
    # ``arrays``: the tokens of each sequence (SIZES), the byte at which each begins (POINTERS), and
    # the first sequence of each document, with the end (BOUNDS); one of them is wrong. That is
    # found however many sequences are checked at a time.
    idx.write_bytes(make_index_bytes(*arrays))
    data.write_bytes(np.arange(6, dtype="<u2").tobytes())
    with pytest.raises(DataError) as caught:
        IndexedReader.open(tmp_path / "x")
    assert caught.value.where == f"{idx}, {where}"
    assert caught.value.what.startswith(what)


@pytest.mark.parametrize(
    ("sequences", "bounds", "counts"),
    [
        (-1, [0], "-1 sequences and 1 document bounds"),
        # Even an index without documents has one bound.
        (0, [], "0 sequences and 0 document bounds"),
    ],
)
def test_header_with_impossible_counts_is_refused(tmp_path, sequences, bounds, counts):
    # The header counts ``sequences`` and the ``bounds`` of documents; there is no sequence.
    index_file, tokens_file = list_paths(tmp_path / "x")
    index_file.write_bytes(make_index_bytes([], [], bounds, sequences=sequences))
    tokens_file.write_bytes(b"")
    with pytest.raises(DataError, match=f"the header counts {counts}"):
        IndexedReader.open(tmp_path / "x")


def test_header_that_claims_more_than_an_index_can_hold_is_refused(tmp_path):
    idx, data = list_paths(tmp_path / "x")
    # One sequence of 2 tokens in one document, but the header counts 2**63 - 1 sequences.
    idx.write_bytes(make_index_bytes([2], [0], [0, 1], sequences=(1 << 63) - 1))
    data.write_bytes(bytes(4))
    with pytest.raises(DataError, match="must match its header"):
        IndexedReader.open(tmp_path / "x")
