"""Training steps of a section: variants in turns, and what they reach of the device's rates."""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.harness import Bar, Ratio, choose_size, compute_ratio, interleave
from benchmarks.peers import Peer, PeerFailedError
from trainmark.devices import peaks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.card.section import Card
    from trainmark.recipe import Precision

ROUNDS, TURN_S = choose_size((7, 2.0), (1, 0.0))
SETTLE_S = 150.0  # at most, of a variant's first turns, in which it may compile
PROFILE_S = 90.0  # at most, of a profile, so that the section's figures are kept in any case
MATMUL = "matmul"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of each variant.

    Args:
        seconds: of a step, by variant and round.
        peak_bytes: of memory, by variant; see ``peers.turns``.
        matmul: sustained FLOP/s of matrix products in each round.
        flops: model FLOPs of a step.
        units: what a step trains, by name: ``tokens`` for instance.
        peak_flops: the published dense peak of the device, if there is one.
        product_name: of the device.
        failed: why a variant could not be measured, by name.
        left_out: variants for which there was no time.
    """

    seconds: Mapping[str, Sequence[float]]
    peak_bytes: Mapping[str, int]
    matmul: Sequence[float]
    flops: float
    units: Mapping[str, int]
    peak_flops: float | None
    product_name: str
    failed: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    def mfu(self, name: str) -> Ratio | None:
        """Return a variant's model FLOP/s over the published peak; None without one."""
        if self.peak_flops is None:
            return None
        least_s = [self.flops / self.peak_flops] * len(self.seconds[name])
        return compute_ratio(least_s, self.seconds[name])

    def mamfu(self, name: str) -> Ratio:
        """Return a variant's model FLOP/s over the matmul rate of the same round."""
        return compute_ratio([self.flops / seconds for seconds in self.seconds[name]], self.matmul)

    def fastest(self, *names: str) -> str:
        """Return which of the variants that were measured takes the fewest seconds a step."""
        known = [name for name in names if name in self.seconds]
        return min(known, key=lambda name: statistics.median(self.seconds[name]))

    def mfu_bar(self, name: str, what: str, minimum: float) -> Bar:
        """Return the bar of a variant's MFU, not judged where no peak is known."""
        share = self.mfu(name)
        if share is None:
            measured = f"unknown: no published peak of {self.product_name}"
        else:
            measured = str(share)
        met = None if share is None else share.median >= minimum
        return Bar(f"{what}, MFU", measured, f"at least {minimum:g}", met)

    def speed_bar(self, name: str, other: str, what: str, minimum: float = 1.0) -> Bar:
        """Return the bar of one variant's speed over another's.

        It is missed if one failed, and not judged if there was no time for one.
        """
        if failed := [variant for variant in (name, other) if variant in self.failed]:
            unknown = f"unknown: {' and '.join(failed)} failed"
            return Bar(f"{what}, speed", unknown, f"at least {minimum:g}", False)
        if absent := [item for item in (name, other) if item in self.left_out]:
            unknown = f"unknown: no time for {' and '.join(absent)}"
            return Bar(f"{what}, speed", unknown, f"at least {minimum:g}", None)
        speed = compute_ratio(self.seconds[other], self.seconds[name])
        return Bar(f"{what}, speed", str(speed), f"at least {minimum:g}", speed.median >= minimum)

    def figures(self) -> dict[str, float | None]:
        """Return every variant's figures; units in the names."""
        figures: dict[str, float | None] = {
            "matmul_flops_per_second": statistics.median(self.matmul),
            "step_model_flops": self.flops,
        }
        for name, seconds in self.seconds.items():
            middle, mfu = statistics.median(seconds), self.mfu(name)
            figures[f"{name}_step_seconds"] = middle
            for unit, count in self.units.items():
                figures[f"{name}_{unit}_per_second"] = count / middle
            figures[f"{name}_mfu"] = None if mfu is None else mfu.median
            figures[f"{name}_mamfu"] = self.mamfu(name).median
            figures[f"{name}_peak_memory_bytes"] = self.peak_bytes[name]
        return figures

    def table(self, labels: Mapping[str, str]) -> str:
        """Return a Markdown table of the variants with their spread, and what failed.

        Args:
            labels: how each variant is called.
        """
        units = [*self.units]
        head = ["", "ms a step", *(f"{unit}/s" for unit in units), "MFU", "MAMFU", "peak memory"]
        rows = [head, ["---"] * len(head)]
        for name, label in labels.items():
            if name not in self.seconds:
                continue
            seconds = sorted(self.seconds[name])
            quarter, middle = len(seconds) // 4, statistics.median(seconds)
            rows.append(
                [
                    label,
                    f"{1e3 * middle:.4g} ({1e3 * seconds[quarter]:.4g} to "
                    f"{1e3 * seconds[-1 - quarter]:.4g})",
                    *(f"{count / middle:,.1f}" for count in self.units.values()),
                    str(self.mfu(name) or "unknown"),
                    str(self.mamfu(name)),
                    f"{self.peak_bytes[name] / 2**30:.2f} GiB",
                ]
            )
        lines = [f"| {' | '.join(row)} |" for row in rows]
        lines += [f"\n{labels[name]} failed: `{why}`" for name, why in self.failed.items()]
        lines += [f"\nThere was no time for {labels[name]}." for name in self.left_out]
        return "\n".join(lines)


