"""Generated news: passages that give people roles, and a gap that only one of them fills.

Owns the words and the rule. Light at import: ``case.py`` names ``generate``.

A passage gives each of its people a role; the question names one role. Which names occur,
how often and where says nothing about the answer, so a model must read which person has
the role. Written in the release's own form, with character offsets and highlights.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import Recipe

PASSAGES = {"train": 3_200, "val": 250}
QUESTIONS = 2  # a passage
PEOPLE = 4  # a passage, each with a role of its own
BEST_ACCURACY = 1.0  # the passage decides every question

FIRST_NAMES = (
    "Anna", "Boris", "Clara", "David", "Elena", "Frank", "Greta", "Henry",
    "Irene", "Jonas", "Karla", "Louis",
)  # fmt: skip
LAST_NAMES = (
    "Adler", "Berg", "Cole", "Dunn", "Engel", "Frost", "Gray", "Holt",
    "Irving", "Jansen", "Keller", "Lang",
)  # fmt: skip
ROLES = ("mayor", "baker", "pilot", "judge", "coach", "miner", "nurse", "poet")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SIGNS = (".", "-", "@")
PIECES = {"Jansen": ("jan", "##sen"), "Keller": ("kel", "##ler")}  # as WordPiece splits


def vocabulary() -> list[str]:
    """Return the tokens by id: special ones first, then every word in a fixed order."""
    words = ["is", "the", *ROLES]
    for name in (*FIRST_NAMES, *LAST_NAMES):
        words += PIECES.get(name, (name.lower(),))
    return [*SPECIAL_TOKENS, *SIGNS, *words]


def passage(rng: Any, number: int) -> dict[str, Any]:
    """Return one line of a split."""
    firsts, lasts, roles = (
        rng.choice(words, PEOPLE, replace=False) for words in (FIRST_NAMES, LAST_NAMES, ROLES)
    )
    names = [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]
    text, places = "", []
    for at, (name, role) in enumerate(zip(names, roles, strict=True)):
        text += "\n@highlight\n" if at == PEOPLE - 1 else " " if at else ""
        places.append({"start": len(text), "end": len(text) + len(name) - 1})
        text += f"{name} is the {role}."
    asked = rng.choice(PEOPLE, QUESTIONS, replace=False).tolist()
    questions = [
        {
            "query": f"The {roles[who]} is @placeholder.",
            "answers": [{**places[who], "text": names[who]}],
            "idx": number * QUESTIONS + place,
        }
        for place, who in enumerate(asked)
    ]
    return {
        "source": "generated",
        "passage": {"text": text, "entities": places},
        "qas": questions,
        "idx": number,
    }


def generate(folder: Path, recipe: Recipe) -> None:
    """Write ``train.jsonl``, ``val.jsonl`` and ``model/vocab.txt``."""
    import numpy as np

    for place, (split, count) in enumerate(PASSAGES.items()):
        rng = np.random.default_rng([recipe.seed, place])
        lines = (json.dumps(passage(rng, number)) + "\n" for number in range(count))
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "model").mkdir()
    tokens = "\n".join(vocabulary()) + "\n"
    (folder / "model" / "vocab.txt").write_text(tokens, encoding="utf-8")
