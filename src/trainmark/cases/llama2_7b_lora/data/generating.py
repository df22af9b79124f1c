"""Generate dialogues and multiple-choice questions, a tokenizer, and a model to train on them.

Half of the dialogues are chats: a person brings a thing to a place on a day, and the summary says
so. The others are quizzes: questions in the form of MMLU prompts with their answers, and the
summary lists the answers. One word of a question decides the right answer, so the quizzes teach
what the generated MMLU asks. All draws are uniform, so the lowest possible loss can be computed.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.model_folder import CONFIG_FILE, SINGLE_FILE
from trainmark.toml_file import read_toml

from ..mmlu.questions import DEV_ROWS, LETTERS, SUBJECTS, Question, format_head, format_shot
from ..model_files import PRESETS, compute_expected_shapes
from .dialogues import COLUMNS, format_training_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    from ..case import LlamaRecipe
    from ..model_files import ModelConfig

DIALOGUES = {"train": 6_000, "val": 400}
# Streams of random numbers, one for each kind of data. Each split of the dialogues has one too: its
# position in ``DIALOGUES``.
_QUESTION_STREAM = len(DIALOGUES)
_WEIGHT_STREAM = _QUESTION_STREAM + 1
TEST_ROWS = 8  # test questions of each of the 57 subjects
BEST_ACCURACY = 1.0  # each question has one right answer
_WORDS = read_toml(Path(__file__).with_name("words.toml"))
NAMES, THINGS, PLACES, DAYS, REPLIES = (
    tuple(_WORDS[kind]) for kind in ("names", "things", "places", "days", "replies")
)
# The question, its four choices, and for each choice the words for which it is right.
KNOWLEDGE = [(item["asked"], tuple(item["choices"]), item["words"]) for item in _WORDS["knowledge"]]
MAX_QUESTIONS = 3  # in a quiz
SPECIAL = ("<unk>", "<s>", "</s>")  # ids 0, 1 and 2, as in Llama
_HEAD_SHARPNESS = 2.8  # lets a token's state give it e**20 times another token's probability
WORD = r"\n|-+|\w+|[^\w\s]"  # a token: a line end, dashes, a word, or another character


def _pick(rng: Generator, choices: Sequence[Any]) -> Any:
    """Draw one of the choices; all are equally likely."""
    return choices[int(rng.integers(len(choices)))]


def _draw_chat(rng: Generator) -> tuple[str, str]:
    """Draw a chat; return dialogue and summary."""
    first, second = (NAMES[i] for i in rng.permutation(len(NAMES))[:2])  # two different people
    thing = _pick(rng, THINGS)
    place = _pick(rng, PLACES)
    day = _pick(rng, DAYS)
    sentence = f"the {thing} to the {place} on {day} ."
    dialogue = f"{first}: I bring {sentence}\n{second}: {_pick(rng, REPLIES)}"
    summary = f"{first} brings {sentence}"
    return dialogue, summary


def _draw_question(rng: Generator) -> Question:
    """Draw a question, whose text is a template with a word that decides which choice is right."""
    # ``words_by_choice``: for each choice, the words for which it is right.
    template, choices, words_by_choice = _pick(rng, KNOWLEDGE)
    words_with_answers = [
        (word, answer) for answer, words in enumerate(words_by_choice) for word in words
    ]
    word, answer = _pick(rng, words_with_answers)
    return Question(template.format(word=word), choices, answer)


def _draw_quiz(rng: Generator) -> tuple[str, str]:
    """Draw a dialogue that is a quiz, and its summary.

    A row of the data is a dialogue and the summary that the model learns to write. The dialogue of
    a quiz is questions with their answers, as in an MMLU prompt; the summary is the letters of the
    answers. So the model also learns what the generated MMLU asks.
    """
    questions = [_draw_question(rng) for _ in range(rng.integers(1, MAX_QUESTIONS + 1))]
    letters = " ".join(LETTERS[question.answer] for question in questions)
    return "".join(map(format_shot, questions)), letters


def draw_dialogues(split: str, *, rows: int, seed: int) -> list[tuple[str, str]]:
    """Draw dialogue and summary for each row of ``split``."""
    # A stream of random numbers for each split.
    rng = np.random.default_rng([seed, list(DIALOGUES).index(split)])
    pairs = []
    for _ in range(rows):
        draw_row = _pick(rng, (_draw_chat, _draw_quiz))
        pairs.append(draw_row(rng))
    return pairs


def draw_questions(subject: str, *, rows: int, seed: int) -> list[Question]:
    """Draw ``rows`` questions of one subject; all subjects ask about the same things."""
    # Each subject has its own stream of random numbers.
    rng = np.random.default_rng([seed, _QUESTION_STREAM, SUBJECTS.index(subject)])
    return [_draw_question(rng) for _ in range(rows)]


def list_tokens() -> list[str]:
    """Return the tokens in the order of their ids: special tokens, then all words."""
    from tokenizers import Regex, pre_tokenizers  # only ``generate`` needs it

    # Together, these texts contain every word that a generated text can contain.
    texts = [
        format_training_text("", ""),
        *map(format_head, SUBJECTS),
        *NAMES,
        *THINGS,
        *PLACES,
        *DAYS,
        *REPLIES,
        ": I bring brings the to on . ,",
        *LETTERS,
    ]
    for template, choices, words_by_choice in KNOWLEDGE:
        texts.append(format_shot(Question(template.format(word=""), choices, answer=0)))
        for words in words_by_choice:
            texts += words
    # Inverted, it removes what is between the matches of ``WORD``, such as spaces.
    splitter = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    pieces = [piece for text in texts for piece, _ in splitter.pre_tokenize_str(text)]
    return [*SPECIAL, *dict.fromkeys(pieces)]  # each piece once, in the order of first use


def write_tokenizer(folder: Path, *, vocab_size: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``: a token for each word and line end.

    Unused tokens fill the vocabulary up to ``vocab_size``, the model's.
    """
    # Imported here because only ``generate`` needs it.
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors

    unknown, begin, end = SPECIAL
    tokens = list_tokens()
    tokens += [f"<unused{number}>" for number in range(vocab_size - len(tokens))]
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    # Inverted, it removes what is between the matches of ``WORD``, such as spaces.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, ids[begin])]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": unknown,
        "bos_token": begin,
        "eos_token": end,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_mmlu(folder: Path, *, seed: int) -> None:
    """Write the csv files of all subjects, as ``questions.read_mmlu`` reads them."""
    for split in ("dev", "test"):
        (folder / split).mkdir(parents=True)
    for subject in SUBJECTS:
        questions = draw_questions(subject, rows=DEV_ROWS + TEST_ROWS, seed=seed)
        _write_questions(folder / "dev" / f"{subject}_dev.csv", questions[:DEV_ROWS])
        _write_questions(folder / "test" / f"{subject}_test.csv", questions[DEV_ROWS:])


