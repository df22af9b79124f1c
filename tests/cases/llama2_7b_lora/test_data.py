"""Dialogues in every form, tokenizers of both kinds, generated data, the check and the load."""

import csv
import dataclasses
import json
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainmark.cases.llama2_7b_lora import data
from trainmark.cases.llama2_7b_lora.case import CASE
from trainmark.cases.llama2_7b_lora.data import generating
from trainmark.cases.llama2_7b_lora.data.dialogues import (
    FORMS,
    read_dialogues,
)
from trainmark.cases.llama2_7b_lora.mmlu.questions import LETTERS
from trainmark.cases.llama2_7b_lora.model_files import open_tokenizer
from trainmark.data.splits import find_layout
from trainmark.errors import DataError, UsageError

ROWS = [
    {"id": "1", "dialogue": "Ann: hi\r\nBo: hé,\u2028\x85\x0c ciao", "summary": "They greet."},
    {"id": "2", "dialogue": "", "summary": "Nothing is said."},
]
VALIDATION_ROWS = [{"id": "3", "dialogue": "x", "summary": "y"}]
TINY = CASE.recipes["tiny"]


@pytest.fixture(scope="module", autouse=True)
def few_dialogues():
    """Generate fewer dialogues than a run has, to be quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generating, "DIALOGUES", {"train": 600, "val": 200})
        yield


def write_split(folder, kind, names=("train", "val")):
    """Write ``ROWS`` and ``VALIDATION_ROWS`` below ``folder`` in a form; return the folder.

    Args:
        kind: json (an array), jsonl, json-lines (jsonl in a file named .json), csv, parquet, or
            parts (a parquet file for each row).
        names: of the files of both splits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(names, (ROWS, VALIDATION_ROWS), strict=True):
        table = pa.Table.from_pylist(rows)
        if kind == "json":
            (folder / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
        elif kind in ("jsonl", "json-lines"):
            lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
            ending = "jsonl" if kind == "jsonl" else "json"
            (folder / f"{name}.{ending}").write_text(lines + "\n\n", encoding="utf-8")
        elif kind == "csv":
            with (folder / f"{name}.csv").open("w", encoding="utf-8-sig", newline="") as stream:
                writer = csv.DictWriter(stream, rows[0], lineterminator="\r\n")
                writer.writeheader()
                writer.writerows(rows)
        elif kind == "parquet":
            pq.write_table(table, folder / f"{name}.parquet")
        elif kind == "parts":
            for number in range(len(rows)):
                part = f"{name}-{number:05d}-of-{len(rows):05d}.parquet"
                pq.write_table(table.slice(number, 1), folder / part)
    return folder


@pytest.mark.parametrize(
    ("kind", "place", "names"),
    [
        ("json", ".", ("train", "val")),
        ("jsonl", "data", ("train", "validation")),
        ("json-lines", "samsum", ("train", "eval")),
        ("parquet", ".", ("train", "validation")),
        ("parts", "data", ("train", "validation")),
        ("csv", ".", ("train", "validation")),
    ],
)
def test_every_file_format_gives_the_same_rows(tmp_path, kind, place, names):
    """Both splits are found in files with ``names`` in the subfolder ``place``.

    ``write_split`` writes two splits: the rows ``ROWS`` for training, ``VALIDATION_ROWS`` else.
    ``FORMS`` are all names and places of files that the program accepts.
    """
    write_split(tmp_path / place, kind, names)
    layout = find_layout(tmp_path, FORMS, DataError)
    train, validation = (read_dialogues(files) for files in layout.files.values())
    assert train.dialogues == [row["dialogue"] for row in ROWS]
    assert train.summaries == [row["summary"] for row in ROWS]
    # The single row of ``VALIDATION_ROWS``.
    assert (validation.dialogues, validation.summaries) == (["x"], ["y"])


def read_fault(folder, file="train.json"):
    """Return what is wrong when ``file`` is read as a split, and the place, without the folder."""
    with pytest.raises(DataError) as caught:
        read_dialogues([folder / file])
    assert caught.value.fix
    assert "prepare" not in caught.value.fix  # which uses the same reader and would fail alike
    return caught.value.what, caught.value.where.removeprefix(f"{folder}/")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"summary": "s"}]',
         ("the row has no dialogue; its keys are summary", "train.json, row 1, dialogue")),
        ('{"dialogue":"d","summary":"s"}\n{"dialogue":null,"summary":"s"}',
         ("dialogue is None", "train.json, row 2, dialogue")),
        ('[{"dialogue": "d", "summary": " "}]', ("summary is ' '", "train.json, row 1, summary")),
        ("[1]", ("the row is 1", "train.json, row 1")),
        ("[]", ("the file has no rows", "train.json")),
        ('[\n{"a":}', ("not readable as json: Expecting value: line 2", "train.json")),
        ('{"dialogue":"d","summary":"s"}\n{', ("not readable as JSON", "train.json, line 2")),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named(tmp_path, text, expected):
    (tmp_path / "train.json").write_text(text, encoding="utf-8")
    what, where = read_fault(tmp_path)
    # ``expected``: the beginning of the error, and its place.
    assert (what[: len(expected[0])], where) == expected


