"""A clock, devices, a job and event builders that tests control exactly.

Nothing here sleeps or reads the real time: a nanosecond passes when a test says so.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.protocols import Batch, Counts, Evaluation, MatmulRate, MemoryUse, Refusal
from trainmark.protocols.tested import REAL_RUNS
from trainmark.spec import RankMemory, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.events.timeline import RunTimeline
    from trainmark.recipe import Precision, Recipe
    from trainmark.record.measurement import Measurement
    from trainmark.telemetry.summary import Telemetry

GOLDEN = Path(__file__).parents[1] / "golden"
UPDATE_VARIABLE = "UPDATE_GOLDEN"


def check_golden(name: str, text: str) -> None:
    """Compare with a golden file; ``UPDATE_GOLDEN=1 pytest`` writes it anew."""
    path = GOLDEN / name
    if os.environ.get(UPDATE_VARIABLE):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@dataclass
class FakeClock:
    """Host time that passes only on request."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, duration_ns: int) -> None:
        assert duration_ns >= 0
        self.now_ns += duration_ns


@dataclass
class SyncDevice:
    """A device whose work is done when the call returns, like a CPU."""

    clock: FakeClock
    calls: list[str] = field(default_factory=list)  # what the device and its job were asked to do
    name: str = "fake"
    torch_type: str = "cpu"
    used_bytes: int = 1_000

    def work(self, duration_ns: int) -> None:
        """Compute for this long."""
        self.clock.advance(duration_ns)

    def mark(self) -> int:
        self.calls.append("mark")
        return self.clock()

    def elapsed_ns(self, start: int, end: int) -> int:
        self.calls.append("elapsed")
        return end - start

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def read(self, losses: Sequence[float]) -> list[float]:
        self.calls.append("read")
        return list(losses)

    def pin(self, tensor: Any) -> Any:
        return tensor

    def place(self, value: Any) -> Any:
        return value

    def set_precision(self, precision: Precision) -> dict[str, Any]:
        return {"precision": precision}

    def memory(self) -> MemoryUse:
        self.calls.append("memory")  # tests compare what the device was asked to do
        return MemoryUse(
            allocator_peak_bytes=None,
            used_bytes=self.used_bytes,
            total_bytes=10_000,  # any number
            scope="process",
        )

    def matmul_rate(self, precision: Precision) -> MatmulRate:
        return MatmulRate(flops_per_second=1e12, swing=0.0)

    def copy_bytes_per_second(self) -> float:
        return 2e9

    def describe(self) -> dict[str, Any]:
        return {"name": "Fake"}


@dataclass
class AsyncDevice(SyncDevice):
    """A device with one stream that runs behind the host, as an accelerator's does.

    ``work`` only queues. A mark completes when all that was queued before it is done, and
    never before the host placed it: its value is that moment on the common timeline. Marks
    and losses may be looked at only once the host has waited for them.
    """

    busy_until_ns: int = 0  # host time at which all queued work is done

    def work(self, duration_ns: int) -> None:
        """Queue a computation of this duration."""
        self.busy_until_ns = max(self.busy_until_ns, self.clock()) + duration_ns

    def mark(self) -> int:
        self.calls.append("mark")
        return max(self.busy_until_ns, self.clock())

    def elapsed_ns(self, start: int, end: int) -> int:
        # Marks are times on the clock of the host, which stands still until something advances it.
        self.calls.append("elapsed")
        assert max(start, end) <= self.clock(), "a mark was read before the device reached it"
        return end - start

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        self.clock.now_ns = max(self.clock.now_ns, self.busy_until_ns)

    def read(self, losses: Sequence[float]) -> list[float]:
        assert self.busy_until_ns <= self.clock(), "losses were read before they were computed"
        return super().read(losses)


@dataclass(frozen=True)
class Micro:
    """A micro-batch: what it holds, how long its loading and its work take."""

    samples: int = 4
    fetch_ns: int = 10  # host time until it is loaded
    work_ns: int = 100  # device time of its forward and backward pass
    launch_ns: int = 0  # host time until the work is queued
    closes_step: bool = True
    loss: float = 1.0
    step_samples: int | None = None  # of all ranks; None: this rank is alone


