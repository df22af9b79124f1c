"""The record of a run: its schema, and how it is written and read.

A record is immutable once written and written atomically; ``reduce`` computes it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, model_validator, with_config
from pydantic_core import to_json

# pydantic refuses the standard library's before Python 3.12.
from typing_extensions import Self, TypedDict

from trainmark import __version__, documents
from trainmark.documents import Frozen
from trainmark.errors import RecordError
from trainmark.events.schema import LAUNCHER_FILE, HangGroup
from trainmark.events.series import SeriesLine  # noqa: TC001 - pydantic reads it at run time
from trainmark.events.values import (
    Amount,
    Count,
    DeviceFacts,
    DeviceUser,
    Int64,
    JobFacts,
    Number,
    Phase,
    PhaseName,
    RankSums,
)
from trainmark.plan.plan import PLAN_FILE, Plan, is_empty, is_none, read_plan
from trainmark.record import stats
from trainmark.record.printed_speed import PrintedSpeed  # noqa: TC001 - pydantic reads it at run time
from trainmark.record.replays import Replays  # noqa: TC001 - pydantic reads it at run time
from trainmark.spec import Message  # noqa: TC001 - likewise
from trainmark.telemetry.summary import Telemetry  # noqa: TC001 - pydantic reads it at run time
from trainmark.validation import find_first_misfit

if TYPE_CHECKING:
    from pathlib import Path

RECORD_FILE = "record.json"
# In the folder of an acceptance test, which has no record: its options, and its plans.
ACCEPTANCE_REQUEST_FILE = "request.json"
ACCEPTANCE_PLANS_DIR = "plans"
# Name of a file beside the record: no path into another folder.
EVIDENCE_NAME = (
    r"^(events\.(launcher|job|(rank|node)[0-9]{1,6})\.jsonl|plan\.json|"
    r"telemetry(\.node[0-9]{1,6})?\.jsonl)$"
)
Verification = Literal["verified", "unverified", "contradicted"]  # the worst last
Status = Literal["passed", "target_missed", "failed", "timed_out", "oom", "diverged", "interrupted"]
# Figures of every record, null with a reason if unknown.
_REQUIRED_FIGURES = ("e2e_time", "final_result", "mem", "MFU", "MAMFU")


class Cause(Frozen):
    """Why a run did not pass."""

    kind: str = Field(description="error, signal, exit, oom, diverged, disk_full, timeout, …")
    message: Message
    rank: Count | None = None
    place: str | None = Field(default=None, description="span or phase that the rank was in")
    type: str | None = Field(default=None, description="type of the exception")
    signal: str | None = None
    exit_code: Int64 | None = None
    traceback: str | None = None
    stacks: list[str] = Field(
        default=[], description="files with the stacks of the ranks, next to the record"
    )
    hang: list[HangGroup] = Field(
        default=[], description="where the ranks were, according to their stacks"
    )


class Suite(Frozen):
    """The version of Trainmark that made the measurement."""

    name: Literal["trainmark"] = "trainmark"
    version: str


class RunCounts(Frozen):
    """Counts of the training, summed over all ranks; steps are optimizer steps."""

    samples: Count
    sequences: Count
    tokens: Count = Field(description="without padding")
    tokens_padded: Count
    steps: Count
    micro_batches: Count
    epochs: Count = Field(description="epochs that began; the last one may have ended early")
    skipped_steps: Count | None = Field(description="steps that the loss scaler skipped")


class RankEntry(Frozen, RankSums):
    """One rank: its spans and sums, from which and the steps all figures are computed."""

    rank: Count
    finished: bool
    epochs: Count = Field(description="begun")
    wall_ns: Int64 | None = Field(
        description="until the rank ended, or until the launcher saw its end"
    )
    spans_ns: dict[str, Int64]
    train_ns: Int64 | None = Field(
        description=(
            "from the start of the training to its end, including evaluation, without "
            "Trainmark's own checks"
        )
    )
    phases: dict[PhaseName, Phase]
    step_ns: Count | None = Field(default=None, description="median time of the measured steps")
    matmul_flops_per_second: Number | None = Field(default=None, description="in preflight")
    matmul_swing: Amount | None = Field(
        default=None,
        description="how much less time the faster half of that measurement took than the slower "
        "half, as a fraction",
    )
    memory_scope: str | None = None
    used_bytes: Count | None = Field(description="highest reading of the memory in use")
    allocator_peak_bytes: Count | None = None
    job: JobFacts | None = Field(
        default=None,
        exclude_if=is_none,
        description="facts of the rank's job if they differ from rank 0",
    )

    @property
    def wait_ns(self) -> int | None:
        """Return the mean time that a measured step waits for data; None: no step was measured."""
        # The phase ``train`` has the steps after the warm-up, which are the measured ones.
        measured = self.phases["train"]
        return measured.wait_ns // measured.steps if measured.steps else None


class Spans(Frozen):
    """The wall time of the rank that ended last, divided into spans that add up to it."""

    rank: Count
    wall_ns: Int64 | None = Field(description="null: the rank never started")
    by_name_ns: dict[str, Int64]
    train_parts_ns: dict[str, Int64]


class Steps(Frozen):
    """Step by step: slowest rank's time, mean loss over ranks, samples over ranks."""

    warmup: Count
    time_ns: list[Count]
    loss: list[Number | None]
    samples: list[Count]

    @property
    def drift(self) -> float | None:
        """Return how the step time changed after the warm-up: above 0 if steps became slower.

        It is the relative change of the median from the first third of these steps to the last
        third; None: there are too few steps, or the first median is 0.
        """
        return stats.measure_drift(np.array(self.time_ns[self.warmup :], np.int64))

    @property
    def steady(self) -> bool | None:
        """Tell whether the last steps took about as long as the first ones after the warm-up.

        None: there is no ``drift``, the relative change from the first ones to the last, because
        there are too few steps or the first ones took no time.
        """
        drift = self.drift
        if drift is None:
            return None
        return abs(drift) <= stats.STEADY_DRIFT

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        """Refuse lists of different lengths: each has one entry for each step."""
        if not len(self.time_ns) == len(self.loss) == len(self.samples):
            raise ValueError("time_ns, loss and samples must have the same length")
        return self


