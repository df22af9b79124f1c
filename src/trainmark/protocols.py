"""Interfaces of a job, a device and a vendor, as the measured loop and planning use them.

Owns these Protocols and the values they exchange. Does not import torch: tensors are typed
``Any``, so that fakes and launchers can use the same interfaces.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from trainmark.spec import Message, Precision, RankMemory, Recipe


@dataclass(frozen=True, slots=True)
class Counts:
    """Samples, sequences and tokens of a piece of training.

    ``tokens`` excludes padding, ``tokens_padded`` includes it; both are 0 for a case
    without tokens.
    """

    samples: int = 0
    sequences: int = 0
    tokens: int = 0
    tokens_padded: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.samples + other.samples,
            self.sequences + other.sequences,
            self.tokens + other.tokens,
            self.tokens_padded + other.tokens_padded,
        )

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch as a rank gets it.

    Args:
        tensors: inputs of the model, in tuples, lists, dicts and dataclasses of any depth: on
            the host as ``Job.batches`` yields them, on the device as ``Job.step`` gets them,
            where their copy may still be in progress.
        counts: what this rank trains with it; zero where a rank only takes part in the
            reduction because the last step has fewer samples than ranks.
        step_samples: samples of the whole optimizer step over all ranks, so that every
            sample weighs the same however unevenly the step is split.
        closes_step: whether it is this rank's last micro-batch of the step.
        shared_samples: with tensor parallelism, samples of this batch that another rank of
            the same replica counts; ``counts`` is then zero.
    """

    tensors: Any
    counts: Counts
    step_samples: int
    closes_step: bool
    shared_samples: int = 0

    @property
    def samples_trained(self) -> int:
        """Samples whose losses the batch adds up, counted here or elsewhere."""
        return self.counts.samples + self.shared_samples


@dataclass(slots=True)
class StepStages:
    """Device time of the stages of a step that a job reports separately.

    A job enters ``stage`` within its steps; the loop reads the sums at the edge of a window.
    Stages must not overlap.
    """

    _marks: list[tuple[str, Any, Any]] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, device: Device) -> Iterator[None]:
        """Add the device time of the work inside the ``with`` block to ``name``."""
        start = device.mark()
        yield
        self._marks.append((name, start, device.mark()))

    def take_ns(self, device: Device) -> dict[str, int]:
        """Return the time of each stage since the last call; synchronise the device first."""
        sums: dict[str, int] = {}
        for name, start, end in self._marks:
            sums[name] = sums.get(name, 0) + device.elapsed_ns(start, end)
        self._marks.clear()
        return sums


@dataclass(frozen=True, slots=True)
class RankWork:
    """What one rank did in its windows after the warm-up; a case computes its own figures from it.

    Args:
        parts_ns: device time of the stages of steps, by name; see ``StepStages``.
        facts: result of ``Job.facts``; empty if the job did not reach its end.
    """

    counts: Counts
    windows_ns: int
    wait_ns: int
    parts_ns: Mapping[str, int]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobContext:
    """Everything from which a job is built on one rank.

    Args:
        memory: what each rank can have, the same on all; None: ask the device.
    """

    recipe: Any
    data_dir: Path
    rank: int
    world_size: int
    device: Device
    stages: StepStages = field(default_factory=StepStages)
    memory: RankMemory | None = None


