"""Legacy MMLU: prompts and answers equal to a few-line reading of the published rules."""

from __future__ import annotations

import csv
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from support.mmlu_peer import open_model, write_model
from trainmark.cases.llama2_7b_lora.mmlu import plan_scoring
from trainmark.cases.llama2_7b_lora.mmlu.questions import (
    LETTERS,
    Subject,
    print_choices_like_pandas,
    read_questions,
)
from trainmark.cases.llama2_7b_lora.mmlu.scoring import score_mmlu
from trainmark.cases.llama2_7b_lora.model_files import TextTokenizer

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = 1
LIMIT = 450  # characters, each a token
SUBJECTS = ("high_school_us_history", "virology")
# Each character is one of the tiny model's 256 tokens, so no text becomes an unknown token.
CHARACTERS = TextTokenizer(
    encode=lambda texts: [list(map(ord, text)) for text in texts],
    file="by hand",  # type: ignore[arg-type]
    begin=(BEGIN,),
    end_id=2,
)


def write_csv(file: Path, rows: list[list[str]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


# Words that pandas reads as nan, beside text and a number.
MIXED_CELLS = ("NA", "None", "none", "N/A", "", "7", "x", "null", " NA ")


def make_rows(split: str, seed: int) -> list[list[str]]:
    """Return rows with texts that break csv readers and splitting at blank lines.

    The columns of the four choices show how pandas reads them: whole numbers; whole numbers and
    fractions; words that pandas takes for missing cells; whole numbers and a missing cell.
    The long texts exceed the limit of a prompt, 450 tokens, one for each character.
    """
    # The length is 3 or 4: any number that differs between "dev" and "test".
    rng = np.random.default_rng([seed, len(split)])
    texts = [
        "What is it?",
        "  Two blanks, and a line end\n",
        "Part one\n\npart two, after a blank line",
        "\nA line end first",
        "a\n\n\nthree line ends\n\n\n\nfour",
        "long " * 150,
        "long and in parts\n\n" + "word " * 150,
        "in parts and long" + "\n\nword " * 60,
        "ends in a blank line\n\n",
    ]
    if split == "dev":
        # Only five, and short ones, as all of them precede each question of the test. Their order
        # is any that differs from that of the test.
        texts = [texts[place] for place in (0, 2, 3, 1, 8)]
    rows = []
    for number, text in enumerate(texts):
        whole_number, fraction = str(rng.integers(1000)), str(rng.integers(1000) / 8)
        mixed = MIXED_CELLS[number]
        # The empty cell turns the column into floats. pandas drops the 0 before a number.
        whole_or_empty = "" if number == 3 else f"0{whole_number}"
        cells = [whole_number, fraction if number % 2 else whole_number, mixed, whole_or_empty]
        rows.append([text, *cells, LETTERS[rng.integers(4)]])
    return rows


def read_columns_as_published(rows: list[list[str]]) -> list[list[Any]]:
    """Return rows as pandas reads them: numbers if all cells of a column are, else text or nan."""

    def convert_column(cells: tuple[str, ...]) -> list[Any]:
        """Convert to integers, else floats, else leave text; missing cells exclude integers."""
        missing = [cell in ("NA", "None", "N/A", "", "null") for cell in cells]
        for kind in (int, float):
            try:
                return [
                    # An integer column has no missing cell: ``int("")`` raises.
                    nan if gone and kind is float else kind(cell)
                    for cell, gone in zip(cells, missing, strict=True)
                ]
            except ValueError:
                pass
        return [nan if gone else cell for cell, gone in zip(cells, missing, strict=True)]

    question, *choices, answer = zip(*rows, strict=True)
    return [list(row) for row in zip(question, *map(convert_column, choices), answer, strict=True)]


def build_prompts_as_published(name: str, dev: list[list[str]], test: list[list[str]]) -> list[str]:
    """Return the prompts of ``test`` with the first five rows of ``dev`` as examples.

    A row has the question, the four choices and the letter of the right one. A prompt has at most
    ``LIMIT`` (450) tokens: the token BEGIN and one for each character. A longer one loses parts
    between blank lines, from its beginning on, as in the published program.

    Args:
        name: of the subject, with underscores between its words.
    """

    def format_example(row: list[Any], last: str) -> str:
        lines = [f"{letter}. {cell}" for letter, cell in zip("ABCD", row[1:5], strict=True)]
        return "\n".join([row[0], *lines, "Answer:"]) + last

    # The published program puts two blanks before the subject.
    head = "The following are multiple choice questions (with answers) about "
    head += "".join(f" {word}" for word in name.split("_")) + ".\n\n"
    shots = "".join(
        format_example(row, f" {row[5]}\n\n") for row in read_columns_as_published(dev)[:5]
    )
    prompts = []
    for row in read_columns_as_published(test):
        prompt = head + shots + format_example(row, "")
        while len(prompt) + 1 > LIMIT:  # 1: the token BEGIN
            parts = prompt.split("\n\n")
            parts.pop(1)  # the first part after the headline, whatever it is
            prompt = "\n\n".join(parts)
        prompts.append(prompt)
    return prompts


@pytest.fixture(scope="module")
def subjects_and_prompts(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, dict[tuple[str, int], str]]:
    """Return the subjects as our reader gives them, and the published prompt of each item."""
    place = tmp_path_factory.mktemp("mmlu")
    subjects, prompts = [], {}
    for seed, name in enumerate(SUBJECTS):
        splits = {split: make_rows(split, seed) for split in ("dev", "test")}
        for split, rows in splits.items():
            write_csv(place / f"{name}_{split}.csv", rows)
        questions = [read_questions(place / f"{name}_{split}.csv") for split in splits]
        subjects.append(Subject(name, *questions))
        for row, text in enumerate(build_prompts_as_published(name, **splits)):
            prompts[name, row] = text
    return print_choices_like_pandas(tuple(subjects)), prompts


def test_prompts_equal_the_published_ones_to_the_token(subjects_and_prompts: Any) -> None:
    mmlu, prompts = subjects_and_prompts
    # The tokenizer ``CHARACTERS`` makes a token of each character, its code point. The plan puts
    # prompts with the same beginning, their prefix, into a group.
    plan = plan_scoring(CHARACTERS, mmlu, legacy=True, max_length=LIMIT)
    # [1:]: without the token BEGIN, which is no character.
    our_prompts = {
        (SUBJECTS[group.subject], row): "".join(map(chr, [*group.prefix, *suffix][1:]))
        for group in plan.groups
        for row, suffix in zip(group.rows, group.suffixes, strict=True)
    }
    assert our_prompts == prompts  # by subject and row
    assert plan.answer_ids == tuple(map(ord, "ABCD"))
    # The questions of `make_rows` are made to give each of these prompts.
    texts = list(prompts.values())
    # A missing cell is printed as nan.
    assert all("nan" in text for text in texts if "B." in text)
    assert any(text.endswith("virology.") for text in texts)  # all cut away but the first line
    # "in parts and long" is cut at its blank lines: only the last parts are left.
    assert any("word \nA." in text and "in parts" not in text for text in texts)
    # Whole numbers are read as floats, because a cell of their column is missing.
    assert any(".0\n" in text for text in texts)


def test_answers_equal_those_of_each_published_prompt_alone(
    subjects_and_prompts: Any, tmp_path: Path
) -> None:
    # ``prompts``: as the published program builds them, by subject and row: two subjects of nine
    # questions, so 18. "Legacy" is the published scoring, which picks the likeliest token of all.
    mmlu, prompts = subjects_and_prompts
    write_model(tmp_path / "model")
    model = open_model(tmp_path / "model")
    # The tokenizer ``CHARACTERS`` puts the token BEGIN before a token for each character. A prompt
    # has at most ``LIMIT`` of them; longer ones are cut in ``prompts`` too.
    plan = plan_scoring(CHARACTERS, mmlu, legacy=True, max_length=LIMIT)
    # ``batch_tokens``: so few that each prompt is a batch of its own.
    result = score_mmlu(model, mmlu, plan, batch_tokens=1, legacy=True)
    right = 0
    for item in result.items:
        ids = torch.tensor([[BEGIN, *map(ord, prompts[item.subject, item.row])]])
        with torch.no_grad():
            logits = model(ids).logits[0, -1].float()
        expected = logits.log_softmax(-1)[[ord(letter) for letter in "ABCD"]]
        assert item.log_probabilities == pytest.approx(expected.tolist(), abs=2e-5)
        token = int(logits.argmax())
        # The likeliest token of the whole vocabulary may be no letter.
        assert item.predicted == ("ABCD".index(chr(token)) if chr(token) in "ABCD" else -1)
        right += chr(token) == LETTERS[item.answer]
    assert len(result.items) == len(prompts) == 18
    assert result.micro == right / 18
