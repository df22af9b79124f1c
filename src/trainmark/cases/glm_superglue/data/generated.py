"""Generate news: passages that give people roles, and a question with a gap for one of them.

A passage gives each of its people a role, and its highlight names one of them again: this person
fills the gap. The answer does not depend on the names or their order, so a model must read the
passage. The files have the form of ReCoRD's release, with character offsets and highlights.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from ..case import GlmRecipe

PASSAGES = {"train": 6_400, "val": 500}  # each with one question
MIN_PEOPLE, MAX_PEOPLE = 3, 5  # in a passage, each with a different role
BEST_ACCURACY = 1.0  # the passage answers every question

FIRST_NAMES = (
    "Anna",
    "Boris",
    "Clara",
    "David",
    "Elena",
    "Frank",
    "Greta",
    "Henry",
    "Irene",
    "Jonas",
    "Karla",
    "Louis",
)
LAST_NAMES = (
    "Adler",
    "Berg",
    "Cole",
    "Dunn",
    "Engel",
    "Frost",
    "Gray",
    "Holt",
    "Irving",
    "Jansen",
    "Keller",
    "Lang",
)
ROLES = ("mayor", "baker", "pilot", "judge", "coach", "miner", "nurse", "poet")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SIGNS = (".", "-", "@")
PIECES = {"Jansen": ("jan", "##sen"), "Keller": ("kel", "##ler")}  # names that WordPiece splits


def list_tokens() -> list[str]:
    """Return the tokens in the order of their ids: special tokens, signs, then words.

    Words are in lower case, because the tokenizer converts texts to lower case.
    """
    words = ["is", "the", "winner", *ROLES]
    for name in (*FIRST_NAMES, *LAST_NAMES):
        # A name in ``PIECES`` is not a token itself: the tokenizer splits it into these pieces.
        words += PIECES[name] if name in PIECES else [name.lower()]
    return [*SPECIAL_TOKENS, *SIGNS, *words]


def draw_passage(rng: Any, number: int) -> dict[str, Any]:
    """Draw one line of a split: a passage with its question, in ReCoRD's form.

    The text gives a role to each of several people. Its last sentence, the highlight, names one of
    them as the winner. The question has a gap, ``@placeholder``, which this name fills.

    Args:
        rng: numpy's generator.
        number: of the line, from 0; it becomes the ``idx`` of passage and question.
    """
    num_people = int(rng.integers(MIN_PEOPLE, MAX_PEOPLE + 1))
    first_names = rng.choice(FIRST_NAMES, num_people, replace=False)
    last_names = rng.choice(LAST_NAMES, num_people, replace=False)
    roles = rng.choice(ROLES, num_people, replace=False)
    names = [f"{first} {last}" for first, last in zip(first_names, last_names, strict=True)]
    winner = int(rng.integers(num_people))  # index of the person that the highlight names
    text = ""
    entities = []  # the places of the names in the text; ``end`` is the index of the last character
    for name, role in zip(names, roles, strict=True):
        entities.append({"start": len(text), "end": len(text) + len(name) - 1})
        text += f"{name} is the {role}. "
    answer = {**entities[winner], "text": names[winner]}
    text = text.rstrip() + "\n@highlight\n"  # the mark that ReCoRD has before a highlight
    entities.append({"start": len(text), "end": len(text) + len(names[winner]) - 1})
    text += f"{names[winner]} is the winner."
    return {
        "source": "generated",
        "passage": {"text": text, "entities": entities},
        "qas": [{"query": "The winner is @placeholder.", "answers": [answer], "idx": number}],
        "idx": number,
    }


def generate(folder: Path, recipe: GlmRecipe) -> None:
    """Write ``train.jsonl``, ``val.jsonl`` and ``model/vocab.txt``.

    Raises:
        UsageError: the recipe starts from a checkpoint, which generated data does not have.
    """
    if recipe.init == "pretrained":
        raise UsageError(
            "init=pretrained cannot be used with generated data",
            where="recipe field init",
            rule="init=pretrained needs a checkpoint, which generated data does not include",
            fix="use init=random, or add --data",
        )
    for split_number, (split, num_passages) in enumerate(PASSAGES.items()):
        # The split's number is part of the seed, so that the splits differ.
        rng = np.random.default_rng([recipe.seed, split_number])
        # ``split`` is the name of the split, which is also that of its file.
        lines = (json.dumps(draw_passage(rng, number)) + "\n" for number in range(num_passages))
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "model").mkdir()
    tokens = "\n".join(list_tokens()) + "\n"
    (folder / "model" / "vocab.txt").write_text(tokens, encoding="utf-8")
