"""Logs of well-known trainers: how each is recognised and read.

Owns the table of presets and the recognition. Must not know how values are summed up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

from trainmark.analysis.extract import NearMiss
from trainmark.analysis.numbers import LARGEST_COUNT
from trainmark.errors import DataError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.analysis.source import Block

AUTO = "auto"
_SURE = 0.9  # share of the recognised lines that decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way a trainer prints its speed.

    Args:
        keyword: what stands before the value.
        reads: step times, steps a second, or samples (or tokens) a second.
        time_unit: of a step time.
        per_device: whether a speed is that of one device; else of the whole job.
        unit: of a speed; empty: the line says it.
        batch: keyword of the samples of a step over all devices; empty: not in the log.
        loss: keyword of the loss; empty: not in the log.
    """

    keyword: str
    reads: Literal["step_time", "steps", "speed"]
    time_unit: str = "s"
    per_device: bool = False
    unit: str = ""
    batch: str = ""
    loss: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A trainer's log.

    Args:
        signature: pattern that its lines, and no other trainer's, contain.
        sample: such a line, for help and messages.
        world: pattern of the devices of the job, or of the speeds of all and of one.
        forms: ways to read it, best first; none: its lines are JSON events.
    """

    name: str
    title: str
    signature: bytes
    sample: str
    world: bytes = b""
    forms: tuple[Form, ...] = ()


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            name="megatron",
            title="Megatron-LM",
            signature=rb"elapsed time per iteration \(ms\): *\d",
            sample="iteration 20/200 | elapsed time per iteration (ms): 123.4 | "
            "global batch size: 512 | lm loss: 6.8E+00 |",
            world=rb"using world size: *(\d+)",
            forms=(
                Form(
                    keyword="elapsed time per iteration (ms):",
                    reads="step_time",
                    time_unit="ms",
                    batch="global batch size:",
                    loss="lm loss:",
                ),
            ),
        ),
        Preset(
            name="deepspeed",
            title="DeepSpeed",
            signature=rb"SamplesPerSec=\d|iter time \(s\): *\d.*samples/sec: *\d",
            sample="global_step=10, RunningAvgSamplesPerSec=220.7, CurrSamplesPerSec=222.9,",
            forms=(
                Form(keyword="CurrSamplesPerSec=", reads="speed", unit="samples/s"),
                Form(keyword="samples/sec:", reads="speed", unit="samples/s", loss="loss:"),
                Form(keyword="SamplesPerSec=", reads="speed", unit="samples/s"),
                Form(keyword="iter time (s):", reads="step_time", loss="loss:"),
            ),
        ),
        Preset(
            name="transformers",
            title="transformers.Trainer",
            signature=rb"'train_samples_per_second': *'?\d|\{'loss': *'?\d.*'epoch': *'?\d",
            sample="{'train_runtime': 110.6, 'train_samples_per_second': 1.808, "
            "'train_steps_per_second': 0.226, 'epoch': 0.69}",
            forms=(
                Form(
                    keyword="train_samples_per_second", reads="speed", unit="samples/s",
                    loss="'loss':",
                ),
                Form(keyword="train_steps_per_second", reads="steps", loss="'loss':"),
            ),
        ),
        Preset(
            name="paddle",
            title="PaddleNLP, PaddleOCR, PaddleClas",
            signature=rb"(?:batch_cost|reader_cost): *\d.*(?:ips|speed): *\d|\bips: *\d"
            rb"|\binterval_samples_per_second: *\d",
            world=rb"\bips_total: *(\d[\d.]*)[^\n]*?\bips: *(\d[\d.]*)",
            sample="global step 20, loss: 8.08, avg_batch_cost: 0.35901 sec, "
            "speed: 2.79 step/s, ips_total: 22818 tokens/s, ips: 11409 tokens/s",
            forms=(
                Form(
                    keyword="interval_samples_per_second:", reads="speed", unit="samples/s",
                    loss="loss:",
                ),
                Form(keyword="ips:", reads="speed", per_device=True, loss="loss:"),
                Form(keyword="speed:", reads="steps", loss="loss:"),
                Form(keyword="avg_batch_cost:", reads="step_time", loss="loss:"),
            ),
        ),
        Preset(
            name="nanogpt",
            title="nanoGPT",
            signature=rb"\biter \d+: loss \S+, time \d",
            sample="iter 100: loss 3.4000, time 123.45ms, mfu 12.30%",
            forms=(
                Form(keyword=", time ", reads="step_time", time_unit="ms", loss=": loss "),
            ),
        ),
        Preset(
            name="mllog",
            title="MLPerf logging",
            signature=rb":::MLLOG \{",
            sample=':::MLLOG {"time_ms": 1719843792116, "key": "tracked_stats", '
            '"value": {"throughput": 14214.7}, "metadata": {"samples_count": 3072}}',
        ),
        Preset(
            name="perflog",
            title="PerfLog (FlagPerf)",
            signature=rb"\[PerfLog\] \{",
            sample='[PerfLog] {"event": "STEP_END", "value": {"loss": 2.7, '
            '"num_trained_samples": 512}, "metadata": {"time_ms": 1669034171032, "rank": 0}}',
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """The preset taken, its form (none: events), why in one line, and the log's devices."""

    preset: Preset
    form: Form | None
    why: str
    devices: int | None


