"""The least loss of any model on the validation rows that the case generates.

All that a generator draws is uniform and known, so what is left to predict can be counted.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from trainmark.cases.llama2_7b_lora.data import generating, pack_split
from trainmark.cases.llama2_7b_lora.data.dialogues import Dialogues
from trainmark.cases.llama2_7b_lora.data.generating import (
    DAYS,
    DIALOGUES,
    KNOWLEDGE,
    MOST_QUESTIONS,
    NAMES,
    PLACES,
    REPLIES,
    THINGS,
)

if TYPE_CHECKING:
    from trainmark.cases.llama2_7b_lora.case import LlamaRecipe
    from trainmark.cases.llama2_7b_lora.data.tokens import TextTokenizer

KINDS = 2  # chats and quizzes


def drawn_nats(dialogue: str) -> float:
    """Return the nats that were drawn for a generated dialogue."""
    if ": I bring " in dialogue:
        choices = len(NAMES) * (len(NAMES) - 1)
        for words in (THINGS, PLACES, DAYS, REPLIES):
            choices *= len(words)
        return log(KINDS * choices)
    each = len(KNOWLEDGE) * sum(map(len, KNOWLEDGE[0][2]))
    return log(KINDS * MOST_QUESTIONS) + dialogue.count("Answer:") * log(each)


def least_loss(tokenizer: TextTokenizer, recipe: LlamaRecipe) -> float:
    """Return the nats a token that no model is expected to get below on the validation rows.

    That is all that was drawn, over all tokens to be predicted. A drawn word that is first in
    its row is not to be predicted: what it can tell at most is taken off.
    """
    drawn = generating.dialogues("val", rows=DIALOGUES["val"], seed=recipe.seed)
    packed = pack_split(Dialogues(*map(list, zip(*drawn, strict=True))), tokenizer, recipe)
    told, words = information(), generating.vocabulary()
    given = sum(told.get(words[token], 0.0) for token in packed.ids[:, 0])
    total = sum(drawn_nats(dialogue) for dialogue, _ in drawn)
    return (total - given) / float(packed.targets.sum())


def information() -> dict[str, float]:
    """Return the nats that one word can tell at most."""
    told = dict.fromkeys(NAMES, log(KINDS * len(NAMES)))  # the first also that it is a chat
    told["---"] = log(MOST_QUESTIONS)  # that no more questions follow
    for drawn in (THINGS, PLACES, DAYS, tuple(reply.split()[0] for reply in REPLIES)):
        told |= dict.fromkeys(drawn, log(len(drawn)))
    for asked, _, words in KNOWLEDGE:
        told[asked.split()[0]] = log(KINDS * len(KNOWLEDGE))  # that it is a quiz, and which
        known = [word for right in words for word in right]
        told |= dict.fromkeys(known, log(len(known)))
    return told
