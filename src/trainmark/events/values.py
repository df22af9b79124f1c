"""The numbers of a record with their bounds; sums over windows; facts of machines and jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import ConfigDict, with_config

# Before Python 3.12, pydantic refuses the TypedDict of the standard library.
from typing_extensions import TypedDict

from trainmark.protocols import Counts, RankWork

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.events.schema import Window

# Bounds within which all real values lie and no later computation overflows.
Count = Annotated[int, Ge(0), Le(2**63 - 1)]
Int64 = Annotated[int, Ge(-(2**63)), Le(2**63 - 1)]
Number = Annotated[float, Ge(-1e150), Le(1e150)]
Amount = Annotated[float, Ge(0), Le(1e150)]
_FACTS = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


@with_config(_FACTS)
class DeviceFacts(TypedDict, total=False):
    """Facts of a rank's device."""

    name: str
    vendor: str
    memory_total_bytes: Count | None


@with_config(_FACTS)
class JobFacts(TypedDict, total=False):
    """Facts of a rank's job at its end, as far as several cases have them."""

    parameters: Count | None
    trainable_parameters: Count | None
    predicted_peak_bytes: Count | None
    kernels: dict[str, str] | None
    skipped_steps: Count | None
    flops_formula: str


@with_config(_FACTS)
class DeviceUser(TypedDict):
    """A process of others on a device of this run; see ``protocols.Occupant``."""

    device: str
    process: str
    used_bytes: Count | None
    computes: bool


PhaseName = Literal["compile", "warmup", "train"]


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(slots=True)
class Phase:
    """Sums over the windows of one phase on one rank.

    Args:
        windows_ns: from the start to the end of each window.
        step_ns: time of the steps; the rest of a window is in no step.
        wait_ns: time for which steps waited for data.
        tokens: without padding.
        tokens_padded: with padding.
        model_flops: None if those of a window are not known.
        parts_ns: time of the stages of steps, by name.
    """

    windows_ns: Count = 0
    step_ns: Count = 0
    wait_ns: Count = 0
    steps: Count = 0
    micro_batches: Count = 0
    samples: Count = 0
    sequences: Count = 0
    tokens: Count = 0
    tokens_padded: Count = 0
    graphs_compiled: Count = 0
    model_flops: Number | None = 0.0
    parts_ns: dict[str, Count] = field(default_factory=dict)

    def add(self, window: Window, samples: int) -> None:
        """Add a window of the phase to the sums.

        Args:
            samples: number of samples of all its steps.
        """
        self.windows_ns += window.end_ns - window.start_ns
        self.step_ns += sum(window.step_ns)
        self.wait_ns += sum(window.wait_ns)
        self.steps += len(window.step_ns)
        self.samples += samples
        self.micro_batches += window.micro_batches
        self.sequences += window.sequences
        self.tokens += window.tokens
        self.tokens_padded += window.tokens_padded
        self.graphs_compiled += window.graphs_compiled
        if window.model_flops is None or self.model_flops is None:
            self.model_flops = None  # the sum is not known
        else:
            self.model_flops += window.model_flops
        for part, spent_ns in window.parts_ns.items():
            self.parts_ns[part] = self.parts_ns.get(part, 0) + spent_ns

    @property
    def counts(self) -> Counts:
        """Return what the phase trained."""
        return Counts(self.samples, self.sequences, self.tokens, self.tokens_padded)


class RankSums:
    """What a rank trained, by phase and over all."""

    phases: dict[PhaseName, Phase]

    @property
    def counts(self) -> Counts:
        """Return what the rank trained."""
        return sum((phase.counts for phase in self.phases.values()), Counts())

    def make_work(self, facts: Mapping[str, Any]) -> RankWork:
        """Return the data from which a case computes its own figures.

        They are sums over the steps after the warm-up: the samples, sequences and tokens trained,
        the time of the windows, the part of it that steps waited for data, and the device time of
        each named part of a step (ns).

        Args:
            facts: what the rank's job reported of itself at its end, by name.
        """
        measured = self.phases["train"]  # figures leave out the steps of compile and warmup
        return RankWork(
            counts=measured.counts,
            windows_ns=measured.windows_ns,
            wait_ns=measured.wait_ns,
            parts_ns=measured.parts_ns,
            facts=facts,
        )

    @property
    def steps(self) -> int:
        """Return the optimizer steps that the rank reported."""
        return sum(phase.steps for phase in self.phases.values())

    @property
    def micro_batches(self) -> int:
        """Return the micro-batches of all phases."""
        return sum(phase.micro_batches for phase in self.phases.values())

    @property
    def total_windows_ns(self) -> int:
        """Return the time of all windows."""
        return sum(phase.windows_ns for phase in self.phases.values())

    @property
    def total_step_ns(self) -> int:
        """Return the time of all steps, without the time of windows that is in no step."""
        return sum(phase.step_ns for phase in self.phases.values())

    @property
    def total_wait_ns(self) -> int:
        """Return the time for which steps waited for data."""
        return sum(phase.wait_ns for phase in self.phases.values())
