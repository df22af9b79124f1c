"""A corpus into indexed tokens: order and damage."""

import gzip
import hashlib
import json
import os

import pytest

from support.gpt_tokenizers import encode_by_hand, write_two_files
from support.gpt_tokens import read_document_tokens
from trainmark.cases.gpt_megatron.prepare import prepare
from trainmark.data import corpus as corpus_module
from trainmark.data import pairs
from trainmark.data.corpus import find_source_files, parse_texts, read_blocks
from trainmark.data.indexed import IndexedReader
from trainmark.data.prepared import Reporter
from trainmark.data.tokenizer import open_corpus_tokenizer
from trainmark.errors import DataError

TEXTS = [f"hello world {'wo ' * (number % 7)}{number}" for number in range(60)]
BLOCK_BYTES = 200


def format_lines(texts, key="text"):
    """Return a line of JSON for each text, with the text at ``key``."""
    return "".join(
        json.dumps({"id": number, key: text}) + "\n" for number, text in enumerate(texts)
    )


@pytest.fixture
def corpus(tmp_path):
    """Return a file with a line of JSON for each of ``TEXTS``."""
    (tmp_path / "corpus.jsonl").write_text(format_lines(TEXTS))
    return tmp_path / "corpus.jsonl"


@pytest.fixture
def tokenizer(tmp_path):
    """Return the folder of a GPT-2 tokenizer of 264 tokens, in two files."""
    return write_two_files(tmp_path / "gpt2")


@pytest.fixture
def small_blocks(monkeypatch):
    """Let a preparation read blocks of 200 bytes, so that a few lines are many blocks."""
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", BLOCK_BYTES)


def run_prepare(corpus, data, tokenizer, **options):
    """Prepare ``corpus`` into ``data``; return the lines of progress.

    Args:
        tokenizer: its folder.
        options: further arguments of ``prepare``, such as ``workers``.
    """
    progress_lines = []
    prepare(corpus, data, progress_lines.append, tokenizer=tokenizer, **options)
    return progress_lines


def read_documents(data):
    """Return the token ids of each document of the prepared folder ``data``."""
    reader = IndexedReader.open(data / "corpus_text_document")
    assert len(reader.sizes) == reader.num_documents  # a sequence for each document
    return [read_document_tokens(reader, number) for number in range(reader.num_documents)]