def choose(name: str, blocks: Iterator[Block]) -> tuple[Choice, Iterator[Block]]:
    """Return the preset and form for a log, and the blocks from where it begins to speak.

    Blocks without a line of any preset hold none of its values and are passed over, so the
    log is read once. ``auto`` decides in the first block with recognised lines.

    Raises:
        UsageError: for a name that is unknown.
        DataError: for a log that no preset fits, or several.
    """
    if name != AUTO and name not in PRESETS:
        remedy = nearest(name, [*PRESETS, AUTO])
        raise UsageError(f"no preset {name!r}", where="--preset", remedy=remedy)
    wanted = list(PRESETS.values()) if name == AUTO else [PRESETS[name]]
    misses = [NearMiss(form.keyword) for preset in wanted for form in preset.forms]
    first: Block | None = None
    for block in blocks:
        first = first or block
        counts = {preset.name: len(re.findall(preset.signature, block.data)) for preset in wanted}
        if any(counts.values()):
            preset, why = _decide(counts) if name == AUTO else (PRESETS[name], f"preset {name}")
            devices = _devices(preset, first) or _devices(preset, block)
            return Choice(preset, _form(preset, block), why, devices), chain([block], blocks)
        if name != AUTO:
            for miss in misses:
                miss.feed(block)
    raise _nothing(wanted, [miss.best for miss in misses if miss.best])


def _decide(counts: dict[str, int]) -> tuple[Preset, str]:
    total = sum(counts.values())
    best = max(counts, key=lambda name: counts[name])
    if counts[best] < _SURE * total:
        found = ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
        what = f"lines of several trainers: {found}"
        raise DataError(what, where="--preset auto", remedy="choose one with --preset NAME")
    others = f", {total - counts[best]} of other presets" if counts[best] < total else ""
    why = f"preset {best} recognised by {counts[best]} of its first lines{others}"
    return PRESETS[best], why


def _devices(preset: Preset, block: Block) -> int | None:
    found = re.search(preset.world, block.data) if preset.world else None
    if not found:
        return None
    try:
        numbers = [float(text) for text in found.groups()]
    except ValueError:  # dots in a row: no number, so nothing is said
        return None
    all_, one = numbers[0], numbers[1] if len(numbers) > 1 else 1.0
    ratio = all_ / one if one else 0.0
    devices = round(ratio) if ratio < LARGEST_COUNT else 0  # as nan and inf are not
    near = abs(all_ - devices * one) <= 0.02 * all_  # both speeds are rounded in the log
    return devices if devices and near else None


def _form(preset: Preset, block: Block) -> Form | None:
    for form in preset.forms:
        if form.keyword.encode() in block.data:
            return form
    return preset.forms[0] if preset.forms else None


def _nothing(wanted: Sequence[Preset], near: Sequence[object]) -> DataError:
    if len(wanted) == 1:
        what = f"no line of {wanted[0].title}"
        rule = f"its lines look like: {wanted[0].sample}"
        remedy = f"nearest is {near[0]}" if near else "try --preset auto, or --keyword TEXT"
        return DataError(what, where=f"--preset {wanted[0].name}", rule=rule, remedy=remedy)
    known = "".join(f"\n  {preset.name}: {preset.sample}" for preset in wanted)
    what = "no line of a known trainer"
    return DataError(
        what, where="--preset auto", remedy=f"give --keyword TEXT. Known presets:{known}"
    )
