"""What repeating one of 50 windows costs, beside the same training without it.

The share of the time is that of the span ``replay`` in the time of the whole training. What the
digests cost within the first pass is the time of watched steps over that of the same steps without
digests, interleaved.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave
from benchmarks.jobs import build, iterate_batches_endlessly

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW_STEPS, EVERY_WINDOWS = 10, 50
ROUNDS = choose_size(15, 1)
MAX_SHARE = 0.02


def measure(name: str, case: str, fields: dict[str, Any]) -> tuple[list[Bar], str]:
    """Return the bars of a case with ``fields`` of its recipe, and the size of its model in words.

    Args:
        name: the first words of each bar.
    """
    from trainmark.rank.replay import WindowReplay
    from trainmark.train.replay import StepDigests, StepperState

    job, device = build(case, max_epochs=1000, **fields)
    batches = iterate_batches_endlessly(job)
    replay = WindowReplay(
        every_windows=EVERY_WINDOWS,
        job=job,
        device=device,
        state=StepperState(job.stepper),
        digests=StepDigests(job.trained_parameters(), job.stepper),
        is_on_any_rank=bool,
    )
    states: list[Any] = []

    def run_window(after_step: Callable[[], None]) -> tuple[float, list[float]]:
        """Return the seconds of a window, and its losses."""
        states[:] = [next(batches) for _ in range(WINDOW_STEPS)]
        source, losses = iter(states), []
        start_s = time.perf_counter()
        for _ in range(WINDOW_STEPS):
            losses.append(job.step(source))
            after_step()
        device.synchronize()
        return time.perf_counter() - start_s, device.read(losses)

    def run_plain_window() -> tuple[float, float]:
        return run_window(_do_nothing)[0], 0.0

    def run_watched_window() -> tuple[float, float]:
        """Return the seconds of the first pass, and those of everything else of a repeat."""
        start_s = time.perf_counter()
        replay.save()
        device.synchronize()
        saved_s = time.perf_counter() - start_s
        window_s, losses = run_window(replay.end_step)
        start_s = time.perf_counter()
        result = replay.repeat(states, losses, first_step=0)
        assert result.control == "not_needed", "this processor computes the same again"
        return window_s, saved_s + time.perf_counter() - start_s

    times = interleave(
        {"plain": run_plain_window, "watched": run_watched_window}, rounds=ROUNDS, warmup=2
    )
    plain_s = [seconds for seconds, _ in times["plain"]]
    first = compute_ratio([seconds for seconds, _ in times["watched"]], plain_s)
    repeated = compute_ratio([seconds for _, seconds in times["watched"]], plain_s)
    share = repeated.median / (EVERY_WINDOWS - 1 + first.median + repeated.median)
    bars = [
        Bar(
            f"{name}: save, restore, repeat and compare / all time, one window of {EVERY_WINDOWS}",
            f"{share:.2%}",
            f"at most {MAX_SHARE:.0%}",
            share <= MAX_SHARE,
        ),
        Bar(f"{name}: the same / a window", str(repeated), "none", None),
        Bar(f"{name}: window with digests / without, interleaved", str(first), "none", None),
    ]
    return bars, f"{name}: {job.facts()['trainable_parameters']:,} trained parameters"


def _do_nothing() -> None:
    """Watch no step."""


def main() -> bool:
    """Measure three trainings, and keep the table."""
    small_gpt = choose_size({"hidden_size": 256, "num_layers": 4, "num_heads": 4}, {})
    short = choose_size({"micro_batch_size": 8}, {})
    # As many tokens in a step as real trainings have: the step takes longer, its digests do not.
    long = choose_size({"micro_batch_size": 4, "seq_length": 1024}, {})
    trainings = (
        ("gpt_megatron, 8 x 64 tokens", "gpt_megatron", small_gpt | short),
        ("gpt_megatron, 4 x 1,024 tokens", "gpt_megatron", small_gpt | long),
        ("distilbert_sst2", "distilbert_sst2", {}),
    )
    bars, sizes = [], []
    for name, case, fields in trainings:
        bars_of_training, size = measure(name, case, fields)
        bars += bars_of_training
        sizes.append(size)
    details = f"Windows of {WINDOW_STEPS} steps, {ROUNDS} rounds, one rank. {'; '.join(sizes)}."
    return conclude("replay_cost", "Repeated windows: what they cost", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
