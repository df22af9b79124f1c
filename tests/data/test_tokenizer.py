"""The tokenizer of a corpus: both forms, the end of a document, and what is refused."""

import json

import pytest

from gpt_tokenizers import END, ids_of, write_one_file, write_two_files
from trainmark.data.encoding.tokenizer import open_tokenizer
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


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_the_tokenizers_own_end_token_is_used(tmp_path, file):
    write_two_files(tmp_path)
    for told, end_id in (({"content": END}, 263), (None, 263)):
        (tmp_path / file).write_text(json.dumps({"eos_token": told}))
        assert open_tokenizer(tmp_path).end_id == end_id
    (tmp_path / file).write_text(json.dumps({"eos_token": "<none>"}))
    assert "no token '<none>', which ends a document" in fault(tmp_path)


def fault(folder):
    with pytest.raises(DataError) as caught:
        open_tokenizer(folder)
    assert caught.value.where
    assert caught.value.rule
    assert "tokenizer=" in caught.value.remedy or "token" in caught.value.remedy
    return str(caught.value)
