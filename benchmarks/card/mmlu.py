"""MMLU scoring by the 7B model on random weights, against one prompt at a time.

80 prompts of about 180 tokens take 0.2 PFLOP: five seconds one at a time in fp32, two in bf16,
where launches bound it. Both once in fp32 and nine rounds in bf16 end within two minutes. fp32
weights take 27 GB and are rounded to bf16 in their place, one by one.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.card.section import Card, Findings
from benchmarks.harness import choose_size
from benchmarks.mmlu_scoring import BAR, BothWays, describe_plan, draw_questions, make_speed_bar
from benchmarks.profiling import profile_steps

CASE, RECIPE = "llama2_7b_lora", "throughput-1x1"
TITLE = "MMLU scoring, Llama2-7B"
SIZE = choose_size("7b", "tiny")
ROUNDS = 9


def run(card: Card) -> Findings:
    import torch

    from trainmark import cases, devices
    from trainmark.cases.llama2_7b_lora.model_files import PRESETS

    device = devices.choose_vendor(card.device).open(0, 1)
    device.set_precision("fp32")
    config = PRESETS[SIZE]
    chosen: Any = replace(
        cases.load(CASE).recipes[RECIPE], model_size=SIZE, precision="fp32", weights_dtype="fp32"
    )
    with tempfile.TemporaryDirectory(dir=card.scratch) as folder:
        mmlu, plan = draw_questions(
            Path(folder), vocab_size=config.vocab_size, max_length=config.max_positions
        )
    model = (
        cases.import_part(CASE, "model")
        .build_model(config, chosen, weights=None, device=device)
        .causal_lm
    )
    batch_tokens = chosen.micro_batch_size * chosen.seq_length
    both = BothWays(model, mmlu, plan, batch_tokens=batch_tokens)
    both.interleaved(rounds=1)
    bars = [both.same_bar("same answers in fp32")]
    for parameter in model.parameters():
        if not parameter.requires_grad:  # adapters stay fp32, as the case has them
            parameter.data = parameter.data.to(torch.bfloat16)
    with torch.autocast(device.torch_type, torch.bfloat16):
        seconds_by_way = both.interleaved(rounds=ROUNDS)
        bars.append(
            make_speed_bar(
                seconds_by_way, BAR, "prefix reuse / one prompt at a time, speed in bf16"
            )
        )
        missed = not bars[-1].met
        profile = profile_steps(lambda: both.seconds(True), device) if missed else None
    same = both.same()
    figures: dict[str, float | None] = {"same_answers_in_bf16": same / plan.num_questions}
    for name, seconds in seconds_by_way.items():
        middle = statistics.median(seconds)
        quarters = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [middle] * 3
        figures |= {
            f"{name}_items_per_second": plan.num_questions / middle,
            f"{name}_items_per_second_p25": plan.num_questions / quarters[-1],
            f"{name}_items_per_second_p75": plan.num_questions / quarters[0],
        }
    text = (
        f"{describe_plan(plan)} {batch_tokens:,} tokens of questions at a time, "
        f"{len(seconds_by_way['alone'])} rounds in bf16. Both ways answer {same} of "
        f"{plan.num_questions} questions alike: random weights leave answers nearly as likely as "
        "each other, and bf16 rounds sums of another order differently."
    )
    if profile is not None:
        text += (
            f"\n\nWhere scoring with the prefix's reuse spends its time:\n\n{profile.markdown()}"
        )
    return Findings(bars, figures, text)
