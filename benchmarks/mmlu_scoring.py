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

from benchmarks.harness import Bar, conclude, interleave, ratio, sized

if TYPE_CHECKING:
    from trainmark.cases.llama2_7b_lora.mmlu.plan import Plan
    from trainmark.cases.llama2_7b_lora.mmlu.questions import Mmlu

SIZES = {
    "hidden_size": sized(512, 64), "intermediate_size": sized(1376, 128),
    "num_hidden_layers": sized(4, 1), "num_attention_heads": 8, "num_key_value_heads": 8,
    "vocab_size": 32_000,
}  # fmt: skip
SUBJECTS, ITEMS = 2, sized(40, 2)
BATCH_TOKENS = 2 * 512  # two rows of the published training
ROUNDS = 9
BAR = 3.0


def _questions(place: Path) -> tuple[Mmlu, Plan]:
    from trainmark.cases.llama2_7b_lora.data import generating
    from trainmark.cases.llama2_7b_lora.data.tokens import open_tokenizer
    from trainmark.cases.llama2_7b_lora.mmlu.plan import plan_scoring
    from trainmark.cases.llama2_7b_lora.mmlu.questions import DEV_ROWS, Subject
    from trainmark.cases.llama2_7b_lora.mmlu.questions import SUBJECTS as NAMES

    generating.write_tokenizer(place, vocab_size=SIZES["vocab_size"])
    mmlu = []
    for name in NAMES[:SUBJECTS]:
        drawn = generating.questions(name, rows=DEV_ROWS + ITEMS, seed=1)
        mmlu.append(Subject(name, drawn[:DEV_ROWS], drawn[DEV_ROWS:]))
    tokenizer = open_tokenizer(place, vocab_size=SIZES["vocab_size"])
    return tuple(mmlu), plan_scoring(tokenizer, tuple(mmlu), max_length=2048)


def _model() -> Any:
    import torch
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    config = LlamaConfig(**SIZES, max_position_embeddings=2048, initializer_range=0.1)
    config._attn_implementation = "sdpa"
    torch.manual_seed(1)
    return LlamaForCausalLM(config).eval()


def main() -> bool:
    """Interleave both and hold their scores against each other."""
    from trainmark.cases.llama2_7b_lora.mmlu.scoring import score

    with tempfile.TemporaryDirectory() as place:
        mmlu, plan = _questions(Path(place))
    model = _model()
    answers: dict[bool, list[int]] = {}

    def timed(reuse: bool) -> float:
        started = time.perf_counter()
        found = score(model, mmlu, plan, batch_tokens=BATCH_TOKENS, reuse=reuse)
        seconds = time.perf_counter() - started
        answers[reuse] = [item.predicted for item in found.items]
        return seconds

    found = interleave(
        {"reuse": partial(timed, True), "alone": partial(timed, False)}, rounds=ROUNDS
    )
    same = sum(a == b for a, b in zip(answers[True], answers[False], strict=True))
    speed = ratio(found["alone"], found["reuse"])
    prefix = len(plan.groups[0].prefix)
    rest = sum(map(len, plan.groups[0].rests)) / len(plan.groups[0].rests)
    bars = [
        Bar("prefix reuse / one prompt at a time, speed", str(speed), f"at least {BAR:g}",
            speed.median >= BAR),
        Bar("same answers", f"{same} of {plan.items}", "all", same == plan.items),
    ]  # fmt: skip
    middle = {name: sorted(values)[len(values) // 2] for name, values in found.items()}
    return conclude(
        "mmlu_scoring", "MMLU scoring", bars,
        f"{plan.items} questions of {SUBJECTS} subjects, 5 shots: {prefix} tokens are shared, "
        f"{rest:.0f} are a question's own. Medians of {ROUNDS} rounds: {middle['reuse']:.2f} s "
        f"with reuse, {middle['alone']:.2f} s without. Llama of width {SIZES['hidden_size']}, "
        f"{SIZES['num_hidden_layers']} layers, random weights, fp32.",
    )  # fmt: skip


if __name__ == "__main__":
    main()
