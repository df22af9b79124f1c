"""The tokenizer of a corpus: both forms, the end of a document, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_tokenizers import END, LETTERS, MERGES, ids_of, vocab, write_one_file, write_two_files
from trainmark.cases.gpt_megatron.prepare_encode import ODD_SPACE, Encoder
from trainmark.cases.gpt_megatron.tokenizer import open_tokenizer, tokenizer_files
from trainmark.errors import DataError

WRITERS = [write_two_files, write_one_file]


def encode(opened, text):
    return opened.library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("write", WRITERS)
def test_both_forms_give_the_same_ids(tmp_path, write):
    opened = open_tokenizer(write(tmp_path))
    assert (opened.vocab_size, opened.end_of_document, opened.end_id) == (264, END, 263)
    assert opened.by_words
    assert encode(opened, "hello world") == ids_of("hello world")
    assert encode(opened, "hello wo") == [259, 261]


@pytest.mark.parametrize("write", WRITERS)
def test_a_text_that_spells_the_end_token_stays_text(tmp_path, write):
    opened = open_tokenizer(write(tmp_path))
    ids = encode(opened, f"a{END}b")
    assert 263 not in ids
    assert opened.library.decode(ids) == f"a{END}b"


def test_an_end_token_that_texts_can_spell_is_refused(tmp_path):
    def ordinary(document):
        document["added_tokens"][0]["special"] = False

    message = fault(write_one_file(tmp_path, ordinary))
    assert "a text that spells '<|endoftext|>' becomes the end of a document" in message


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("told", ["he", {"content": "he", "lstrip": False}])
def test_the_tokenizers_own_end_token_is_used(tmp_path, file, told):
    # "he" is no special token, so a text with it would end the document.
    write_two_files(tmp_path)
    (tmp_path / file).write_text(json.dumps({"eos_token": told}))
    assert "a text that spells 'he' becomes the end" in fault(tmp_path)
    (tmp_path / file).write_text(json.dumps({"eos_token": END}))
    assert open_tokenizer(tmp_path).end_id == 263
    (tmp_path / file).write_text(json.dumps({"eos_token": None}))
    assert open_tokenizer(tmp_path).end_id == 263
    (tmp_path / file).write_text(json.dumps({"eos_token": 7}))
    assert "eos_token is 7" in fault(tmp_path)


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path):
    ids = {token: number for token, number in vocab().items() if token != END}
    assert "no token '<|endoftext|>'" in fault(write_two_files(tmp_path, ids=ids))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert "'</s>', which ends a document says tokenizer_config.json" in fault(tmp_path)


def fault(folder):
    with pytest.raises(DataError) as caught:
        open_tokenizer(folder)
    assert caught.value.where
    assert caught.value.rule
    assert "--tokenizer" in caught.value.remedy or "token" in caught.value.remedy
    return str(caught.value)


def test_a_folder_without_a_whole_form_is_refused(tmp_path):
    assert "no tokenizer" in fault(tmp_path / "nowhere")
    write_two_files(tmp_path)
    (tmp_path / "merges.txt").rename(tmp_path / "away")
    assert "vocab.json without merges.txt" in fault(tmp_path)
    (tmp_path / "vocab.json").unlink()
    (tmp_path / "away").rename(tmp_path / "merges.txt")
    assert "merges.txt without vocab.json" in fault(tmp_path)


def test_the_files_that_belong_are_listed(tmp_path):
    write_one_file(write_two_files(tmp_path))
    (tmp_path / "README.md").write_text("")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert list(tokenizer_files(tmp_path)) == [
        "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json",
    ]  # fmt: skip


def without(*tokens):
    return {token: number for token, number in vocab().items() if token not in tokens}


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ({}, "no tokens"),
        (without("hello"), "none has id 259"),
        (vocab() | {"hello": "259"}, "an id is '259'"),
        (vocab() | {"hello": True}, "an id is True"),
        (vocab() | {"hello": -1}, "an id is -1"),
        (vocab() | {"hello": 2**31}, "an id is 2147483648"),
        (vocab() | {"hello": 258}, "264 tokens share 263 ids"),
        ({("x" + k if k == "é" else k): v for k, v in vocab().items()}, "1 of the 256 bytes, 'é'"),
    ],
)
def test_ids_are_the_whole_numbers_without_a_hole(tmp_path, ids, says):
    assert says in fault(write_two_files(tmp_path, ids=ids))


@pytest.mark.parametrize("pair", [("h",), ("h", "e", "l"), ("h", "zz"), ("z", "z"), ("",)])
def test_a_merge_that_makes_no_token_is_named_with_its_line(tmp_path, pair):
    message = fault(write_two_files(tmp_path, merges=[*MERGES[:3], pair, *MERGES[3:]]))
    assert "merges.txt, line 5: no merge" in message


def test_damaged_files_are_named(tmp_path):
    write_two_files(tmp_path)
    (tmp_path / "merges.txt").write_bytes(b"\xff\xfe")
    assert "merges.txt: not UTF-8" in fault(tmp_path)
    for text in ("", "[" * 100_000, '{"a": 0'):
        (tmp_path / "vocab.json").write_text(text)
        assert "vocab.json: not readable as JSON" in fault(tmp_path)
    (tmp_path / "vocab.json").write_text("[1]")
    assert "vocab.json: holds a list" in fault(tmp_path)


def test_an_added_token_that_the_library_moves_is_refused(tmp_path):
    def fill_up_behind(document):
        document["model"]["vocab"]["behind"] = 264

    message = fault(write_one_file(tmp_path, fill_up_behind))
    assert "has id 263 in the file, and 264 once" in message


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (("model", "type"), "WordPiece", "the model is WordPiece"),
        (("model",), None, "the model is None"),
        (("pre_tokenizer",), {"type": "Whitespace"}, "not cut into bytes"),
        (("pre_tokenizer",), None, "not cut into bytes"),
        (("model", "dropout"), 0.1, "dropped at random"),
        (("model", "end_of_word_suffix"), "</w>", "a suffix"),
        (("model", "merges"), [["h", "zz"]], "model.merges[0]: no merge"),
        (("model", "merges"), [5], "model.merges[0]: no merge"),
        (("model", "merges"), None, "another shape"),
        (("model", "vocab"), None, "another shape"),
        (("added_tokens",), [{"id": 263}], "another shape"),
        (("added_tokens", 0, "id"), 300, "none has id 263"),
        (("version",), "x", "not readable as a tokenizer"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(tmp_path, at, value, says):
    def change(document):
        for key in at[:-1]:
            document = document[key]
        document[at[-1]] = value

    assert says in fault(write_one_file(tmp_path, change))


def spaced(document):
    document["pre_tokenizer"]["add_prefix_space"] = True


def normalised(document):
    document["normalizer"] = {"type": "NFC"}


def with_an_ordinary_token(document):
    added = document["added_tokens"][0]
    document["added_tokens"].append(added | {"id": 264, "content": "o w", "special": False})


@pytest.mark.parametrize("change", [spaced, normalised, with_an_ordinary_token])
def test_what_may_look_past_a_word_is_never_cut(tmp_path, change):
    opened = open_tokenizer(write_one_file(tmp_path, change))
    assert not opened.by_words
    assert_encoded_as_a_whole(opened, ["hello world", "hello  world\n", "e\u0301 o w"])


def assert_encoded_as_a_whole(opened, texts):
    """Hold the encoder to what the library says of each text uncut, twice: new and known."""
    encoder = Encoder(opened, np.dtype("<u2"))
    for _ in range(2):
        found = [np.frombuffer(item, "<u2").tolist() for item in encoder.encode(texts)]
        assert found == [[*encode(opened, text), opened.end_id] for text in texts]


# Everything the cutting tells apart: letters, numbers, marks, spaces that Python and the
# library see alike or otherwise, and beginnings of GPT-2's contractions.
PARTS = st.sampled_from(
    [*"aé漢1²٣.'_-!\u0301\u200b\ufeff", *" \n\t\r\f\v\x1c\x1f\x85\xa0\u1680\u180e\u2028\u3000",
     "  ", "hello", " wo", "'s", "'ll", "'re", END, "\x00", "😀"]
)  # fmt: skip


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return open_tokenizer(write_two_files(tmp_path_factory.mktemp("tokenizer")))


@given(st.lists(st.lists(PARTS, max_size=20).map("".join), max_size=3))
def test_cutting_at_white_space_changes_no_id(opened, texts):
    assert opened.by_words
    assert_encoded_as_a_whole(opened, texts)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_cutting_any_text_changes_no_id(opened, text):
    assert_encoded_as_a_whole(opened, [text])


def test_every_white_space_is_cut_as_the_library_does(opened):
    spaces = [chr(n) for n in range(0x110000) if chr(n).isspace()]
    assert len(spaces) == 29
    assert [s for s in spaces if not ODD_SPACE.search(s)] == list("\t\n\v\f\r ")
    texts = [f"a{s}b{s} c {s}d{s}{s}e  {s}" for s in spaces]
    assert_encoded_as_a_whole(opened, texts)


def test_words_are_kept_within_bounds(opened, monkeypatch):
    module = "trainmark.cases.gpt_megatron.prepare_encode"
    monkeypatch.setattr(f"{module}.WORDS_KEPT", 3)
    encoder = Encoder(opened, np.dtype("<u2"))
    encoder.encode(["a b c d e " + "x" * 49])
    assert sorted(encoder._known) == [" b", " c", " d", " e", "a"]
    encoder.encode(["f"])
    assert sorted(encoder._known) == ["f"]


def test_ids_take_the_element_type_asked_for(opened):
    wide = replace(opened, end_id=70_000)
    assert Encoder(wide, np.dtype("<i4")).encode(["a"]) == [
        np.array([LETTERS.index("a"), 70_000], "<i4").tobytes()
    ]
