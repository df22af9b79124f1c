"""Legacy MMLU: prompts and answers equal to a few-line reading of the published rules."""

from __future__ import annotations

import csv
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from mmlu_peer import open_model, write_model
from trainmark.cases.llama2_7b_lora.data.tokens import TextTokenizer
from trainmark.cases.llama2_7b_lora.mmlu import plan_scoring
from trainmark.cases.llama2_7b_lora.mmlu.prompts import as_read
from trainmark.cases.llama2_7b_lora.mmlu.questions import LETTERS, Subject, read_questions
from trainmark.cases.llama2_7b_lora.mmlu.scoring import score

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = 1
LIMIT = 450  # characters, each a token
SUBJECTS = ("high_school_us_history", "virology")
# No word is hidden by an unknown token: a character is a token, and the tiny model has 256.
CHARACTERS = TextTokenizer(
    lambda texts: [list(map(ord, text)) for text in texts], "by hand", 256, (BEGIN,), 2  # type: ignore[arg-type]
)  # fmt: skip


def write_csv(file: Path, rows: list[list[str]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


def generated(split: str, seed: int) -> list[list[str]]:
    """Return rows with what a csv reader and a cut at blank lines stumble over."""
    rng = np.random.default_rng([seed, len(split)])
    texts = [
        "What is it?", "  Two blanks, and a line end\n", "Part one\n\npart two, after a blank line",
        "\nA line end first", "a\n\n\nthree line ends\n\n\n\nfour", "long " * 150,
        "long and in parts\n\n" + "word " * 150, "in parts and long" + "\n\nword " * 60,
        "ends in a blank line\n\n",
    ]  # fmt: skip
    if split == "dev":
        texts = [texts[place] for place in (0, 2, 3, 1, 8)]
    rows = []
    for number, text in enumerate(texts):
        whole, fraction = str(rng.integers(1000)), str(rng.integers(1000) / 8)
        mixed = ("NA", "None", "none", "N/A", "", "7", "x", "null", " NA ")[number]
        gap = "" if number == 3 else f"0{whole}"  # with it the column is floats
        cells = [whole, fraction if number % 2 else whole, mixed, gap]
        rows.append([text, *cells, LETTERS[rng.integers(4)]])
    return rows


def published_columns(rows: list[list[str]]) -> list[list[Any]]:
    """Return rows as pandas reads them: numbers where a whole column is, else text or nan."""

    def column(cells: tuple[str, ...]) -> list[Any]:
        missing = [cell in ("NA", "None", "N/A", "", "null") for cell in cells]
        for kind in (int, float):
            try:
                return [nan if gone and kind is float else kind(cell)
                        for cell, gone in zip(cells, missing, strict=True)]  # fmt: skip
            except ValueError:
                pass
        return [nan if gone else cell for cell, gone in zip(cells, missing, strict=True)]

    question, *choices, answer = zip(*rows, strict=True)
    return [list(row) for row in zip(question, *map(column, choices), answer, strict=True)]


def published_prompts(name: str, dev: list[list[str]], test: list[list[str]]) -> list[str]:
    def example(row: list[Any], last: str) -> str:
        lines = [f"{letter}. {cell}" for letter, cell in zip("ABCD", row[1:5], strict=True)]
        return "\n".join([row[0], *lines, "Answer:"]) + last

    head = "The following are multiple choice questions (with answers) about "
    head += "".join(f" {word}" for word in name.split("_")) + ".\n\n"
    shots = "".join(example(row, f" {row[5]}\n\n") for row in published_columns(dev)[:5])
    found = []
    for row in published_columns(test):
        prompt = head + shots + example(row, "")
        while len(prompt) + 1 > LIMIT:
            parts = prompt.split("\n\n")
            parts.pop(1)
            prompt = "\n\n".join(parts)
        found.append(prompt)
    return found


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[tuple[str, int], str]]:
    """Return the subjects as our reader gives them, and the published prompt of each item."""
    place = tmp_path_factory.mktemp("mmlu")
    subjects, prompts = [], {}
    for seed, name in enumerate(SUBJECTS):
        splits = {split: generated(split, seed) for split in ("dev", "test")}
        for split, rows in splits.items():
            write_csv(place / f"{name}_{split}.csv", rows)
        questions = [read_questions(place / f"{name}_{split}.csv") for split in splits]
        subjects.append(Subject(name, *questions))
        for row, text in enumerate(published_prompts(name, **splits)):
            prompts[name, row] = text
    return tuple(subjects), prompts


def test_prompts_equal_the_published_ones_to_the_token(asked: Any) -> None:
    mmlu, prompts = asked
    plan = plan_scoring(CHARACTERS, mmlu, legacy=True, max_length=LIMIT)
    ours = {
        (SUBJECTS[group.subject], row): "".join(map(chr, [*group.prefix, *rest][1:]))
        for group in plan.groups
        for row, rest in zip(group.rows, group.rests, strict=True)
    }
    assert ours == prompts
    assert plan.letters == tuple(map(ord, "ABCD"))
    # What the set is for: each of these is among the prompts.
    texts = list(prompts.values())
    assert all("nan" in text for text in texts if "B." in text)
    assert any(text.endswith("virology.") for text in texts)  # the bare first line
    assert any("word \nA." in text and "in parts" not in text for text in texts)
    assert any(".0\n" in text for text in texts)


def test_answers_equal_those_of_each_published_prompt_alone(asked: Any, tmp_path: Path) -> None:
    mmlu, prompts = asked
    write_model(tmp_path / "model")
    model = open_model(tmp_path / "model")
    plan = plan_scoring(CHARACTERS, mmlu, legacy=True, max_length=LIMIT)
    result = score(model, mmlu, plan, batch_tokens=1, legacy=True)
    right = 0
    for item in result.items:
        ids = torch.tensor([[BEGIN, *map(ord, prompts[item.subject, item.row])]])
        with torch.no_grad():
            logits = model(ids).logits[0, -1].float()
        expected = logits.log_softmax(-1)[[ord(letter) for letter in "ABCD"]]
        assert item.log_probabilities == pytest.approx(expected.tolist(), abs=2e-5)
        token = int(logits.argmax())
        assert item.predicted == ("ABCD".index(chr(token)) if chr(token) in "ABCD" else -1)
        right += chr(token) == LETTERS[item.right]
    assert len(result.items) == len(prompts) == 18
    assert result.micro == right / 18


# Columns and what pandas 3.1.1 printed of them, on 2026-11-21.
@pytest.mark.parametrize(
    ("column", "printed"),
    [
        (["1", "2"], ["1", "2"]),
        (["007", "+5", "-0", " 2 ", "\t1", "1\n"], ["7", "5", "0", "2", "1", "1"]),
        (["1", "NA"], ["1.0", "nan"]),
        (["1", "", "-0"], ["1.0", "nan", "0.0"]),
        (["1.5", "-0"], ["1.5", "-0.0"]),
        (["1.0", "2"], ["1.0", "2.0"]),
        (["1e3", ".5", "5.", "00.10", "1.5 "], ["1000.0", "0.5", "5.0", "0.1", "1.5"]),
        (["1e16", "1e-5", "1e400"], ["1e+16", "1e-05", "inf"]),
        (["inf", "-Infinity", "+INF", "nan"], ["inf", "-inf", "inf", "nan"]),
        (["x", "NA", "None", "", " NA", " "], ["x", "nan", "nan", "nan", " NA", " "]),
        (["NA", "None"], ["nan", "nan"]),
        (["TRUE", "false", "True"], ["True", "False", "True"]),
        (["true", ""], ["True", "nan"]),
        (["True", "1"], ["True", "1"]),
        (["tRUE", "NA"], ["True", "nan"]),
        (["1_000", "2"], ["1_000", "2"]),
        (["1,000", "02"], ["1,000", "02"]),
        (["1e", "02"], ["1e", "02"]),
        (["0x10", "02"], ["0x10", "02"]),
        (["\u0661", "02"], ["\u0661", "02"]),
        (["1\xa0", "02"], ["1\xa0", "02"]),
        (["-", "02"], ["-", "02"]),
        # Beyond int64 (2**63) and uint64 (2**64); printed by pandas 3.1.1 on 2026-11-23.
        (["1", "9223372036854775808"], ["1", "9223372036854775808"]),
        (["-0", "9223372036854775808"], ["-0", "9223372036854775808"]),
        (["007", "18446744073709551616", "NA"], ["7", "18446744073709551616", "nan"]),
        (["9223372036854775808", "NA"], ["9223372036854775808", "NA"]),
        (["-1", "009223372036854775808"], ["-1", "009223372036854775808"]),
        (["18446744073709551616", "1e3", ""], ["18446744073709551616", "1e3", ""]),
        (["9223372036854775808", "1.5"], ["9.223372036854776e+18", "1.5"]),
    ],
)  # fmt: skip
def test_cells_are_read_as_pandas_reads_a_column(column: list[str], printed: list[str]) -> None:
    assert as_read(column) == printed
