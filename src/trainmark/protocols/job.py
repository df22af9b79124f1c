"""What a job is to the measured loop: batches, steps, evaluation, and the counts of each.

Tensors are typed ``Any``: no torch here, so that fakes and launchers can use the same interfaces.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trainmark.protocols.device import Device
    from trainmark.spec import Message, RankMemory


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
        counts: what this rank trains with it; zero if the rank only takes part in the reduction,
            because the last step has fewer samples than ranks.
        step_samples: samples of the whole optimizer step over all ranks, so that every
            sample weighs the same however unevenly the step is split.
        closes_step: whether it is this rank's last micro-batch of the step.
        shared_samples: with tensor parallelism, samples of this batch that another rank of
            the same replica counts; ``counts`` is then zero.
        identity: tensors on the host with a row for each sample, which tell samples apart; None:
            ``tensors`` have a row for each sample.
    """

    tensors: Any
    counts: Counts
    step_samples: int
    closes_step: bool
    shared_samples: int = 0
    identity: Any = None

    @property
    def samples_trained(self) -> int:
        """Samples whose losses the batch adds up.

        With tensor parallelism, several ranks train the same samples and one of them counts them;
        on the others, ``counts`` is zero and ``shared_samples`` has their number.
        """
        return self.counts.samples + self.shared_samples


@dataclass(slots=True)
class StepStages:
    """Device time of the stages of a step that a job reports separately.

    A job enters ``stage`` within its steps. The training loop reads the sums at the end of each
    window, which is a number of steps between two synchronisations. Stages must not overlap.
    """

    # The name of each stage that was entered, with the device's marks at its start and end.
    _marks: list[tuple[str, Any, Any]] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, device: Device) -> Iterator[None]:
        """Note when the work inside the ``with`` block starts and ends on the device.

        Args:
            name: of the stage, to whose sum ``take_ns`` adds this time.
        """
        start = device.mark()  # in the device's queue: it is reached when the work before it ends
        yield
        self._marks.append((name, start, device.mark()))

    def take_ns(self, device: Device) -> dict[str, int]:
        """Return the time of each stage since the last call.

        The caller must have synchronised the device.
        """
        sums: dict[str, int] = {}
        for name, start, end in self._marks:
            sums[name] = sums.get(name, 0) + device.elapsed_ns(start, end)
        self._marks.clear()
        return sums


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is, over all its launches: where it continues from a checkpoint.

    Args:
        epoch: the current one, counted from 0; ``steps_of_epoch`` of its steps are done.
        samples: of all ranks.
    """

    steps: int = 0
    epoch: int = 0
    steps_of_epoch: int = 0
    samples: int = 0


PROGRESS_FILE = "progress.json"  # in a checkpoint's folder


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

    A job may also have ``samples_per_epoch``, over all ranks, if its epoch differs from its
    training data, and ``save(folder)``, which writes files after training: every rank calls it, and
    the first writes.
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

        The loss stays on the device. None: ``batches`` was already exhausted.
        """

    def check(self) -> None:
        """Raise an error if training failed in a way that the loss does not show.

        For example, gradients may overflow even at the smallest loss scale. Called between two
        windows of steps, after the device was synchronised.
        """

    def trained_parameters(self) -> Mapping[str, Any]:
        """Return the trained parameters that this rank holds, by name: tensors or DTensors.

        The tensors themselves, not copies, without frozen ones. A parameter or an embedding table
        that is sharded over ranks has the same name on each. Called before the first step; the loop
        inspects the returned tensors until the run ends.
        """

    def updates(self) -> int:
        """Return how many steps so far should have changed parameters.

        All steps except those skipped by the loss scaler and those with a learning rate of 0.
        Called between two windows of steps, after the device was synchronised.
        """

    def evaluate(self) -> Evaluation:
        """Score the validation data over all ranks, each row counted once.

        Every rank returns the quality over all ranks, and in ``scores`` the rows that it scored
        itself with the sum of their scores, a ``RankScores``.
        """

    def model_flops(self, counts: Counts) -> float | None:
        """Return the model FLOPs of training ``counts``; None: no formula applies."""

    def facts(self) -> Mapping[str, Any]:
        """Return facts for the record: parameter count, formula id, engine."""


@dataclass(frozen=True, slots=True)
class RankScores:
    """What one rank scored in an evaluation, before ranks are added up.

    The harness compares it over ranks, with the validation data and with the rows of training.
    ``train.evaluation.EvaluationSum`` collects it.

    Args:
        rows: rows of the validation data that this rank scored.
        keys: a key of each of the first of them, uint64: equal rows have equal keys.
        total: sum of this rank's scores; None: the quality is not a mean.
        weight: the sum of the totals of all ranks, divided by the sum of their weights, is the
            mean. A row weighs at least 1.
        of: name of the detail that is this mean, for example ``val_loss`` of a perplexity; empty:
            the mean is the value itself.
    """

    rows: int
    keys: Any
    total: float | None = None
    weight: float | None = None
    of: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The quality over all ranks and how many rows it was computed from.

    Args:
        value: NaN if there is no quality.
        detail: further figures over all rows.
        reason: why there is no quality, if the job knows.
        breakdown: figures over groups of rows, by kind of group and name of the group.
        scores: what this rank scored; None: the harness cannot check the evaluation.
    """

    value: float
    samples: int
    detail: Mapping[str, float] = field(default_factory=dict)
    reason: Message | None = None
    breakdown: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    scores: RankScores | None = field(default=None, compare=False)
