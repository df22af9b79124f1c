"""MMLU scores with the shared beginning of prompts computed once, against one prompt at a time.

Both use the same random Llama and the same generated questions with five shots; one at a
time is one whole prompt through the model, the logits of its last token alone.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave

if TYPE_CHECKING:
    from trainmark.cases.llama2_7b_lora.mmlu import ScoringPlan
    from trainmark.cases.llama2_7b_lora.mmlu.questions import Mmlu

SIZES = {
    "hidden_size": choose_size(512, 64),
    "intermediate_size": choose_size(1376, 128),
    "num_hidden_layers": choose_size(4, 1),
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
}
SUBJECTS, ITEMS = 2, choose_size(40, 2)
BATCH_TOKENS = 2 * 512  # two rows of the published training
ROUNDS = 9
BAR = 3.0


def draw_questions(folder: Path, *, vocab_size: int, max_length: int) -> tuple[Mmlu, ScoringPlan]:
    """Return generated questions and their prompts; ``place`` gets the tokenizer's files."""
    from trainmark.cases.llama2_7b_lora.data import generating
    from trainmark.cases.llama2_7b_lora.mmlu import plan_scoring
    from trainmark.cases.llama2_7b_lora.mmlu.questions import DEV_ROWS, Subject
    from trainmark.cases.llama2_7b_lora.mmlu.questions import SUBJECTS as NAMES
    from trainmark.cases.llama2_7b_lora.model_files import open_tokenizer

    generating.write_tokenizer(folder, vocab_size=vocab_size)
    mmlu = []
    for name in NAMES[:SUBJECTS]:
        drawn = generating.draw_questions(name, rows=DEV_ROWS + ITEMS, seed=1)
        mmlu.append(Subject(name, drawn[:DEV_ROWS], drawn[DEV_ROWS:]))
    tokenizer = open_tokenizer(folder, vocab_size=vocab_size)
    return tuple(mmlu), plan_scoring(tokenizer, tuple(mmlu), max_length=max_length)


def describe_plan(plan: ScoringPlan) -> str:
    """Return how many questions there are and what their prompts share."""
    prefix = len(plan.groups[0].prefix)
    suffix_length = sum(map(len, plan.groups[0].suffixes)) / len(plan.groups[0].suffixes)
    return (
        f"{plan.num_questions} questions of {SUBJECTS} subjects, 5 shots: {prefix} tokens are "
        f"shared, {suffix_length:.0f} are a question's own."
    )


class BothWays:
    """The two ways of scoring, timed, with the answers that each gave last.

    Args:
        batch_tokens: see ``score``.
    """

    def __init__(self, model: Any, mmlu: Mmlu, plan: ScoringPlan, *, batch_tokens: int) -> None:
        self.model, self.mmlu, self.plan = model, mmlu, plan
        self.batch_tokens = batch_tokens
        self.answers: dict[bool, list[int]] = {}

    def seconds(self, reuse: bool) -> float:
        """Score all questions; return how long it took, until the host had the answers."""
        from trainmark.cases.llama2_7b_lora.mmlu.scoring import score_mmlu

        started = time.perf_counter()
        scored = score_mmlu(
            self.model, self.mmlu, self.plan, batch_tokens=self.batch_tokens, legacy=not reuse
        )
        seconds = time.perf_counter() - started
        self.answers[reuse] = [item.predicted for item in scored.items]
        return seconds

    def interleaved(self, *, rounds: int) -> dict[str, list[float]]:
        """Return the seconds of ``reuse`` and of each prompt ``alone``, by round."""
        ways = {"reuse": partial(self.seconds, True), "alone": partial(self.seconds, False)}
        return interleave(ways, rounds=rounds)

    def same(self) -> int:
        """Return how many questions both answered alike."""
        return sum(a == b for a, b in zip(self.answers[True], self.answers[False], strict=True))

    def same_bar(self, what: str) -> Bar:
        """Return the bar that every answer is the same."""
        same, items = self.same(), self.plan.num_questions
        return Bar(what, f"{same} of {items}", "all", same == items)


def make_speed_bar(seconds_by_way: dict[str, list[float]], minimum: float, what: str) -> Bar:
    """Return the bar of the prefix's reuse over one prompt at a time."""
    speed = compute_ratio(seconds_by_way["alone"], seconds_by_way["reuse"])
    return Bar(what, str(speed), f"at least {minimum:g}", speed.median >= minimum)


def _build_model() -> Any:
    import torch
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    config = LlamaConfig(**SIZES, max_position_embeddings=2048, initializer_range=0.1)
    config._attn_implementation = "sdpa"
    torch.manual_seed(1)
    return LlamaForCausalLM(config).eval()


def main() -> bool:
    """Interleave both and hold their scores against each other."""
    with tempfile.TemporaryDirectory() as folder:
        mmlu, plan = draw_questions(Path(folder), vocab_size=SIZES["vocab_size"], max_length=2048)
    both = BothWays(_build_model(), mmlu, plan, batch_tokens=BATCH_TOKENS)
    seconds_by_way = both.interleaved(rounds=ROUNDS)
    bars = [
        make_speed_bar(seconds_by_way, BAR, "prefix reuse / one prompt at a time, speed"),
        both.same_bar("same answers"),
    ]
    middle = {name: sorted(values)[len(values) // 2] for name, values in seconds_by_way.items()}
    return conclude(
        "mmlu_scoring",
        "MMLU scoring",
        bars,
        f"{describe_plan(plan)} Medians of {ROUNDS} rounds: {middle['reuse']:.2f} s "
        f"with reuse, {middle['alone']:.2f} s without. Llama of width {SIZES['hidden_size']}, "
        f"{SIZES['num_hidden_layers']} layers, random weights, fp32.",
    )


if __name__ == "__main__":
    main()