class Job(Protocol):
    """The torch side of a case on one rank.

    A case's ``job.py`` offers ``load_data(context) -> data`` and
    ``build(context, data) -> Job``; the worker times the two separately.
    """

    steps_per_epoch: int  # optimizer steps of an epoch, the short last one included

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches of ``epoch`` in a new order each epoch.

        Tensors are on the host. Another thread reads them ahead of the step, so the order must
        not depend on torch's global random state, and tensors yielded earlier must stay as they
        are.
        """

    def step(self, batches: Iterator[Batch]) -> Any | None:
        """Take one optimizer step; return the mean loss of this rank's samples.

        The loss stays on the device. None when ``batches`` was already exhausted.
        """

    def check(self) -> None:
        """Raise an error if training failed in a way that the loss does not show.

        Called at the edge of a window, after the device was synchronised.
        """

    def trained_parameters(self) -> Mapping[str, Any]:
        """Return the trained parameters that this rank holds, by name: tensors or DTensors.

        The tensors themselves, not copies, without frozen ones. A table or parameter that is
        sharded over ranks has the same name on each. Called before the first step; the loop
        inspects the returned tensors until the run ends.
        """

    def updates(self) -> int:
        """Return how many steps so far should have changed parameters.

        All steps except those skipped by the loss scaler and those with a learning rate of 0.
        Called at the edge of a window, after the device was synchronised.
        """

    def evaluate(self) -> Evaluation:
        """Score the validation data over all ranks, each row counted once."""

    def model_flops(self, counts: Counts) -> float | None:
        """Return the model FLOPs of training ``counts``; None where no formula applies."""

    def facts(self) -> Mapping[str, Any]:
        """Return facts for the record: parameter count, formula id, engine."""


@runtime_checkable
class OwnEpoch(Protocol):
    """A job whose epoch differs from its training data: it drops the last rows or repeats some."""

    samples_per_epoch: int  # over all ranks


@runtime_checkable
class ReadsInPortions(Protocol):
    """A job that reads several batches at a time, so that at least as many are read ahead."""

    batches_per_portion: int


@runtime_checkable
class SavesArtifacts(Protocol):
    """A job that saves files after training, trained weights for instance."""

    def save(self, folder: Path) -> None:
        """Write files below ``folder``. Every rank calls it, but only the first one writes."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The quality over all ranks and how many rows it was computed from.

    Args:
        value: NaN if there is no quality.
        detail: further figures over all rows.
        reason: why there is no quality, if the job knows.
        breakdown: figures over groups of rows, by kind of group and name of the group.
    """

    value: float
    samples: int
    detail: Mapping[str, float] = field(default_factory=dict)
    reason: Message | None = None
    breakdown: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of device memory: allocator peak, device-wide use, and the total.

    ``scope`` says what ``used_bytes`` covers: ``device`` or ``process``.
    """

    allocator_peak_bytes: int | None
    used_bytes: int | None
    total_bytes: int | None
    scope: str


# Keys that ``describe`` and ``set_precision`` must return, because figures and pages read them.
DESCRIBE_KEYS = ("name", "vendor", "memory_total_bytes")
PRECISION_KEYS = ("tf32", "autocast", "deterministic")


class MatmulRate(NamedTuple):
    """The rate of a large matmul, and how much it changed during the measurement.

    Args:
        swing: share by which one half of the repetitions was slower than the other; None
            for a single repetition.
    """

    flops_per_second: float
    swing: float | None


class Device(Protocol):
    """One accelerator as a rank uses it. Torch is imported inside the methods only."""

    name: str
    torch_type: str

    def mark(self) -> Any:
        """Return a point in the device's stream of work (host time on a CPU)."""

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Return the device time between two marks; both must have been synchronised."""

    def synchronize(self) -> None:
        """Wait until the device has finished all work given to it."""

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Copy scalar losses to the host in one transfer."""

    def pin(self, tensor: Any) -> Any:
        """Return a host tensor from which ``place`` copies without waiting; it may be the same.

        Called by another thread than the other methods, while the device works.
        """

    def place(self, value: Any) -> Any:
        """Move a tensor or module to the device; the copy may still be in progress."""

    def set_precision(self, precision: Precision) -> dict[str, Any]:
        """Set the precision of matmuls; return the flags that are then in effect.

        Keys: at least ``PRECISION_KEYS``.
        """

    def memory(self) -> MemoryUse:
        """Return memory use since the process started."""

    def matmul_rate(self, precision: Precision) -> MatmulRate:
        """Measure the rate of a large square matmul in ``precision``."""

    def copy_bytes_per_second(self) -> float:
        """Measure the rate of a large copy within the device's memory, read plus written."""

    def describe(self) -> dict[str, Any]:
        """Return product name, driver, memory and similar facts for the record.

        Keys: at least ``DESCRIBE_KEYS``.
        """


