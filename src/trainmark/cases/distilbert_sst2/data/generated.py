"""Generate reviews: sentences whose sentiment depends on word order, not only on words.

A sentence contains one adjective of praise or blame. ``not`` directly before it inverts the label;
``not`` before a neutral adjective changes nothing. So a model that ignores word order is right for
about four sentences in five. Then a fixed share of each split's labels is flipped: the rule itself
scores ``BEST_ACCURACY``, and no model can be expected to score more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.recipe import Recipe

ROWS = {"train": 6_400, "validation": 1_000}
FLIPPED_SHARE = 0.04
BEST_ACCURACY = 1.0 - FLIPPED_SHARE
NEGATED_SHARE = 0.25
DISTRACTED_SHARE = 0.1

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
    """Return the tokens in the order of their ids: special tokens, then all words."""
    texts = [*POSITIVE, *NEGATIVE, *NEUTRAL, *NOUNS, *OPENINGS, *TAILS, *ADVERBS]
    texts.append("the a this is was not and")
    words = " ".join(texts).split()
    pieces = [piece for word in words for piece in SPLIT_WORDS.get(word, word).split()]
    return [*SPECIAL_TOKENS, *dict.fromkeys(pieces)]


def _draw_sentence(rng: Any) -> tuple[str, int]:
    """Draw one sentence; return it with its true label, 1 for praise."""

    def pick(words: Any) -> str:
        return str(words[rng.integers(len(words))])

    praise, negated = bool(rng.integers(2)), rng.random() < NEGATED_SHARE
    words = [pick(OPENINGS), pick(("the", "this")), pick(NOUNS), pick(("is", "was"))]
    aside = ["not", pick(NEUTRAL)] if rng.random() < DISTRACTED_SHARE else [pick(NEUTRAL)]
    verdict = ["not"] if negated else []
    verdict.append(pick(POSITIVE if praise else NEGATIVE))
    first, second = (aside, verdict) if rng.integers(2) else (verdict, aside)
    words += [pick(ADVERBS), *first, "and", *second, pick(TAILS)]
    return " ".join(word for word in words if word), int(praise != negated)


def draw_sentences(split: str, *, rows: int, seed: int) -> tuple[list[str], list[int], list[int]]:
    """Draw a split; return sentences, noisy labels and the rows (from 0) with a flipped label."""
    import numpy as np

    rng = np.random.default_rng([seed, list(ROWS).index(split)])
    pairs = [_draw_sentence(rng) for _ in range(rows)]
    flipped = sorted(rng.permutation(rows)[: round(rows * FLIPPED_SHARE)].tolist())
    labels = [label for _, label in pairs]
    for row in flipped:
        labels[row] = 1 - labels[row]
    return [text for text, _ in pairs], labels, flipped


def write_model_folder(folder: Path) -> None:
    """Write ``config.json``, ``vocab.txt`` and ``tokenizer_config.json``; no weights."""
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
        texts, labels, _ = draw_sentences(split, rows=rows, seed=recipe.seed)
        lines = ["sentence\tlabel", *map("{}\t{}".format, texts, labels)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_model_folder(folder / "model")