def _step_of(micros: list[Micro], number: int) -> list[Micro]:
    """Return the micro-batches of the step that micro-batch ``number`` belongs to.

    A step may have several micro-batches; ``closes_step`` is true for the last one of each.
    """
    first, last = number, number  # of the step's micro-batches, both inclusive
    while first > 0 and not micros[first - 1].closes_step:
        first -= 1
    while last + 1 < len(micros) and not micros[last].closes_step:
        last += 1
    return micros[first : last + 1]


@dataclass
class ScriptedJob:
    """A job that takes the given times; ``epochs[n]`` are the micro-batches of epoch n."""

    clock: FakeClock
    device: SyncDevice
    epochs: list[list[Micro]]
    qualities: list[float] = field(default_factory=list)  # of each evaluation
    evaluate_ns: int = 1_000  # host time of an evaluation
    # Fields of each ``Evaluation``.
    detail: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    breakdown: dict[str, dict[str, float]] = field(default_factory=dict)
    flops_per_sample: float | None = 6.0  # None: not known
    end_of_epoch_ns: int = 0  # host time between the last micro-batch and the epoch's end
    evaluated: int = 0  # evaluations so far
    fault: Exception | None = None  # what ``check`` raises before the first evaluation
    steps: int = 0  # steps so far

    @property
    def steps_per_epoch(self) -> int:
        return sum(micro.closes_step for micro in self.epochs[0])

    def batches(self, epoch: int) -> Iterator[Batch]:
        # A micro-batch says how many samples it holds and how long the host takes to load it. The
        # clock of the host only advances as it is told.
        micros = self.epochs[epoch]
        for number, micro in enumerate(micros):
            self.clock.advance(micro.fetch_ns)
            counts = Counts(
                samples=micro.samples,
                sequences=micro.samples,
                tokens=10 * micro.samples,  # every sample has 10 tokens, padded to 16
                tokens_padded=16 * micro.samples,
            )
            step_samples = micro.step_samples
            if step_samples is None:
                step_samples = sum(item.samples for item in _step_of(micros, number))
            yield Batch(micro, counts, step_samples=step_samples, closes_step=micro.closes_step)
        self.clock.advance(self.end_of_epoch_ns)

    def step(self, batches: Iterator[Batch]) -> float | None:
        """Train a step; return the loss of its last micro-batch, None if no batches are left."""
        loss = None
        for batch in batches:
            micro: Micro = batch.tensors
            self.clock.advance(micro.launch_ns)
            self.device.work(micro.work_ns)
            loss = micro.loss
            if batch.closes_step:
                break
        if loss is not None:
            self.device.calls.append("step")
            self.steps += 1
        return loss

    def check(self) -> None:
        if self.fault is not None and self.evaluated == 0:
            raise self.fault

    def trained_parameters(self) -> dict[str, Any]:
        return {"weight": [self.steps]}

    def updates(self) -> int:
        return self.steps

    def evaluate(self) -> Evaluation:
        # ``qualities`` has the value of each evaluation, and ``evaluated`` counts them. The other
        # fields of the result are those of the job, and the number of samples is any.
        self.device.calls.append("evaluate")
        self.clock.advance(self.evaluate_ns)
        value = self.qualities[self.evaluated]
        self.evaluated += 1
        return Evaluation(
            value, samples=50, detail=self.detail, reason=self.reason, breakdown=self.breakdown
        )

    def model_flops(self, counts: Counts) -> float | None:
        return None if self.flops_per_sample is None else self.flops_per_sample * counts.samples

    def facts(self) -> dict[str, Any]:
        return {"parameters": 1}


@dataclass
class Events:
    """Collect what would be written, stamped like the real writer does."""

    clock: FakeClock
    calls: list[str]
    written: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, event: str, **fields: Any) -> None:
        self.calls.append(f"emit {event}")
        self.written.append({"event": event, "t_ns": self.clock(), **fields})

    def named(self, event: str) -> list[dict[str, Any]]:
        return [item for item in self.written if item["event"] == event]


