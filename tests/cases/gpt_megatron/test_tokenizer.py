"""The tokenizer of a corpus: both forms, the end of a document, and what is refused."""

import json

import pytest

from gpt_tokenizers import END, ids_of, vocab, write_one_file, write_two_files
from trainmark.cases.gpt_megatron.prepare.tokenizer import open_tokenizer
from trainmark.errors import DataError

WRITERS = [write_two_files, write_one_file]


def encode(opened, text):
    return opened.library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("write", WRITERS)
def test_both_forms_give_the_same_ids(tmp_path, write):
    opened = open_tokenizer(write(tmp_path))
    assert (opened.vocab_size, opened.end_of_document, opened.end_id) == (264, END, 263)
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
    assert "tokenizer=" in caught.value.remedy or "token" in caught.value.remedy
    return str(caught.value)


def test_a_folder_without_a_whole_form_is_refused(tmp_path):
    assert "no tokenizer" in fault(tmp_path / "nowhere")
    write_two_files(tmp_path)
    (tmp_path / "merges.txt").rename(tmp_path / "away")
    assert "vocab.json without merges.txt" in fault(tmp_path)
    (tmp_path / "vocab.json").unlink()
    (tmp_path / "away").rename(tmp_path / "merges.txt")
    assert "merges.txt without vocab.json" in fault(tmp_path)


def without(*tokens):
    return {token: number for token, number in vocab().items() if token not in tokens}


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (without("a"), "263 tokens, the largest id is 263, none has id "),
        (vocab() | {"hello": "259"}, "vocab.json: not readable as a tokenizer"),
        (vocab() | {"hello": 258}, "264 tokens share 263 ids"),
        ({("x" + k if k == "é" else k): v for k, v in vocab().items()}, "1 of the 256 bytes, 'é'"),
    ],
)
def test_ids_are_the_whole_numbers_without_a_hole(tmp_path, ids, says):
    assert says in fault(write_two_files(tmp_path, ids=ids))


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (
            ("model",),
            {"type": "WordLevel", "vocab": without(END), "unk_token": "a"},
            "is WordLevel",
        ),
        (("pre_tokenizer",), None, "not cut into bytes"),
        (("model", "dropout"), 0.1, "dropped at random"),
        (("model", "end_of_word_suffix"), "</w>", "a suffix"),
        (("model", "merges"), [["h", "zz"]], "Token `zz` out of vocabulary"),
        (("version",), "x", "not readable as a tokenizer"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(tmp_path, at, value, says):
    def change(document):
        for key in at[:-1]:
            document = document[key]
        document[at[-1]] = value

    assert says in fault(write_one_file(tmp_path, change))