@runtime_checkable
class ReportsClocks(Protocol):
    """A device that can tell its clocks; not every vendor's management library does."""

    def clocks(self) -> dict[str, float | None]:
        """Return clocks and limits by name with the unit in it; None for an unknown one."""


@runtime_checkable
class ReplaysGraphs(Protocol):
    """A device whose kernels torch records as graphs, for recipes that ``replays_graphs``."""

    def begin_step(self) -> None:
        """Say that a step begins: the graphs' outputs of the last one are no longer needed."""

    def graphs_left_out(self) -> int | None:
        """Return how many compiled graphs torch runs without a recording; None: unknown."""


@runtime_checkable
class ForbidsSynchronization(Protocol):
    """A device that can tell where the host waits for it; ``conformance.synchronization`` asks."""

    def forbid_synchronization(self) -> AbstractContextManager[None]:
        """Return a context in which every wait of the host for the device raises an error."""


class Refusal(NamedTuple):
    """Why a device cannot run something, and the way out."""

    why: str
    way_out: str


class Vendor(Protocol):
    """A kind of device as planning uses it, without importing torch.

    ``counts_cores``: ``count`` counts processor cores, which ranks share. More ranks than cores
    are then allowed and labelled ``oversubscribed``. Otherwise each rank needs its own device.
    ``recorded_variables``: environment variables that affect its devices, for instance the one
    that hides devices; they must not contain secrets, because they go into the record.
    """

    name: str
    torch_type: str
    collective_backend: str
    recorded_variables: tuple[str, ...]
    counts_cores: bool

    def count(self) -> int:
        """Return how many devices ranks can use here; 0 when there are none."""

    def product_names(self) -> list[str]:
        """Return the product name of each device."""

    def rank_memory(self, nproc: int) -> RankMemory | None:
        """Return the memory available to one of ``nproc`` ranks; None if only torch can tell."""

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        """Return why ``recipe`` on ``nproc`` ranks cannot run here, or None.

        Also a recipe that ``replays_graphs`` where torch records no graphs of these devices.
        """

    def driver_version(self) -> str | None:
        """Return the driver's version; None if there is no driver or it cannot be found out."""

    def open(self, local_rank: int, ranks_here: int) -> Device:
        """Return the device of one rank. No earlier call may import torch."""

    def collective_library(self) -> str:
        """Return name and version of the collective library; called by a rank."""


class Occupant(NamedTuple):
    """A process on a device that is not of this run.

    Args:
        process: its name and number, as far as they can be found out.
        used_bytes: the device's memory that it holds; None: unknown.
        computes: it may compute there; otherwise it only draws.
    """

    device: str
    process: str
    used_bytes: int | None
    computes: bool

    def said(self) -> str:
        """Return what is on the device, in words."""
        memory = "" if self.used_bytes is None else f", {self.used_bytes / 2**30:.1f} GiB"
        return f"{self.device}: used by {self.process}{memory}"


@runtime_checkable
class Diagnoses(Protocol):
    """A vendor that can tell what is wrong with its devices before a rank opens one."""

    def unusable(self) -> Refusal | None:
        """Return why devices that are here cannot be used; None if they can or none is here."""

    def occupants(self, nproc: int) -> list[Occupant]:
        """Return the processes on the devices of ``nproc`` ranks; called before they start."""


def members(protocol: type) -> list[str]:
    """Return the attributes and methods that ``protocol`` requires."""
    methods = [name for name, value in vars(protocol).items() if callable(value)]
    return [*protocol.__annotations__, *(name for name in methods if not name.startswith("_"))]


def missing_members(value: object, protocol: type) -> list[str]:
    """Return the members of ``protocol`` that ``value`` lacks."""
    return [name for name in members(protocol) if not hasattr(value, name)]