def test_null_dialogue_in_parquet_is_named_by_file_row_and_key(tmp_path):
    pq.write_table(
        pa.table({"dialogue": ["a", None], "summary": ["s", "t"]}), tmp_path / "train.parquet"
    )
    assert read_fault(tmp_path, "train.parquet") == (
        "dialogue is None",
        "train.parquet, row 2, dialogue",
    )


def test_csv_row_with_a_comma_outside_quotes_is_refused(tmp_path):
    """Its summary would lose the text after the comma."""
    (tmp_path / "train.csv").write_text("id,dialogue,summary\n1,hi,They greet, briefly.\n")
    what, where = read_fault(tmp_path, "train.csv")
    assert "line 2 has 4 fields, but the header has 3" in what
    assert where == "train.csv"


def test_ids_equal_those_of_transformers(tmp_path):
    from transformers import AutoTokenizer

    generating.write_tokenizer(tmp_path, vocab_size=256)
    library = AutoTokenizer.from_pretrained(tmp_path)
    texts = ["Ada: I bring the bread", "\n\nAnswer: C", ""]
    our_tokenizer = open_tokenizer(tmp_path, vocab_size=256)
    assert our_tokenizer.encode_prompts(texts) == library(texts)["input_ids"]
    assert our_tokenizer.encode_documents(texts) == [
        [*ids, 2]  # documents end with the end token
        for ids in library(texts)["input_ids"]
    ]


def test_missing_tokenizer_and_ids_outside_the_embedding_are_named(tmp_path):
    with pytest.raises(DataError, match=r"no tokenizer\.json"):
        open_tokenizer(tmp_path, vocab_size=256)
    # A tokenizer may have as many tokens as the embedding, but no more.
    size = len(generating.list_tokens())
    generating.write_tokenizer(tmp_path, vocab_size=size)
    open_tokenizer(tmp_path, vocab_size=size)
    with pytest.raises(DataError, match=f"the largest token id is {size - 1}") as caught:
        open_tokenizer(tmp_path, vocab_size=size - 1)
    assert f"config.json ({size - 1})" in caught.value.rule


@pytest.fixture(scope="module")
def generated(tmp_path_factory, few_dialogues):
    """Return a data folder with generated dialogues; ``few_dialogues`` sets their number."""
    folder = tmp_path_factory.mktemp("generated")
    generating.generate(folder, TINY)
    return folder


def test_summaries_follow_from_their_dialogues():
    # ``KNOWLEDGE``: questions, each with its possible answers and, for each answer, the words that
    # belong to it. ``LETTERS`` are A to D.
    kinds_seen = set()
    for dialogue, summary in generating.draw_dialogues("train", rows=300, seed=3):
        lines = dialogue.split("\n")
        if ": I bring " in lines[0]:
            name, thing = lines[0].split(": I bring ")
            assert summary == f"{name} brings {thing}"
            kinds_seen.add("chat")
            continue
        # Else up to three questions, each of 7 lines: the question, four choices, answer, blank.
        answers = [line.removeprefix("Answer: ") for line in lines if line.startswith("Answer")]
        assert summary == " ".join(answers)
        for number, letter in enumerate(answers):
            asked, *choices = lines[7 * number : 7 * number + 5]
            words = asked.replace("?", "").split()
            # The right choice is the one that a word of the question belongs to.
            (right,) = (
                choice
                for _, possible_answers, words_by_choice in generating.KNOWLEDGE
                for choice, words_of_choice in zip(possible_answers, words_by_choice, strict=True)
                if set(words_of_choice) & set(words)
            )
            assert choices[LETTERS.index(letter)] == f"{letter}. {right}"
        kinds_seen.add(len(answers))
    assert kinds_seen == {"chat", 1, 2, 3}  # chats, and so many questions