class FigureEntry(Frozen):
    """A figure, or null with the reason."""

    value: Number | None
    unit: str
    reason: Message | None = None
    note: Message | None = None


@with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class ScoredEntry(TypedDict):
    """What all ranks scored in an evaluation.

    ``rows``: how many; ``digest``: of which rows, the same however they lie on ranks; ``mean``: of
    their scores, recomputed from the ranks' sums, of the detail ``of`` or, where that is empty, of
    the value; null: the quality is not a mean.
    """

    rows: Count
    digest: str
    mean: Number | None
    of: str


class QualityPoint(Frozen):
    """One evaluation."""

    epoch: Count
    step: Count
    value: Number | None
    samples: Count
    detail: dict[str, Number | None]
    parts: dict[str, dict[str, Number | None]] = Field(default_factory=dict)
    scored: ScoredEntry | None = Field(default=None, exclude_if=is_none)


class Quality(Frozen):
    """The quality the run ended with, against its target."""

    metric: str
    value: Number | None
    target: Number | None
    reached: bool | None
    best_possible: Number | None
    eval_samples: Count | None
    history: list[QualityPoint]
    reason: Message | None = None


class Evidence(Frozen):
    """A file beside the record from which it was computed."""

    name: Annotated[str, Field(pattern=EVIDENCE_NAME)]
    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


Grade = Literal["usable", "noisy", "do_not_quote"]


class Trust(Frozen):
    """How far the figures can be trusted, and why; ``record.trust`` has the rule."""

    grade: Grade
    reasons: list[Message]


