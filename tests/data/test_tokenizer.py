"""Tokenizers of a corpus: both forms, the end of a document; vocabularies that are too short."""

import json
from contextlib import nullcontext

import pytest

from support.gpt_tokenizers import END, encode_by_hand, write_one_file, write_two_files
from trainmark.data.tokenizer import (
    FAST_FILE,
    WORDPIECE_FILE,
    make_corpus_error,
    open_corpus_tokenizer,
    open_wordpiece,
    refuse_short_vocabulary,
)
from trainmark.errors import DataError

WRITERS = [write_two_files, write_one_file]


def encode_text(opened, text):
    """Return the ids of a text, without the end of a document."""
    return opened.library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("write_tokenizer", WRITERS)
def test_both_file_formats_give_the_same_ids(tmp_path, write_tokenizer):
    opened = open_corpus_tokenizer(write_tokenizer(tmp_path))
    # A made tokenizer of 264 tokens, the last of which, ``END``, ends a document.
    # ``encode_by_hand`` computes the ids of a text without the library.
    assert (opened.vocab_size, opened.end_of_document, opened.end_id) == (264, END, 263)
    assert encode_text(opened, "hello world") == encode_by_hand("hello world")
    # Ids 0 to 255 are the bytes. Then come the merges: "he", "ll", "hell", "hello" (259), " w" and
    # " wo" (261).
    assert encode_text(opened, "hello wo") == [259, 261]


@pytest.mark.parametrize("write_tokenizer", WRITERS)
def test_text_of_the_end_token_is_encoded_as_text(tmp_path, write_tokenizer):
    # ``WRITERS`` are two functions that write the same made tokenizer of 264 tokens, as two files
    # or as one, and return its folder. ``END`` is "<|endoftext|>", its last token, with which the
    # program itself ends each document. ``encode_text`` returns the ids of a text.
    opened = open_corpus_tokenizer(write_tokenizer(tmp_path))
    # A document that quotes the token does not end there.
    ids = encode_text(opened, f"a{END}b")
    assert 263 not in ids  # the id of the end token
    assert opened.library.decode(ids) == f"a{END}b"


@pytest.mark.parametrize("write_tokenizer", WRITERS)
def test_byte_order_mark_and_crlf_change_no_id(tmp_path, write_tokenizer):
    """Files saved by Windows editors give the same ids as files without mark and CRLF.

    ``WRITERS`` are the functions that write a made tokenizer of 264 tokens in both forms
    (vocab.json with merges.txt, or one tokenizer.json) and return its folder. ``encode_by_hand``
    computes a text's ids without a library.
    """
    for file in write_tokenizer(tmp_path).iterdir():
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert encode_text(open_corpus_tokenizer(tmp_path), "hello world") == encode_by_hand(
        "hello world"
    )


def test_merge_that_is_not_two_tokens_is_named_by_its_line(tmp_path):
    # A valid tokenizer, vocab.json and merges.txt; the latter is replaced below. Its first line
    # states the version, the second is a correct merge.
    write_two_files(tmp_path)
    # A merge is a pair of tokens; that of the file's third line has three. ``read_fault`` returns
    # the text of the error of opening the folder.
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\nl l l\n")
    assert "merges.txt, line 3" in read_fault(tmp_path)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_the_tokenizers_own_end_token_is_used(tmp_path, file):
    write_two_files(tmp_path)
    # ``END``, "<|endoftext|>", is the last of the 264 tokens that ``write_two_files`` writes, so
    # its id is 263; it is also the usual end token. "hello" is the token 259.
    # An object as the library writes it, a text, or none: then the usual end token.
    for end_token, end_id in (({"content": "hello"}, 259), ("hello", 259), (None, 263)):
        (tmp_path / file).write_text(json.dumps({"eos_token": end_token}))
        assert open_corpus_tokenizer(tmp_path).end_id == end_id
    (tmp_path / file).write_text(json.dumps({"eos_token": "<none>"}))
    assert "the end-of-document token '<none>' is missing" in read_fault(tmp_path)