@dataclass
class FakeVendor:
    """A kind of device with a given number of accelerators."""

    name: str = "fake"  # "cpu": its devices are the cores of one processor
    tested: Text = REAL_RUNS  # on what the vendor's support was tested
    devices: int = 2
    product: str = "Fake Accelerator 1"
    torch_type: str = "cpu"
    collective_backend: str = "gloo"
    visible_devices: str | None = None
    recorded_variables: tuple[str, ...] = ()
    memory_bytes: int | None = None  # of the machine, whose ranks share it; None: not known

    @property
    def counts_cores(self) -> bool:
        return self.name == "cpu"

    def count(self) -> int:
        return self.devices

    def product_names(self) -> list[str]:
        # A processor has many cores, but one name.
        return [self.product] * (1 if self.counts_cores else self.devices)

    def rank_memory(self, nproc: int) -> RankMemory | None:
        """Return an equal share of the memory for each of ``nproc`` ranks; None: not known."""
        if self.memory_bytes is None:
            return None
        return RankMemory(self.memory_bytes // nproc, machine_bytes=self.memory_bytes)

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        return None

    def driver_version(self) -> str | None:
        return "1.2"

    def collective_library(self) -> str:
        return "fake 1.0"

    def monitor(self) -> None:
        """Nothing reads a fake."""

    def monitored(self, nproc: int) -> list[int]:
        return []

    def open(self, local_rank: int, ranks_here: int) -> SyncDevice:
        return SyncDevice(FakeClock())


def make_window(
    start_ns: int,
    end_ns: int,
    *,
    phase: str = "train",
    first_step: int = 0,
    step_ns: Sequence[int],
    wait_ns: Sequence[int] | None = None,
    loss: Sequence[float | None] | None = None,
    samples: Sequence[int],
    step_samples: Sequence[int] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return a ``window`` event; fields that are not given have plain values.

    Args:
        step_ns, wait_ns, loss, samples, step_samples: a value for each step.
        samples: of this rank; ``step_samples``: of all ranks, by default of this rank alone.
        more: replace or add fields of the event.
    """
    total = sum(samples)  # also that of sequences, tokens and FLOPs, where only one is needed
    return {
        "event": "window",
        "t_ns": end_ns,
        "phase": phase,
        "epoch": 0,
        "first_step": first_step,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "step_ns": list(step_ns),
        "wait_ns": list(wait_ns or [0] * len(step_ns)),
        "loss": list(loss or [1.0] * len(step_ns)),
        "samples": list(samples),
        "step_samples": list(step_samples or samples),
        "sequences": total,
        "tokens": total,
        "tokens_padded": total,
        "micro_batches": len(step_ns),
        "model_flops": float(total),
        "used_bytes": 1_000,
        **more,
    }


def make_event(name: str, t_ns: int, /, **fields: Any) -> dict[str, Any]:
    """Return any other event."""
    return {"event": name, "t_ns": t_ns, **fields}


def make_span(name: str, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return a ``span`` event."""
    return make_event("span", end_ns, name=name, start_ns=start_ns, end_ns=end_ns)


def make_parameters_event(
    t_ns: int,
    *,
    changed: Sequence[str] = ("weight",),
    unchanged: Sequence[str] = (),
    updates: int = 100,
    **fields: Any,
) -> dict[str, Any]:
    """Return a ``parameters`` event, by default of a rank with one parameter, which was trained.

    Args:
        changed: names of parameters that training changed.
        unchanged: names of the others.
        updates: optimizer updates that the rank counted.
    """
    names = dict.fromkeys(changed, True) | dict.fromkeys(unchanged, False)
    # ``gradients``: whether any value of the first gradients was not zero.
    plain = {"changed": names, "gradients": {"weight": True}, "updates": updates}
    return make_event("parameters", t_ns, **plain | fields)


def measure(
    timeline: RunTimeline,
    *,
    telemetry: Telemetry | None = None,
    device: str = "cuda",
    nproc: int = 1,
    **recipe: Any,
) -> Measurement:
    """Return the measurement of a run of the toy's plan.

    Args:
        timeline: what the event files of the run say.
        telemetry: the readings of its devices; None: they were not read.
        nproc: ranks of each node.
        device: torch's type of the devices; others than ``cpu`` are those of the vendor ``fake``.
        recipe: changed fields of the recipe.
    """
    # Imported here, because they take half a second, and most users of this module do without them.
    from trainmark.plan.plan import Plan
    from trainmark.record.measurement import Measurement

    plan = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    vendor = "cpu" if device == "cpu" else "fake"
    changed = {
        "recipe": plan.recipe | recipe,
        "nproc": nproc,
        "device": plan.device.model_copy(update={"torch_type": device, "vendor": vendor}),
    }
    return Measurement.from_timeline(plan.model_copy(update=changed), timeline, telemetry)


def launch_event(t_ns: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the launcher's first event; ``fields`` replace or add fields of it.

    Args:
        t_ns: time on the clock of all events, which by default begins with the launch. ``unix_ns``
            and ``started`` are the calendar's time then, each any and not the same.
    """
    return make_event(
        "launch",
        t_ns,
        **{
            "unix_ns": 1_000_000_000_000_000_000,
            "started": "2026-01-02T03:04:05+00:00",
            "argv": ["trainmark", "run", "toy"],
            "environment": {"cpu": "Fake CPU"},
            **fields,
        },
    )


def write_events(path: Path, events: Sequence[dict[str, Any]]) -> None:
    """Write events as the real writer does."""
    text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
    path.write_text(text, encoding="utf-8")


def write_run(
    run_dir: Path, launcher: Sequence[dict[str, Any]], *ranks: Sequence[dict[str, Any]]
) -> Path:
    """Write the event files of a run and return its directory.

    Args:
        launcher: events of the launcher.
        ranks: events of rank 0, 1, …
    """
    run_dir.mkdir(exist_ok=True)
    write_events(run_dir / "events.launcher.jsonl", launcher)
    for number, events in enumerate(ranks):
        write_events(run_dir / f"events.rank{number}.jsonl", events)
    return run_dir


S = 1_000_000_000  # nanoseconds of a second
TICK = S // 8  # exact in binary, so that sums of it are the same on every machine


# Indexes of events in the list that ``rank_events`` returns.
WARMUP_WINDOW = 7
MEASURED_WINDOW = 8
EVALUATION = 9


def _make_windows() -> list[dict[str, Any]]:
    """Return the windows of ``rank_events``: 1 compiled, 2 warm-up and 13 measured steps.

    ``S`` is a second in nanoseconds, and ``TICK`` an eighth of it. A window has the times of its
    steps and of the waiting for data in them, and the loss and the samples of each step.
    """
    flops_per_sample = 3_528.0  # any number
    return [
        make_window(
            6 * S,
            7 * S,
            phase="compile",
            step_ns=[S],
            wait_ns=[1_000],
            loss=[0.75],
            samples=[64],
            model_flops=64 * flops_per_sample,
        ),
        make_window(
            7 * S,
            8 * S,
            phase="warmup",
            first_step=1,
            step_ns=[S // 2] * 2,
            loss=[0.5] * 2,
            samples=[64] * 2,
            model_flops=2 * 64 * flops_per_sample,
        ),
        make_window(
            8 * S,
            8 * S + 13 * TICK,
            first_step=3,
            step_ns=[TICK] * 13,
            wait_ns=[10_000] * 13,
            loss=[0.25] * 13,
            samples=[64] * 13,
            model_flops=13 * 64 * flops_per_sample,
            used_bytes=2_000_000,
        ),
    ]


def rank_events() -> list[dict[str, Any]]:
    """Return the events of a rank: 16 steps of 64 samples, 13 of them measured, one evaluation.

    As in a real run, some time between the events belongs to none of them. ``S`` is a second in
    nanoseconds. What does not follow from the steps, such as bytes and rates, is any number.
    """
    return [
        make_event("start", S, pid=4711),
        make_span("init", S, 3 * S),
        make_span("preflight", 3 * S, 4 * S),
        make_span("data_build", 4 * S, 4 * S + 1_000),
        make_span("model_build", 5 * S, 6 * S),
        make_event(
            "facts",
            6 * S,
            device={"name": "Fake CPU", "memory_total_bytes": 8_000_000},
            memory_scope="process",
            precision_flags={"tf32": False},
            matmul_flops_per_second=5e10,
            steps_per_epoch=64,
            collective=None,
        ),
        *_make_windows(),
        make_event(
            "evaluate",
            11 * S,
            epoch=0,
            step=16,
            start_ns=10 * S,
            end_ns=11 * S,
            value=0.9375,
            samples=1_000,
            detail={"loss": 0.25},
            target_reached=True,
        ),
        make_event("trained", 11 * S, start_ns=6 * S, end_ns=11 * S, steps=16, epochs=1),
        make_parameters_event(11 * S),
        make_event(
            "result",
            11 * S,
            job={"parameters": 610, "skipped_steps": 0},
            used_bytes=2_500_000,
            allocator_peak_bytes=None,
            total_bytes=8_000_000,
            memory_scope="process",
        ),
        make_span("finish", 11 * S, 12 * S),
        make_event("end", 12 * S),
    ]