def test_check_summarizes_the_content_and_load_returns_it(generated, tmp_path):
    # ``generated`` is a folder of generated dialogues, ``TINY`` the recipe to train on them.
    facts = data.check(generated, TINY)
    loaded = data.load(generated, TINY)
    # Dialogues are joined and cut into rows of ``seq_length`` tokens; the last row may be short.
    assert (
        facts.train_samples == len(loaded.train) == -(-loaded.train.tokens.sum() // TINY.seq_length)
    )
    assert facts.eval_samples == 57 * generating.TEST_ROWS  # MMLU has 57 subjects
    # Each generated question has one right answer, so all can be answered: 1.0. The quality is
    # comparable, because the recipe starts from a checkpoint.
    assert (facts.best_quality, facts.layout, facts.quality_comparable) == (1.0, "jsonl", True)
    assert loaded.train.num_documents == generating.DIALOGUES["train"]
    assert loaded.config.vocab_size == 256
    assert data.check(generated, TINY).content_id == facts.content_id
    # Without MMLU, the validation dialogues are scored: other data, so another ``content_id``.
    # The best quality stays 1.0: it is always that of the case's metric, the score on MMLU. A run
    # that starts from random weights (``init``) measures speed alone: it is not comparable.
    off = data.check(generated, dataclasses.replace(TINY, mmlu_mode="off", init="random"))
    assert off.content_id != facts.content_id
    assert (off.eval_samples, off.best_quality) == (len(loaded.validation), 1.0)
    assert not off.quality_comparable


def test_dialogues_that_fill_no_row_are_refused_with_a_smaller_length_as_fix(generated, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(generated, folder)
    write_split(folder, "jsonl")  # two short dialogues
    # Together they have fewer tokens than a row of 2,048; a row that is not full is dropped.
    recipe = dataclasses.replace(TINY, seq_length=2048, short_row="drop")
    with pytest.raises(DataError, match="do not fill one row") as caught:
        data.check(folder, recipe)
    assert "set a smaller seq_length" in caught.value.fix


def test_fix_of_a_too_long_first_line_names_the_smallest_length_that_works(generated):
    # "legacy" cuts the prompts of MMLU to ``seq_length`` tokens, as the published program does, but
    # their first line, which names the subject, must remain. None has as few tokens as 4.
    legacy = dataclasses.replace(TINY, seq_length=4, mmlu_mode="legacy")
    with pytest.raises(DataError, match="the first line of") as caught:
        data.check(generated, legacy)
    smallest = int(re.search(r"set seq_length to at least (\d+)", caught.value.fix)[1])
    data.check(generated, dataclasses.replace(legacy, seq_length=smallest))
    with pytest.raises(DataError, match="the first line of"):
        data.check(generated, dataclasses.replace(legacy, seq_length=smallest - 1))


@pytest.mark.parametrize("change", [{"mmlu_mode": "off"}, {"init": "random"}])
def test_fix_of_a_target_that_cannot_be_reached_names_recipe_fields(change):
    # The recipe's target is a score on MMLU, which "off" does not compute and which a model with
    # random weights cannot reach.
    recipe = dataclasses.replace(CASE.recipes["standard-1x1"], **change)
    with pytest.raises(UsageError, match="cannot be reached with") as caught:
        recipe.check(world_size=1)
    assert caught.value.fix == "add target_value=none and eval_every_epochs=none"
    dataclasses.replace(recipe, target_value=None, eval_every_epochs=None).check(world_size=1)