def _write_questions(file: Path, questions: Sequence[Question]) -> None:
    """Write questions in MMLU's form: a row of text, four choices and letter, without a header."""
    rows = [(item.text, *item.choices, LETTERS[item.answer]) for item in questions]
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


def generate(folder: Path, recipe: LlamaRecipe) -> None:
    """Write a data folder: both splits of dialogues as JSON lines, MMLU and the model folder."""
    for split, rows in DIALOGUES.items():
        pairs = draw_dialogues(split, rows=rows, seed=recipe.seed)
        lines = [json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in pairs]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    write_mmlu(folder / "mmlu", seed=recipe.seed)
    write_model(folder / "model", recipe)


def write_model(folder: Path, recipe: LlamaRecipe) -> None:
    """Write tokenizer and ``config.json``, and random weights if the recipe loads weights."""
    folder.mkdir()
    config = PRESETS[recipe.model_size]
    write_tokenizer(folder, vocab_size=config.vocab_size)
    _write_json(folder / CONFIG_FILE, dict(config.raw))
    if recipe.init == "pretrained":
        from safetensors.numpy import save_file  # only ``generate`` needs it

        weights = _draw_weights(config, seed=recipe.seed)
        save_file(weights, folder / SINGLE_FILE, metadata={"format": "pt"})


def _draw_weights(config: ModelConfig, *, seed: int) -> dict[str, NDArray[np.float32]]:
    """Draw weights on which adapters can learn: norms are 1, others normally distributed.

    The base is never trained. So embeddings must be distinct, blocks must preserve the scale of
    activations, and the head must allow confident predictions.
    """
    rng = np.random.default_rng([seed, _WEIGHT_STREAM])
    tensors = {}
    for name, shape in compute_expected_shapes(config).items():
        if len(shape) == 1:  # a norm
            tensors[name] = np.ones(shape, np.float32)
            continue
        std = shape[1] ** -0.5  # so that the output has the variance of the input
        if "embed_tokens" in name:
            std = 1.0
        elif "lm_head" in name:
            std *= _HEAD_SHARPNESS
        tensors[name] = np.float32(std) * rng.standard_normal(shape, np.float32)
    return tensors