def read_fault(folder):
    """Return the error of opening the tokenizer as text; it must be complete."""
    with pytest.raises(DataError) as caught:
        open_corpus_tokenizer(folder)
    assert caught.value.where
    assert caught.value.rule
    assert "token" in caught.value.fix  # it says what to do about the tokenizer
    return str(caught.value)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_settings_that_are_no_object_are_refused(tmp_path, file):
    write_two_files(tmp_path)
    (tmp_path / file).write_text("[1]")
    assert f"{tmp_path / file}: not a table of keys and values" in read_fault(tmp_path)


@pytest.mark.parametrize("write_tokenizer", WRITERS)
def test_tokenizer_that_adds_a_prefix_space_is_refused(tmp_path, write_tokenizer):
    # Our encoding never adds a space before the first word.
    # ``WRITERS`` write a made tokenizer of 264 tokens: 256 bytes, 7 merges and the end of a
    # document. ``read_fault`` expects that opening a folder fails, and returns the error's text.
    settings = write_tokenizer(tmp_path) / "tokenizer_config.json"
    settings.write_text(json.dumps({"add_prefix_space": False}))
    assert open_corpus_tokenizer(tmp_path).vocab_size == 264
    settings.write_text(json.dumps({"add_prefix_space": True}))
    assert f"{settings}, add_prefix_space: add_prefix_space is true" in read_fault(tmp_path)


@pytest.mark.parametrize("form", [WORDPIECE_FILE, FAST_FILE])
@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        # The program lower-cases, strips accents, separates Chinese characters and exempts no word
        # from being split: a setting that says otherwise is refused; the same value, None (not set)
        # or an unrelated key is not.
        ("do_lower_case", False, True),
        ("strip_accents", False, True),
        ("tokenize_chinese_chars", False, True),
        ("never_split", ["a"], True),
        ("do_lower_case", True, False),
        ("strip_accents", None, False),
        ("model_max_length", 512, False),
    ],
)
def test_bert_settings_that_contradict_its_tokenizer_are_refused(
    tmp_path, form, key, value, refused
):
    (tmp_path / WORDPIECE_FILE).write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    )
    # A lower-casing BERT tokenizer, as a vocabulary (``WORDPIECE_FILE``, vocab.txt) and as the
    # library's own file (``FAST_FILE``, tokenizer.json). ``make_corpus_error`` makes the error.
    library = open_wordpiece(tmp_path / WORDPIECE_FILE, make_corpus_error)
    library.save(str(tmp_path / FAST_FILE))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({key: value}))
    refusal = pytest.raises(DataError, match=f"{key} is")
    with refusal if refused else nullcontext():
        open_wordpiece(tmp_path / form, make_corpus_error)


@pytest.mark.parametrize(
    ("entries", "vocab_size", "multiple", "refused"),
    [
        (32_000, 32_000, 1, False),
        (31_999, 32_000, 1, True),
        (50_257, 50_304, 128, False),  # GPT-2 as Megatron pads it
        (50_257, 50_305, 128, True),
    ],
)
def test_vocabulary_may_differ_from_the_model_only_by_padding(
    tmp_path, entries, vocab_size, multiple, refused
):
    # ``entries`` is the number of tokens of the tokenizer, ``vocab_size`` that of the model, which
    # may be larger only up to the next multiple: 50,304 is 393 x 128, the first one from 50,257 on.
    # The folder, ``size_source`` and ``fix`` are only words of the error.
    # ``multiple``: the model's vocabulary may be rounded up to a multiple of it.
    expectation = pytest.raises(
        DataError, match=f"{entries} entries, but the model expects {vocab_size}"
    )
    with expectation if refused else nullcontext():
        refuse_short_vocabulary(
            tmp_path,
            entries=entries,
            vocab_size=vocab_size,
            size_source="config",
            fix="fetch it",
            multiple=multiple,
        )