def take_turns(
    card: Card,
    module: str,
    parts: Mapping[str, Sequence[str]],
    *,
    precision: Precision,
    flops: float,
    units: Mapping[str, int],
) -> Measured:
    """Start every variant in a process of its own and let them take turns, matmul among them.

    Args:
        parts: the words of each variant on the command line of ``module``; the first is the
            section's own, others may fail.
        flops, units: see ``Measured``.

    Raises:
        PeerFailedError: the first variant, or the matmul, could not be measured.
    """
    from trainmark import devices

    product = devices.choose_vendor(card.device).open(0, 1).describe()["name"]
    variants: dict[str, Peer] = {}
    failed: dict[str, str] = {}
    left_out: list[str] = []
    longest_start_s = 0.0
    with ExitStack() as stack:
        matmul = stack.enter_context(Peer("benchmarks.matmul", card.device, precision))
        for name, arguments in parts.items():
            # A round is a turn of each that has started, of this one and of the matmuls.
            round_s = TURN_S * (len(variants) + 2)
            if variants and card.seconds_left() < longest_start_s + 2 * round_s:
                left_out.append(name)
                continue
            started_s = time.monotonic()
            try:
                peer = stack.enter_context(Peer(module, *arguments))
                _warm_up(peer, limit_s=min(SETTLE_S, card.seconds_left()))
            except PeerFailedError as failure:
                if not variants:
                    raise
                failed[name] = str(failure)
            else:
                variants[name] = peer
            longest_start_s = max(longest_start_s, time.monotonic() - started_s)
        turns = {name: peer.turn for name, peer in variants.items()} | {MATMUL: matmul.turn}
        round_s = 2 * TURN_S * len(turns)
        seconds = interleave(
            turns,
            rounds=ROUNDS,
            warmup=0 if card.is_brief else choose_size(1, 0),
            can_go_on=lambda: card.seconds_left() > round_s,
        )
    rates = seconds.pop(MATMUL)
    peak = peaks.find_peak(product, precision)
    return Measured(
        seconds,
        {name: int(peer.more[-1][0]) for name, peer in variants.items()},
        rates,
        flops,
        units,
        None if peak is None else peak.per_second,
        product,
        failed,
        left_out,
    )


def _warm_up(peer: Peer, *, limit_s: float) -> None:
    """Warm a variant up; end its process after ``limit_s``, so that the others' figures remain."""
    timer = threading.Timer(limit_s, peer.process.kill)
    timer.start()
    try:
        peer.settle(TURN_S)
    finally:
        timer.cancel()
