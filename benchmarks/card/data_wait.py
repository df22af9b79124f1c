"""A wait for data, injected into a real job: it must lower ``p_train`` and leave ``p_core``.

The figures are those of a run, computed from the events of the measured loop.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.card.section import Findings
from benchmarks.distilbert_step import SEQUENCE, build_job, make_data
from benchmarks.harness import Bar, choose_size, compute_ratio, interleave
from benchmarks.jobs import build
from benchmarks.loop_overhead import DEPTH, Endless, run_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.card.section import Card
    from trainmark.protocols import Batch, Device

TITLE = "A wait for data in the figures"
STEPS, ROUNDS, MEASURE_S = choose_size((40, 21, 120.0), (4, 1, 3.0))  # of each job
# Large enough that a step keeps a fast card busy for longer than the host needs to launch it; in
# fp32, which every card has.
MODEL: dict[str, object] = choose_size(
    {
        "hidden_size": 768,
        "num_heads": 12,
        "num_layers": 4,
        "seq_length": 512,
        "micro_batch_size": 8,
        "learning_rate": 1e-4,
        "min_learning_rate": 1e-5,
    },
    {},
)
ROWS = 32  # of DistilBERT
LONG, SHORT = 3.0, 0.5  # waits, in steps
NOISE = 0.02


class Delayed:
    """A job whose batches come later each; all else is the job's own.

    With batches read ahead, the reading thread sleeps. Without, the device is idle when a wait
    begins, so that none of it is hidden behind the step before; and the host keeps working, so
    that its clock does not fall.

    Args:
        delay_s: the wait before each batch.
    """

    def __init__(self, job: Any, device: Device, delay_s: float, *, depth: int) -> None:
        self.job, self.device, self.delay_s, self.depth = job, device, delay_s, depth
        self.read_ns: list[int] = []
        self.injected_ns: list[int] = []

    def batches(self, epoch: int) -> Iterator[Batch]:
        source = self.job.batches(epoch)
        while True:
            asked_ns = time.perf_counter_ns()
            batch = next(source, None)
            if batch is None:
                return
            self.read_ns.append(time.perf_counter_ns() - asked_ns)
            if not self.depth:
                self.device.synchronize()
            start_ns = time.perf_counter_ns()
            end_ns = start_ns + round(self.delay_s * 1e9)
            if self.depth:
                time.sleep(self.delay_s)
            while time.perf_counter_ns() < end_ns:
                pass
            self.injected_ns.append(time.perf_counter_ns() - start_ns)
            yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)


class Trained(NamedTuple):
    """One run of the loop: its figures, its time, and that of reading its batches and waiting."""

    p_train: float
    p_core: float
    samples: int
    train_s: float
    core_s: float
    read_s: float
    injected_s: float

    def expected_p_train(self, before_s: float) -> float:
        """Return the rate of a run whose steps take ``before_s`` and that waited as this one."""
        return self.samples / (before_s + self.injected_s)


def train(job: Any, device: Device, delay_s: float, *, depth: int) -> Trained:
    """Train with an injected wait; compute the rates as a record of it does."""
    from trainmark.events.schema import name_rank_file
    from trainmark.events.timeline import read_rank

    delayed = Delayed(job, device, delay_s, depth=depth)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name_rank_file(0)
        run_loop(delayed, device, file, STEPS, depth=depth)
        rank, _ = read_rank(Path(folder), 0)
    assert rank.train_ns is not None
    samples, waited_ns = rank.counts.samples, rank.total_wait_ns
    train_s, core_s = rank.train_ns / 1e9, (rank.train_ns - waited_ns) / 1e9
    return Trained(
        samples / train_s,
        samples / core_s,
        samples=samples,
        train_s=train_s,
        core_s=core_s,
        # The thread may have read more batches than the steps used.
        read_s=sum(delayed.read_ns[:STEPS]) / 1e9,
        injected_s=sum(delayed.injected_ns[:STEPS]) / 1e9,
    )


pairs = partial(zip, strict=True)


def _make_equality_bar(what: str, above: Sequence[float], below: Sequence[float]) -> Bar:
    ratio = compute_ratio(above, below)
    return Bar(what, str(ratio), f"within {100 * NOISE:g}% of 1", abs(ratio.median - 1) <= NOISE)


def _iterate_jobs(card: Card) -> Iterator[tuple[str, str, Any, Device]]:
    """Yield each job with its name, what it trains, and its device."""
    told = ", ".join(f"{name}={value}" for name, value in MODEL.items()) or "tiny"
    yield ("gpt", told, *build("gpt_megatron", device_name=card.device, max_epochs=1000, **MODEL))
    if card.size == "tiny":
        yield ("distilbert", "tiny", *build("distilbert_sst2", device_name=card.device))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        make_data(folder)
        job = build_job(folder, precision="fp32", batch=ROWS, device_name=card.device)
        yield "distilbert", f"{ROWS} rows of {SEQUENCE} tokens", job, job.context.device


def run(card: Card) -> Findings:
    whole = Findings([])
    for name, told, job, device in _iterate_jobs(card):
        findings = _measure_job(name, told, Endless(job), device)
        whole.bars += findings.bars
        whole.figures |= findings.figures
        whole.text += findings.text
    whole.text += (
        "The last row of each shows that reading ahead hides a wait that is shorter than a step; a "
        "wait that is not hidden must be seen in p_train alone."
    )
    return whole


def _measure_job(name: str, told: str, endless: Endless, device: Device) -> Findings:

    def make_variant(steps: float, depth: int) -> Callable[[], Trained]:
        return lambda: train(endless, device, steps * step_s, depth=depth)

    train(endless, device, 0.0, depth=0)
    step_s = train(endless, device, 0.0, depth=0).core_s / STEPS
    round_s = STEPS * step_s * (1 + (1 + LONG) + 1 + 1 + LONG)
    rounds = min(ROUNDS, max(3, int(MEASURE_S / round_s)))
    runs_by_kind = interleave(
        {
            "bare": make_variant(0, 0),
            "waiting": make_variant(LONG, 0),
            "ahead": make_variant(0, DEPTH),
            "short": make_variant(SHORT, DEPTH),
            "long": make_variant(LONG, DEPTH),
        },
        rounds=rounds,
    )
    bare, waiting, ahead, short, long = runs_by_kind.values()

    def get_column(runs: Sequence[Trained], name: str) -> list[float]:
        return [getattr(item, name) for item in runs]

    due = [with_.expected_p_train(without.train_s) for with_, without in pairs(waiting, bare)]
    # The thread reads and waits without a pause; the last step follows its last wait. Every step
    # then begins on an idle device, as it does in ``bare`` and not in ``ahead``: what a host needs
    # for its first launches is hidden behind the step before only where no wait has emptied the
    # queue.
    ahead_due = [
        with_.expected_p_train(with_.read_s + without.core_s / STEPS)
        for with_, without in pairs(long, bare)
    ]
    bars = [
        _make_equality_bar(
            f"{name}: no batch read ahead, p_train / that of the injected wait",
            get_column(waiting, "p_train"),
            due,
        ),
        _make_equality_bar(
            f"{name}: the same, p_core / p_core without the wait",
            get_column(waiting, "p_core"),
            get_column(bare, "p_core"),
        ),
        _make_equality_bar(
            f"{name}: {DEPTH} read ahead, a wait of {LONG:g} steps, p_train / that of the wait",
            get_column(long, "p_train"),
            ahead_due,
        ),
        _make_equality_bar(
            f"{name}: the same, p_core / p_core of steps that begin on an idle device",
            get_column(long, "p_core"),
            get_column(bare, "p_core"),
        ),
        _make_equality_bar(
            f"{name}: {DEPTH} read ahead, a wait of {SHORT:g} steps, p_train / p_train without",
            get_column(short, "p_train"),
            get_column(ahead, "p_train"),
        ),
    ]
    figures: dict[str, float | None] = {}
    for kind, runs in runs_by_kind.items():
        for figure in ("p_train", "p_core"):
            values = sorted(get_column(runs, figure))
            figures[f"{name}_{kind}_{figure}"] = values[len(values) // 2]
    return Findings(
        bars,
        figures,
        f"{name}: {told}, {STEPS} steps of {step_s * 1e3:.1f} ms a run, {rounds} rounds, "
        "samples/s.\n\n",
    )