@with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class Environment(TypedDict, total=False):
    """Hardware and software of the run: the machine, and what ranks reported of their devices.

    Unknown facts are null or absent. Only devices and jobs may add keys that are not listed here.
    """

    commit: str | None
    packages: dict[str, str | None]
    python: str
    os: str
    kernel: str
    architecture: str
    machine: str | None
    cpu: str
    cpu_cores: Count | None
    numa_nodes: Count | None
    memory_total_bytes: Count | None
    driver: str | None
    container: str | None
    container_version: str | None
    container_image: str | None
    container_digest: str | None
    network: str | None
    variables: dict[str, str]
    device_users: list[DeviceUser]
    others_cpu_share: Number | None
    node_names: list[str | None]  # of the machines with ranks: rank r is on number r // nproc
    nodes: list[dict[str, str]]  # of several: facts in which each differs from the first
    devices: list[DeviceFacts | None]
    precision_flags: dict[str, str | int | float | bool | None] | None
    attention: str  # torch's kernels of it in the first step, which none has if compiled
    attention_flags: dict[str, bool]  # kernels of it that could run
    collective: str | None
    job: JobFacts | None


class Record(Frozen):
    """One launch of one case: all measurements and their environment."""

    schema_version: Literal[1] = 1
    suite: Suite
    run_id: str
    started: str = Field(description="UTC, ISO 8601")
    status: Status
    cause: Cause | None
    trust: Trust
    plan: Plan
    argv: list[str]
    environment: Environment
    counts: RunCounts
    spans: Spans
    ranks: list[RankEntry]
    steps: Steps
    telemetry: Telemetry | None = Field(default=None, description="null: no telemetry was sampled")
    series: list[SeriesLine] = Field(
        default=[], description="what the charts show of the run over time"
    )
    printed: list[PrintedSpeed] = Field(
        default=[],
        exclude_if=is_empty,
        description="speed that a user's program printed itself",
    )
    figures: dict[str, FigureEntry]
    quality: Quality
    replays: Replays | None = Field(default=None, description="null: no window was repeated")
    labels: list[str]
    findings: list[Message] = Field(
        description=(
            "what the reader must know about the figures, with the numbers behind it; see "
            "record.messages"
        )
    )
    evidence: list[Evidence]
    verification: Verification = Field(
        default="unverified",
        description="result of the check against the evidence; never in record.json",
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        """Refuse a record that lacks a required figure, or whose cause contradicts its status."""
        missing_figures = [name for name in _REQUIRED_FIGURES if name not in self.figures]
        if missing_figures:
            raise ValueError(f"figures must have {missing_figures[0]}")
        if (self.cause is None) != (self.status == "passed"):
            raise ValueError(
                "a run that passed must not have a cause of failure, and any other run must "
                "have one"
            )
        return self

    @property
    def passed(self) -> bool:
        """Tell whether the run passed."""
        return self.status == "passed"

    def figure(self, name: str) -> float | None:
        """Return the value of a figure; None if the record has none, or has no such figure."""
        entry = self.figures.get(name)
        return None if entry is None else entry.value


def write_record(record: Record, run_dir: Path) -> Path:
    """Write ``record.json`` atomically; an existing record is never replaced.

    Raises:
        RecordError: the record already exists.
        OSError: the disk is full or the folder read-only.
    """
    path = run_dir / RECORD_FILE
    if path.exists():
        raise RecordError(
            "the record already exists",
            where=str(path),
            rule="an existing record is never overwritten",
        )
    with documents.write_atomically(path) as file:
        file.write(serialize_record(record))
    return path


def serialize_record(record: Record) -> bytes:
    """Return the content of ``record.json``: one line for each top-level key."""
    # The verification is not stored, because it is the result of a check of the stored record.
    lines = [
        b'"%s": %s' % (name.encode(), to_json(value))
        for name, value in record
        if name != "verification"
    ]
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def read_record(path: Path) -> Record:
    """Read a record from ``record.json`` or from its run directory, without checking its evidence.

    Raises:
        RecordError: no such file, not a regular one, too large, or not a record of this schema.
    """
    file = path / RECORD_FILE if path.is_dir() else path
    try:
        record = Record.model_validate_json(documents.read_bytes(file), strict=True)
    except FileNotFoundError:
        folder = file.parent
        if is_acceptance_folder(folder):
            raise make_acceptance_error(folder) from None
        # A folder with the launcher's events is a run directory. Without the plan, its record
        # cannot be computed from the events either.
        is_run_dir = file.name == RECORD_FILE and (folder / LAUNCHER_FILE).exists()
        if is_run_dir and not (folder / PLAN_FILE).exists():
            raise RecordError(
                f"{PLAN_FILE} is missing",
                where=str(folder),
                rule=f"a missing record is computed from {PLAN_FILE} and the events",
                fix="restore the file, or measure again",
            ) from None
        # Commands that read a run first call ``launch.run_dir.make_record``, which makes a missing
        # record from plan and events, or says why it cannot. So nothing is advised on that here.
        what, fix = "no such file or folder", "check the path"
        if file.name == RECORD_FILE and folder.is_dir():
            what, fix = "no record found", "pass a run directory or its record.json"
        raise RecordError(what, where=str(file), fix=fix) from None
    except (OSError, ValueError) as error:
        what = "not a record of this schema"
        rule = "a record can only be read by the version of Trainmark that wrote it"
        fix = (
            "pass a run directory or its record.json; print the schema with `trainmark list schema`"
        )
        if isinstance(error, ValidationError) and _read_suite_version(file) == __version__:
            what = "not a valid record"
            rule = f"the record must be unchanged since Trainmark {__version__} wrote it"
            fix = "restore the file, or measure again"
        elif isinstance(error, ValidationError) and find_first_misfit(error).kind == "json_invalid":
            what = "not a record"
            rule = "a record is a complete JSON document, as Trainmark wrote it"
            fix = "pass a run directory or its record.json"
        if _can_be_computed_again(file):
            fix = (
                f"remove {RECORD_FILE}, then run `trainmark report {file.parent}` to compute the "
                "record again from the events"
            )
        raise documents.make_damage_error(error, file, what, rule=rule, fix=fix) from None
    # Only a check of the evidence can verify a record. A file that says that it is verified, which
    # Trainmark never writes, is not believed.
    return record.model_copy(update={"verification": "unverified"})


def is_acceptance_folder(folder: Path) -> bool:
    """Tell whether a folder is that of an acceptance test, by its request and its plans.

    Both are written before the test measures anything, so that an interrupted test has them, too.
    """
    # Other folders may have a file of this name, but not also plans in such subfolders.
    return (folder / ACCEPTANCE_REQUEST_FILE).exists() and any(
        folder.glob(f"{ACCEPTANCE_PLANS_DIR}/*-devices/{PLAN_FILE}")
    )


def make_acceptance_error(folder: Path) -> RecordError:
    """Return the error of reading the folder of an acceptance test as that of a run."""
    return RecordError(
        "this is the folder of an acceptance test, not of a run",
        where=str(folder),
        rule="an acceptance test has no record",
        fix=(
            "open page.html in this folder, or resume the test by repeating its "
            "`trainmark accept` command with --out set to this folder"
        ),
    )


def _read_suite_version(file: Path) -> str | None:
    """Return the version of Trainmark that wrote a record, as its file says; None: it does not."""
    try:
        return str(json.loads(documents.read_bytes(file))["suite"]["version"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _can_be_computed_again(file: Path) -> bool:
    """Tell whether ``trainmark report`` can compute the record of this file's folder again.

    The folder must have the launcher's events and a valid plan, by which the ranks ran on this
    machine: the record of a run on other machines is computed only by ``trainmark run --attach``.
    """
    folder = file.parent
    if file.name != RECORD_FILE or not (folder / LAUNCHER_FILE).exists():
        return False
    try:
        # Processes that start the ranks on other machines; 0: the launcher itself started them.
        return read_plan(folder).node_processes == 0
    except RecordError:
        return False


def describe_schema() -> str:
    """Return the JSON Schema of ``record.json`` as the text that is shipped and printed."""
    described = Record.model_json_schema(mode="serialization")
    return json.dumps(described, indent=2, sort_keys=True) + "\n"
