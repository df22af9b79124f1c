"""Text of data files: byte-order marks, line ends, and characters that end no line."""

import os

import pytest

from trainmark.data import text
from trainmark.data.text import (
    enumerate_lines,
    parse_csv_rows,
    read_csv,
    read_text,
    read_tsv,
    split_lines,
)

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Text that ``str.splitlines`` would cut at each of these characters, unlike data files.
SEPARATORS = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj"


def write_raw(tmp_path, content):
    """Write a file with these bytes; return its path."""
    file = tmp_path / "file"
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("byte_order_mark", [b"", BYTE_ORDER_MARK])
def test_lines_end_at_line_feeds_with_or_without_a_carriage_return(tmp_path, byte_order_mark, end):
    file = write_raw(tmp_path, byte_order_mark + end.join([SEPARATORS, "", "last", ""]).encode())
    assert split_lines(read_text(file)) == [SEPARATORS, "", "last"]


def test_last_line_needs_no_end():
    assert split_lines("a\nb") == ["a", "b"]
    assert split_lines("") == []
    assert split_lines("\n") == [""]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("byte_order_mark", [b"", BYTE_ORDER_MARK])
def test_rows_of_tsv_keep_quotes_and_separators(tmp_path, byte_order_mark, end):
    # Quotes are plain characters in TSV, and empty lines are no rows. ``SEPARATORS`` is a text with
    # the characters, other than line feeds, at which ``str.splitlines`` would end a line.
    lines = ["text\tlabel", f'"{SEPARATORS}\t1', "", 'b"\t0', ""]
    file = write_raw(tmp_path, byte_order_mark + end.join(lines).encode())
    assert list(read_tsv(file)) == [
        {"text": f'"{SEPARATORS}', "label": "1"},
        {"text": 'b"', "label": "0"},
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("byte_order_mark", [b"", BYTE_ORDER_MARK])
def test_rows_of_csv_keep_quoted_line_breaks_and_separators(tmp_path, byte_order_mark, end):
    # A quoted field may have line breaks and doubled quotes; empty lines are no rows.
    # ``SEPARATORS`` is a text with the characters, other than line feeds, at which
    # ``str.splitlines`` would end a line.
    lines = ["id,text", f'1,"a ""b"",{end}{SEPARATORS}"', "", f"2,{SEPARATORS}", ""]
    file = write_raw(tmp_path, byte_order_mark + end.join(lines).encode())
    assert list(read_csv(file)) == [
        {"id": "1", "text": f'a "b",{end}{SEPARATORS}'},
        {"id": "2", "text": SEPARATORS},
    ]


@pytest.mark.parametrize(("read", "separator"), [(read_tsv, "\t"), (read_csv, ",")])
@pytest.mark.parametrize("fields", [["1"], ["1", "2", "3"]])
def test_row_with_other_number_of_fields_than_header_is_named(tmp_path, read, separator, fields):
    # A header, a good row, and one with too few or too many fields.
    lines = [separator.join(row) for row in (["a", "b"], ["1", "2"], fields)]
    file = write_raw(tmp_path, "\n".join(lines).encode())
    with pytest.raises(ValueError, match=f"line 3 has {len(fields)} fields, but the header has 2"):
        list(read(file))


def test_quote_without_end_is_named_by_its_line():
    with pytest.raises(ValueError, match="line 3: unexpected end of data"):
        list(parse_csv_rows('a,b\n"c\nd,e'))


def test_sparse_hole_in_a_file_is_not_held_in_memory(tmp_path, monkeypatch):
    # The longest line that is read at once: 1 KiB here, so that the test is fast.
    monkeypatch.setattr(text, "MAX_LINE_BYTES", 1 << 10)
    file = write_raw(tmp_path, b"a\n")
    os.truncate(file, 1 << 40)  # longer: a TiB of zeros that uses no space
    # A file is read as a whole only if it has at most 256 MiB.
    with pytest.raises(ValueError, match="larger than 256 MiB"):
        read_text(file)
    with file.open("rb") as stream:
        lines = enumerate_lines(stream)
        assert next(lines) == (1, b"a\n")
        assert next(lines) == (2, bytes(1 << 10))  # cut at the limit set above


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    with pytest.raises(ValueError, match="utf-8"):
        list(read_tsv(write_raw(tmp_path, b"a\tb\n\xff\t1\n")))