def read_files(folder):
    """Return the bytes of each file below ``folder``, by its path relative to the folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_documents_keep_their_order_and_end_with_the_end_token(corpus, tokenizer, tmp_path):
    # ``corpus`` has the 60 ``TEXTS``. ``encode_by_hand`` returns a text's token ids, computed
    # without the tokenizer's library and without the end token.
    data = tmp_path / "data"
    progress_lines = run_prepare(corpus, data, tokenizer)
    # 263: the id of the end token, the last of the tokenizer's 264.
    expected = [[*encode_by_hand(text), 263] for text in TEXTS]
    assert read_documents(data) == expected
    tokens = sum(map(len, expected))
    assert f"60 documents, {tokens:,} tokens, largest id 263 of 264" in progress_lines
    assert progress_lines[-1] == f"done: {data}"


def test_manifest_lists_the_files_sources_and_counts_of_a_prepared_corpus(
    corpus, tokenizer, tmp_path
):
    # ``corpus`` has the 60 ``TEXTS``; the tokenizer has 264 tokens, of which the last is the end.
    data = tmp_path / "data"
    run_prepare(corpus, data, tokenizer)
    manifest = json.loads((data / "manifest.json").read_bytes())
    names = [
        "corpus_text_document.bin",
        "corpus_text_document.idx",
        "tokenizer/merges.txt",
        "tokenizer/vocab.json",
    ]
    assert sorted(manifest["files"]) == names
    assert sorted(read_files(data)) == sorted([*names, "manifest.json"])
    # Sources are the corpus and the files of the tokenizer.
    content = corpus.read_bytes()
    assert manifest["sources"][0] == {
        "name": "corpus.jsonl",
        "size_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert [item["name"] for item in manifest["sources"][1:]] == names[2:]
    tokens = sum(len(encode_by_hand(text)) + 1 for text in TEXTS)  # 1: the end token
    assert (manifest["vocab_size"], manifest["end_of_document"]["id"]) == (264, 263)
    assert manifest["counts"]["corpus_text_document"] == {
        "documents": 60,
        "empty_texts": 0,
        "tokens": tokens,
        "largest_token_id": 263,
    }
    # No temporary folder is left; "gpt2" is the tokenizer's.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "data", "gpt2"]


def test_prepared_bytes_do_not_depend_on_block_size(corpus, tokenizer, tmp_path, request):
    # ``corpus`` is a file of 60 short lines, which one block of the usual 2 MiB holds.
    run_prepare(corpus, tmp_path / "whole", tokenizer)
    request.getfixturevalue("small_blocks")  # the second preparation reads blocks of 200 bytes
    run_prepare(corpus, tmp_path / "cut", tokenizer)
    # ``read_files``: the bytes of every file below a folder, by its relative path.
    assert read_files(tmp_path / "whole") == read_files(tmp_path / "cut")


def test_folder_of_plain_and_gzip_files_is_read_in_order(tokenizer, tmp_path, small_blocks):
    # With ``small_blocks`` a block has only a few lines, so each file has several. ``TEXTS`` are
    # 60 texts.
    raw = tmp_path / "raw"
    (raw / "b").mkdir(parents=True)
    (raw / "a.jsonl").write_text(format_lines(TEXTS[:20]).rstrip("\n"))  # no newline at the end
    (raw / "b" / "c.jsonl.gz").write_bytes(gzip.compress(format_lines(TEXTS[20:40]).encode()))
    (raw / "b" / "d.JSON").write_bytes(  # gzip by content, in two members
        gzip.compress(format_lines(TEXTS[40:50]).encode())
        + gzip.compress(format_lines(TEXTS[50:]).encode())
    )
    (raw / ".hidden").mkdir()
    for name in ("notes.txt", ".hidden.jsonl", ".hidden/copy.jsonl"):
        (raw / name).write_text("not part of it")
    assert list(find_source_files(raw)) == ["a.jsonl", "b/c.jsonl.gz", "b/d.JSON"]
    # In the order of their paths.
    run_prepare(raw, tmp_path / "data", tokenizer)
    # Each document ends with the end token, 263.
    assert read_documents(tmp_path / "data") == [[*encode_by_hand(text), 263] for text in TEXTS]


def test_byte_order_mark_and_crlf_do_not_become_text(corpus, tokenizer, tmp_path):
    separated = "one\u2028two\x85three"
    # JSON may hold these characters as they are; they end no line.
    text = format_lines([*TEXTS, separated]).replace("\\u2028", "\u2028").replace("\\u0085", "\x85")
    corpus.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert separated.encode() in corpus.read_bytes()
    run_prepare(corpus, tmp_path / "data", tokenizer)
    # The 60 documents of ``TEXTS``, each with the end token, 263; then the one with separators.
    *documents, last_document = read_documents(tmp_path / "data")
    assert documents == [[*encode_by_hand(text), 263] for text in TEXTS]
    # ``encode_by_hand`` takes ASCII only, so the ids of the last document are decoded instead.
    *ids, end_id = last_document
    assert (open_corpus_tokenizer(tokenizer).library.decode(ids), end_id) == (separated, 263)


def read_fault(kind, corpus, data, tokenizer, **options):
    """Return the text of the error of type ``kind`` that ends the preparation of ``corpus``.

    The error must have a place, a rule and a fix, and ``data`` must not have been written.

    Args:
        tokenizer: its folder.
        options: further arguments of ``prepare``, such as ``workers``.
    """
    with pytest.raises(kind) as caught:
        run_prepare(corpus, data, tokenizer, **options)
    assert caught.value.where
    assert caught.value.rule
    assert caught.value.fix
    assert not data.exists()
    return str(caught.value)


BAD_LINES = [
    (b'{"text": "a"\n', "not JSON, EOF while parsing an object at column 12: "),
    (b'{"body": "a", "id": 1}\n', "the key 'text' is missing; the line has the keys body, id"),
    (b'{"text": null}\n', "'text' is None, not text"),
    (b"[1]\n", "not a JSON object: [1]"),
    # Long lines.
    (b'{"text": "%s\n' % (b"a" * 1000), "not JSON, EOF while parsing a string at column 1010: "),
    (b'{"%s": 1}\n' % (b"a" * 1000), "the key 'text' is missing; the line has the keys aaa"),
    (b'{"text": ["%s"]}\n' % (b"a" * 1000), "'text' is ['aaa"),
    (b'["%s"]\n' % (b"a" * 1000), "not a JSON object: ['aaa"),
]


@pytest.mark.parametrize(("line", "error_start"), BAD_LINES, ids=lambda value: value[:20])
def test_line_without_text_is_refused(tmp_path, line, error_start):
    # ``BAD_LINES``: wrong lines, each with the beginning of its error. Texts are read at the key
    # "text", which the option ``text_key=`` of a preparation changes.
    # The empty second line is no document, but counts.
    all_lines = [b'{"text": "a"}\n', b"\n", line, b'{"text": "b"}\n']
    with pytest.raises(DataError) as caught:
        parse_texts(all_lines, "text", tmp_path / "c.jsonl")
    assert caught.value.where == f"{tmp_path}/c.jsonl, line 3"
    assert caught.value.what.startswith(error_start)
    assert len(caught.value.what) < 200  # it does not quote a whole long line
    assert "text_key=" in caught.value.fix


def test_a_corpus_without_a_document_is_refused(tmp_path, tokenizer):
    (tmp_path / "c.jsonl").write_text('{"text": ""}\n')
    message = read_fault(DataError, tmp_path / "c.jsonl", tmp_path / "data", tokenizer)
    assert "the corpus contains no documents (empty texts: 1)" in message
    # There is nothing to resume.
    assert not (tmp_path / ".data.partial").exists()


class Stopping(Reporter):
    """Interrupts the call at the given progress report of the token stage, counted from 1.

    Args:
        stop_at: number of that report; 0 never stops.
    """

    def __init__(self, stop_at):
        super().__init__(lambda _: None)
        self.reports_until_stop = stop_at
        # Of each stage: its name, and the units that were done when it began. ``begin`` adds them.
        self.begun = []

    def begin(self, stage, total, done=0):
        self.begun.append((stage, done))

    def advance(self, units):
        """Count a report if the current stage is that of tokens; stop at the last one counted.

        ``begun`` has a pair for each stage begun so far, of which the first value is its name.
        ``reports_until_stop`` begins as ``stop_at``; a count that starts at 0 becomes negative, so
        it never stops.
        """
        stage, _ = self.begun[-1]
        if stage.startswith("tokenising"):
            self.reports_until_stop -= 1
            if self.reports_until_stop == 0:
                raise KeyboardInterrupt


@pytest.mark.parametrize("stop_at", [1, 2, 9])
@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.usefixtures("small_blocks")
def test_interrupted_preparation_resumes_after_the_last_saved_block(
    tokenizer, tmp_path, monkeypatch, stop_at, gzipped
):
    # ``small_blocks`` makes blocks of 200 bytes, so that the 60 ``TEXTS``, in two files, are many.
    # ``Stopping(stop_at)`` interrupts the call when block ``stop_at`` is reported.
    monkeypatch.setattr(pairs, "SAVE_EVERY_TOKENS", 1)  # save after each block
    raw = tmp_path / "raw"
    raw.mkdir()
    for number, part in enumerate((TEXTS[:25], TEXTS[25:])):
        content = format_lines(part).encode()
        (raw / f"{number}.jsonl").write_bytes(gzip.compress(content) if gzipped else content)
    run_prepare(raw, tmp_path / "whole", tokenizer)
    with pytest.raises(KeyboardInterrupt):
        run_prepare_with_reporter(raw, tmp_path / "data", tokenizer, Stopping(stop_at))
    # The unfinished output; the second call must drop what follows the last saved block.
    with (tmp_path / ".data.partial" / "corpus_text_document.bin").open("ab") as stream:
        stream.write(b"written after the last save")
    second_call = Stopping(0)  # never stops
    run_prepare_with_reporter(raw, tmp_path / "data", tokenizer, second_call)
    # What the second call found done when it began the stage.
    (done,) = (done for stage, done in second_call.begun if stage.startswith("tokenising"))
    # A block is reported before it is saved, so a stop at the first report leaves nothing saved.
    assert (done > 0) == (stop_at > 1)
    # The same files as of the call that nothing interrupted. "gpt2" is the tokenizer's folder.
    assert read_files(tmp_path / "data") == read_files(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "gpt2", "raw", "whole"]


def run_prepare_with_reporter(raw, data, tokenizer, reporter):
    prepare(raw, data, reporter, tokenizer=tokenizer)


@pytest.mark.usefixtures("small_blocks")
def test_workers_write_the_same_bytes_and_name_the_faulty_line(
    corpus, tokenizer, tmp_path, monkeypatch
):
    # ``corpus`` has the 60 ``TEXTS``, a line each; ``small_blocks`` makes blocks of 200 bytes, so
    # that several workers have something to do. Each further worker needs ``WORKER_BYTES`` of
    # corpus, which are usually 32 MiB.
    run_prepare(corpus, tmp_path / "alone", tokenizer)
    monkeypatch.setattr(pairs, "WORKER_BYTES", 100)  # even this corpus is worth workers
    run_prepare(corpus, tmp_path / "together", tokenizer, workers=2)
    assert read_files(tmp_path / "together") == read_files(tmp_path / "alone")
    # ``read_fault`` returns the error's text. The wrong line is the one after the 60.
    corpus.write_text(format_lines(TEXTS) + '{"body": "x"}\n')
    message = read_fault(DataError, corpus, tmp_path / "data", tokenizer, workers=2)
    assert f"{corpus}, line 61: the key 'text' is missing; the line has the keys body" in message


def test_sparse_hole_in_a_corpus_is_a_line_without_text(tmp_path, tokenizer, monkeypatch):
    # A longer line is read in parts, so that a hole does not fill the memory.
    monkeypatch.setattr(corpus_module, "MAX_LINE_BYTES", 1 << 10)
    (tmp_path / "c.jsonl").write_text(format_lines(TEXTS[:1]))
    # Makes the file longer: the rest is zeros, without a line end.
    os.truncate(tmp_path / "c.jsonl", 1 << 24)
    message = read_fault(DataError, tmp_path / "c.jsonl", tmp_path / "data", tokenizer)
    # Line 1 is the one text written above; the zeros after it are line 2, which is no JSON.
    assert "line 2: not JSON" in message


def test_call_resumes_after_a_line_that_was_read_in_pieces(tmp_path, small_blocks, monkeypatch):
    # A line of 1,000 spaces, which is skipped, is longer than a block of 200 bytes with the maximum
    # of 300 bytes for the rest of its last line: it is read, and counted, as several lines.
    monkeypatch.setattr(corpus_module, "MAX_LINE_BYTES", 300)
    file = tmp_path / "c.jsonl"
    file.write_text(f"{' ' * 1000}\n{format_lines(TEXTS[:20])}")
    blocks = [*read_blocks([file])]
    # Read whole, the file would have 21 lines: the spaces and 20 texts.
    assert sum(len(block.lines) for block in blocks) > 21
    # ``block.after`` is the position at which a block ends. A call that begins there, as one does
    # after an interruption, reads exactly the blocks that followed in the first call.
    for begin, block in enumerate(blocks):
        later_blocks = [*read_blocks([file], block.after)]
        assert [other.lines for other in later_blocks] == [
            other.lines for other in blocks[begin + 1 :]
        ]


def test_line_limit_holds_over_files_and_calls(tmp_path, small_blocks):
    # With ``small_blocks`` a block has only a few lines. 25 lines: two files and half the third.
    paths = []
    for number in range(3):
        paths.append(tmp_path / str(number))
        paths[-1].write_text(format_lines(TEXTS[:10]))
    blocks = [*read_blocks(paths, max_lines=25)]
    assert sum(len(block.lines) for block in blocks) == 25
    # ``block.after`` is the position at which a block ends, with the lines read so far, so that the
    # 25 of ``max_lines`` are counted from the beginning of the first file in a later call too.
    # A call that begins after a block reads what follows, up to the same limit.
    for begin, block in enumerate(blocks):
        later_blocks = [*read_blocks(paths, block.after, max_lines=25)]
        assert [other.lines for other in later_blocks] == [
            other.lines for other in blocks[begin + 1 :]
        ]
