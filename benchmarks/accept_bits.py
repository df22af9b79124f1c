"""Is one flipped bit found at the right rank, and is a clean window ever blamed?

Four ranks train a small GPT in windows that are all repeated, with DDP and with FSDP. In some
windows one bit is flipped on one rank: of a weight, a gradient, an activation or the result of a
collective. A flip that rounding removes changes nothing and cannot be found: it is counted apart,
and that nothing changed is checked value by value, without digests.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.bit_flips import KINDS, plan_flips, run_ranks
from benchmarks.harness import Bar, choose_size, conclude
from trainmark.record.replays import summarize_replays

WORLD_SIZE, SEED = 4, 20261128
NUM_FLIPS, NUM_CLEAN = choose_size((130, 500), (4, 2))  # of each kind of parallelism
WANTED_FLIPS, WANTED_CLEAN = choose_size((200, 1_000), (1, 1))


def measure(*, fsdp: bool) -> tuple[Counter[str], int, int]:
    """Return how many flips there were by kind and result, and clean windows and alarms."""
    flips = plan_flips(NUM_FLIPS, world_size=WORLD_SIZE, seed=SEED + fsdp)
    num_windows = NUM_FLIPS + NUM_CLEAN
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_ranks(
            WORLD_SIZE, Path(folder), fsdp=fsdp, num_windows=num_windows, flips=flips
        )
    counts: Counter[str] = Counter()
    num_clean = min(map(len, outcomes)) - NUM_FLIPS
    alarms = 0
    for window in range(NUM_FLIPS + num_clean):
        outcomes_of_window = [outcome[window] for outcome in outcomes]
        replays = summarize_replays([[item.replay] for item in outcomes_of_window])
        assert replays is not None, "every window is repeated"
        if window >= NUM_FLIPS:
            alarms += replays.different + replays.not_deterministic
            continue
        flip = flips[window]
        assert outcomes_of_window[flip.rank].flipped, "every flip takes place"
        named = replays.differences[0].ranks if replays.differences else None
        if named == [flip.rank]:
            result = "right"
        elif named is not None:
            result = "wrong"
        elif any(item.changed for item in outcomes_of_window):
            result = "missed"
        else:
            result = "changed nothing"
        counts[f"{flip.kind} {result}"] += 1
    return counts, num_clean, alarms


def main() -> bool:
    """Flip, count, and keep the table."""
    counts: Counter[str] = Counter()
    num_clean = num_alarms = 0
    for fsdp in (False, True):
        of_flips, clean, alarms = measure(fsdp=fsdp)
        print(f"fsdp={fsdp}: {dict(of_flips)}, {alarms} of {clean}", file=sys.stderr, flush=True)
        counts += of_flips
        num_clean += clean
        num_alarms += alarms
    bars = []
    totals: Counter[str] = Counter()
    for kind in KINDS:
        results = {
            name: counts[f"{kind} {name}"]
            for name in ("right", "wrong", "missed", "changed nothing")
        }
        totals.update(results)
        effective = results["right"] + results["wrong"] + results["missed"]
        measured = (
            f"{results['right']} of {effective}; {results['changed nothing']} changed nothing"
        )
        bars.append(Bar(kind, measured, "all at the right rank", results["right"] == effective))
    effective = totals["right"] + totals["wrong"] + totals["missed"]
    bars.append(
        Bar(
            "all kinds",
            f"{totals['right']} of {effective}",
            f"{WANTED_FLIPS} of {WANTED_FLIPS}",
            totals["right"] == effective >= WANTED_FLIPS,
        )
    )
    bars.append(
        Bar(
            "clean windows with an alarm",
            f"{num_alarms} of {num_clean}",
            f"0 of {WANTED_CLEAN}",
            num_alarms == 0 and num_clean >= WANTED_CLEAN,
        )
    )
    details = (
        f"{WORLD_SIZE} ranks, one thread each, gloo; half with DDP, half with FSDP2; windows of 3 "
        f"steps of a GPT with dropout; seed {SEED}. Bits 0 to 27 and the sign of fp32 values: the "
        "upper bits of the exponent give losses that are not finite, which end a run anyway. A "
        "weight is flipped before a step, an activation in the output of a layer, a gradient where "
        "it is computed, a result after the all-reduce, the reduce-scatter or the all-gather."
    )
    return conclude("accept_bits", "Single flipped bits in repeated windows", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
