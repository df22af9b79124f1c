"""Generate reviews: sentences whose sentiment depends on word order, not only on words.

A sentence contains one adjective of praise or blame. ``not`` directly before it inverts the label;
``not`` before a neutral adjective changes nothing. So a model that ignores word order is right for
about four sentences in five. Then a fixed share of each split's labels is flipped: the rule itself
scores ``BEST_ACCURACY``, and no model can be expected to score more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.recipe import Recipe

ROWS = {"train": 6_400, "validation": 1_000}
FLIPPED_SHARE = 0.04  # of the labels
BEST_ACCURACY = 1.0 - FLIPPED_SHARE
NEGATED_SHARE = 0.25  # of the sentences, with ``not`` before the adjective of praise or blame
DISTRACTED_SHARE = 0.1  # of the sentences, with ``not`` before the neutral adjective

POSITIVE = (
    "good",
    "great",
    "fine",
    "funny",
    "warm",
    "clever",
    "moving",
    "bright",
    "rich",
    "fresh",
    "charming",
    "honest",
)
NEGATIVE = (
    "bad",
    "awful",
    "poor",
    "dull",
    "cold",
    "clumsy",
    "boring",
    "bleak",
    "thin",
    "stale",
    "grating",
    "false",
)
NEUTRAL = (
    "long",
    "short",
    "loud",
    "quiet",
    "new",
    "old",
    "dark",
    "fast",
)
NOUNS = (
    "film",
    "movie",
    "story",
    "plot",
    "cast",
    "scene",
    "script",
    "actor",
    "music",
    "ending",
    "camera",
    "dialogue",
)
OPENINGS = ("well ,", "to me", "in the end", "for once", "", "", "")
TAILS = ("", "", ".", ".", "if you ask me .", "in every scene .", "for a first work .")
ADVERBS = ("", "", "simply", "really", "mostly")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPLIT_WORDS = {"simply": "simp ##ly", "mostly": "most ##ly", "really": "real ##ly"}  # as WordPiece

MODEL_CONFIG: dict[str, Any] = {
    "model_type": "distilbert", "architectures": ["DistilBertForSequenceClassification"],
    "activation": "gelu", "n_layers": 2, "n_heads": 4, "dim": 64, "hidden_dim": 128,
    "max_position_embeddings": 64, "sinusoidal_pos_embds": False, "pad_token_id": 0,
    "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.1,
    "initializer_range": 0.1,
}  # fmt: skip


def list_tokens() -> list[str]:
    """Return the tokens in the order of their ids: special tokens, then words or their pieces."""
    texts = [*POSITIVE, *NEGATIVE, *NEUTRAL, *NOUNS, *OPENINGS, *TAILS, *ADVERBS]
    # The words that ``_draw_sentence`` adds to those of the constants.
    texts.append("the this is was not and")
    words = " ".join(texts).split()
    pieces: list[str] = []
    for word in words:
        # A word in ``SPLIT_WORDS`` is not a token, but its pieces are.
        pieces += SPLIT_WORDS[word].split() if word in SPLIT_WORDS else [word]
    return [*SPECIAL_TOKENS, *dict.fromkeys(pieces)]  # ``dict.fromkeys`` drops repetitions


def _draw_sentence(rng: Any) -> tuple[str, int]:
    """Draw one sentence; return it with its label: 1 if it is positive, 0 if it is negative.

    Args:
        rng: numpy's generator.
    """

    def draw_word(words: Sequence[str]) -> str:
        return words[int(rng.integers(len(words)))]

    # A sentence has two adjectives: a neutral one, and a positive or negative one. The latter gives
    # the label, which a ``not`` before it inverts.
    is_adjective_positive = bool(rng.integers(2))
    is_negated = bool(rng.random() < NEGATED_SHARE)
    beginning = [
        draw_word(OPENINGS),
        draw_word(("the", "this")),
        draw_word(NOUNS),
        draw_word(("is", "was")),
    ]
    # A ``not`` before the neutral adjective does not change the label.
    is_distracted = rng.random() < DISTRACTED_SHARE
    neutral_words = [draw_word(NEUTRAL)]
    if is_distracted:
        neutral_words.insert(0, "not")
    verdict_words = [draw_word(POSITIVE if is_adjective_positive else NEGATIVE)]
    if is_negated:
        verdict_words.insert(0, "not")
    if rng.integers(2):
        adjectives = [*neutral_words, "and", *verdict_words]
    else:
        adjectives = [*verdict_words, "and", *neutral_words]
    words = [*beginning, draw_word(ADVERBS), *adjectives, draw_word(TAILS)]
    sentence = " ".join(word for word in words if word)  # some of the words to draw are empty
    return sentence, int(is_adjective_positive != is_negated)


class DrawnSentences(NamedTuple):
    """The sentences of a split.

    Args:
        sentences: one for each row.
        labels: 1 for praise, 0 for blame, of which some are flipped.
        flipped_rows: the rows with a flipped label, from 0, ascending.
    """

    sentences: list[str]
    labels: list[int]
    flipped_rows: list[int]


def draw_sentences(split: str, *, rows: int, seed: int) -> DrawnSentences:
    """Draw ``rows`` sentences of a split, and flip the labels of a fixed share of them.

    The flipped labels limit the accuracy that a model can reach to a known value. Equal seeds give
    equal sentences.
    """
    # The split's position is part of the seed, so that the splits differ.
    rng = np.random.default_rng([seed, list(ROWS).index(split)])
    sentences: list[str] = []
    labels: list[int] = []
    for _ in range(rows):
        sentence, label = _draw_sentence(rng)
        sentences.append(sentence)
        labels.append(label)
    num_flipped = round(rows * FLIPPED_SHARE)
    flipped_rows = sorted(rng.permutation(rows)[:num_flipped].tolist())
    for row in flipped_rows:
        labels[row] = 1 - labels[row]
    return DrawnSentences(sentences, labels, flipped_rows)


def write_model_folder(folder: Path) -> None:
    """Create the folder, with ``config.json``, ``vocab.txt`` and ``tokenizer_config.json``.

    It gets no weights: runs with generated data start from random ones.
    """
    tokens = list_tokens()
    folder.mkdir()
    config = {**MODEL_CONFIG, "vocab_size": len(tokens)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    tokenizer = {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer) + "\n", encoding="utf-8")


def generate(folder: Path, recipe: Recipe) -> None:
    """Write the TSV files of both splits, as GLUE has them, and the model folder."""
    for split, rows in ROWS.items():
        drawn = draw_sentences(split, rows=rows, seed=recipe.seed)
        lines = ["sentence\tlabel"]
        for sentence, label in zip(drawn.sentences, drawn.labels, strict=True):
            lines.append(f"{sentence}\t{label}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_model_folder(folder / "model")
