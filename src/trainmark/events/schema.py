"""The events of a run: what ranks, nodes, launcher and sampler write, one JSON object a line.

Declares every event once, for writing and for reading. Guarantees that every complete line of a
file is valid after a kill at any byte: a line is written with its newline last, and the reader
leaves out an incomplete last line.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

# Before Python 3.12, pydantic refuses the TypedDict of the standard library.
from typing_extensions import TypedDict

from trainmark.errors import RecordError
from trainmark.protocols.monitor import DeviceSample, FaultKind  # noqa: TC001 - read at run time
from trainmark.ranges import count_numbers
from trainmark.spec import Message  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAUNCHER_FILE = "events.launcher.jsonl"
JOB_EVENTS_FILE = "events.job.jsonl"  # states of an engine's job
TELEMETRY_FILE = "telemetry.jsonl"
MAX_LINE_BYTES = 64 << 20
MAX_HANGING_RANKS = 1 << 20  # of a run; far more than any has
# A record's numbers fit into signed integers of 64 bits. A power of two divides 2 ** 64, so that a
# sum of 64-bit keys has the same remainder if it has overflowed.
KEY_DIGEST_MODULUS = 1 << 62


def name_node_file(node: int) -> str:
    """Return the name of the event file of one machine's node process."""
    return f"events.node{node}.jsonl"


def name_telemetry_file(node: int | None) -> str:
    """Return the name of a machine's samples; None: of a run on one machine."""
    return TELEMETRY_FILE if node is None else f"telemetry.node{node}.jsonl"


def name_rank_file(rank: int) -> str:
    """Return the name of one rank's event file."""
    return f"events.rank{rank}.jsonl"


def drop_non_finite(value: float) -> float | None:
    """Return ``value``, or None if it is NaN or infinite, which JSON cannot represent."""
    return value if math.isfinite(value) else None


# Negative numbers are refused: they come from a clock or a counter that was read wrongly.
Count = Annotated[int, Meta(ge=0)]
SpentNs = Annotated[int, Meta(ge=0)]  # duration in nanoseconds
# Numbers of ranks of one machine, as ``0-3,8``. The limits are far above what a run has; they keep
# a damaged text from filling the memory.
RankRanges = Annotated[
    str,
    Meta(pattern=r"^[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*\Z", max_length=1 << 16),
]
Source = Literal["monitor", "ipmi", "rapl", "host", "kernel"]


class Event(msgspec.Struct, tag_field="event", kw_only=True):
    """An event; ``t_ns`` is the host clock of its writer."""

    t_ns: int


class Timed(Event):
    """A piece of work with its start and end."""

    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise ValueError("end_ns is before start_ns")


class Start(Event, tag="start"):
    """A rank's process began."""

    pid: Count


class Span(Timed, tag="span"):
    """A piece of a rank's work outside of training."""

    name: str


class ClockSync(Event, tag="synced"):
    """A rank left the first barrier of all ranks, which aligns the clocks of nodes.

    Ranks leave a barrier within less than a millisecond of each other.

    Args:
        unix_ns: wall clock of the machine.
    """

    unix_ns: int


class Facts(Event, tag="facts"):
    """What a rank reports of its device and its job before training.

    Args:
        matmul_flops_per_second: the measured rate of the device in the job's precision.
        matmul_swing: how much less time the faster half of its measurement took than the slower
            half, as a share of the slower half's time. The halves are the first and the last
            repetitions.
        step_flops: model FLOPs of a step on this rank, if all its sequences have full length.
        samples_per_epoch: over all ranks; None: an epoch has all samples of the training data.
        collective: library of the collectives; None: there is one rank.
    """

    device: dict[str, Any] = field(default_factory=dict)
    memory_scope: str | None = None
    precision_flags: dict[str, Any] | None = None
    attention_flags: dict[str, bool] = field(default_factory=dict)  # kernels that may run
    matmul_flops_per_second: float | None = None
    matmul_swing: float | None = None
    steps_per_epoch: Count = 0
    step_flops: float | None = None
    samples_per_epoch: Count | None = None
    collective: str | None = None


class Window(Timed, tag="window", kw_only=True, omit_defaults=True, gc=False):
    """The steps between two synchronisations; lists have one entry a step."""

    phase: Literal["compile", "warmup", "train"]
    epoch: Count  # from 0
    first_step: Count = 0  # number of steps before the window
    step_ns: list[SpentNs]
    wait_ns: list[SpentNs]  # for data
    loss: list[float | None]  # mean of this rank's samples; None: not known
    samples: list[Count]  # that the case counted on this rank
    step_samples: list[Count]  # in the step's batches on all ranks, as they declare it
    # The next five are sums over the steps.
    sequences: Count
    tokens: Count  # without padding
    tokens_padded: Count
    micro_batches: Count
    model_flops: float | None  # None: not known
    used_bytes: Count | None  # of the device's memory; None: it reports none
    parts_ns: dict[str, SpentNs] = field(default_factory=dict)  # of stages of steps, by name
    graphs_compiled: Count = 0
    check_ns: SpentNs = 0  # of checks of parameters between the windows

    def __post_init__(self) -> None:
        """Check the times, and that there is a step and each list has an entry for each step.

        ``samples`` are those of this rank, ``step_samples`` those of all ranks.
        """
        super().__post_init__()  # checks the start and the end
        steps, waits, losses = len(self.step_ns), len(self.wait_ns), len(self.loss)
        if not 0 < steps == waits == losses == len(self.samples) == len(self.step_samples):
            raise ValueError(
                "step_ns, wait_ns, loss, samples and step_samples must have the same length"
            )


class BitDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Where two trainings of the same steps first differ on one rank.

    Args:
        step: counted from 1.
        part: a weight with which the step was computed, this rank's loss, or a gradient before it
            is reduced over ranks; in the order of their computation.
        tensor: name of the parameter; None for the loss.
    """

    step: Count
    part: Literal["weight", "loss", "gradient"]
    tensor: str | None = None


class Replay(Timed, tag="replay"):
    """The repeats of a window; see ``rank.replay``.

    Args:
        first_step: number of steps before the window.
        difference: what this rank computed otherwise in its first pass or first repeat.
    """

    first_step: Count
    steps: Count
    repeats: Count
    control: Literal["not_needed", "deterministic", "not_deterministic"]
    difference: BitDifference | None = None


class Scored(msgspec.Struct, kw_only=True):
    """What a rank scored in an evaluation; see ``protocols.RankScores``.

    Args:
        rows: number of rows that it scored.
        keys: number of them that have a key; equal rows have equal keys.
        digest: sum of the keys of its rows modulo ``KEY_DIGEST_MODULUS``, the same in any order.
        distinct: number of different keys among them.
        known: number of keys of training rows that this rank had noted.
        trained: number of these that it scored.
        total: sum of the scores; None: the quality is not a mean.
        weight: sum of the weights of the rows; None: the quality is not a mean.
        of: name of the detail that is the mean; empty: the value of the evaluation is.
    """

    rows: Count
    keys: Count
    digest: Count
    distinct: Count
    known: Count
    trained: Count
    total: float | None = None
    weight: float | None = None
    of: str = ""


class Evaluate(Timed, tag="evaluate"):
    """An evaluation of the model."""

    epoch: Count
    step: Count
    value: float | None
    samples: Count
    detail: dict[str, float | None]
    target_reached: bool
    reason: Message | None = None
    parts: dict[str, dict[str, float | None]] = field(default_factory=dict)
    scores: Scored | None = None


class Trained(Timed, tag="trained"):
    """The end of training, with the loop's own counts."""

    steps: Count
    epochs: Count
    whole_epochs: Count = 0
    check_ns: SpentNs = 0


class Parameters(Event, tag="parameters"):
    """Which trained parameters changed, by name."""

    changed: dict[str, bool]
    gradients: dict[str, bool]  # whether any value of the first gradients was not zero
    updates: Count
    sums: dict[str, int] = field(default_factory=dict)  # checksums of unsharded parameters


class Result(Event, tag="result"):
    """What a rank knows after training of its job and memory."""

    job: dict[str, Any] = field(default_factory=dict)
    precision_changed: list[str] = field(default_factory=list)  # flags, since they were set
    flops_counted: float | None = None  # of matmuls in the first step
    attention: list[str] = field(default_factory=list)  # kernels that ran in the first step
    rows: list[int] = field(default_factory=list)  # digests of rows of the first epoch
    used_bytes: Count | None = None
    allocator_peak_bytes: Count | None = None
    evaluation_unchecked: bool = False  # the job does not say which rows it scored


class Error(Event, tag="error"):
    """The report of a rank that failed, in its own file."""

    kind: str
    type: str
    message: Message
    place: str
    traceback: str


class End(Event, tag="end"):
    """A rank's process or the sampler ends."""


class Launch(Event, tag="launch"):
    """A launcher or a node process began; ``environment`` are facts of its machine.

    Args:
        node_name: that the engine or the machine gives itself.
    """

    unix_ns: int
    started: str
    argv: list[str]
    environment: dict[str, Any]
    node: int | None = None
    node_name: str | None = None


class RefusedEvent(Event, tag="refused"):
    """Why a node did not start its ranks."""

    message: Message


class JobEvent(Event, tag="job"):
    """A new state of the engine's job; see ``launch.launchers.JobState``.

    Args:
        text: the state in the engine's own words.
    """

    phase: Literal["waiting", "running", "ended", "lost"]
    text: str


class FailedRank(msgspec.Struct, kw_only=True):
    """A rank that ended with a code other than 0, and when."""

    rank: Count
    exit_code: int
    t_ns: int


class RanksEnded(Event, tag="ranks_ended"):
    """How the ranks of a machine ended."""

    failures: list[FailedRank]
    others_cpu_share: float | None = None


class HangGroup(TypedDict):
    """Ranks that were at one place when their stacks were saved; see ``rank.hang``."""

    ranks: RankRanges  # their numbers, such as ``0-3,8-11``
    state: Literal["collective", "waits", "elsewhere", "silent"]
    call: str | None  # the collective, or in what they wait
    where: str


class Stop(Event, tag="stop"):
    """Why the ranks were stopped from outside, or never started.

    Args:
        timeout_s: the time limit that has passed.
        message: what failed in the launcher or in code of the case.
        type: of the exception that code of the case raised outside a rank, with its ``fix``,
            ``place`` and ``traceback``.
        signal: name of the signal that asked to stop.
        stacks: names of the files with the call stacks of the ranks at the time limit.
        hang: where the ranks were at the time limit, in groups of ranks at the same place. The
            number of ranks is limited, because reading a damaged file would list them all.
        node: number of the node that stopped its ranks; None: the launcher stopped all.
    """

    reason: Literal["timeout", "launcher_killed", "launcher_error", "case_error", "signal"]
    timeout_s: float = 0.0
    message: str = ""
    fix: str = ""
    type: str = ""
    place: str = ""
    traceback: str = ""
    signal: str = ""
    stacks: list[str] = field(default_factory=list)
    hang: list[HangGroup] = field(default_factory=list)
    node: int | None = None

    def __post_init__(self) -> None:
        num_ranks = sum(count_numbers(group["ranks"]) for group in self.hang)
        if num_ranks > MAX_HANGING_RANKS:
            raise ValueError(
                f"the field hang lists {num_ranks:,} ranks; "
                f"at most {MAX_HANGING_RANKS:,} are allowed"
            )


class OomKills(Event, tag="oom_kills"):
    """How many processes the kernel's out-of-memory killer ended."""

    count: Count


class Finished(Event, tag="finished"):
    """A launcher or a node process ends."""


class Sampling(Event, tag="sampling"):
    """The sampler began, or opened its monitor."""

    interval_s: float
    monitor: str | None
    devices: list[int]
    host_sources: list[str]
    pid: int | None = None


class DevicesEvent(Event, tag="devices"):
    """A reading of the ranks' devices."""

    took_ns: SpentNs
    devices: list[DeviceSample]


class HostEvent(Event, tag="host", omit_defaults=True):
    """A reading of the machine."""

    took_ns: SpentNs
    utilization_percent: float | None = None
    memory_used_bytes: Count | None = None
    power_w: float | None = None  # of the whole machine
    energy_j: float | None = None  # of the processors' packages


class KernelLogEvent(Event, tag="kernel_log"):
    """The sampler began to read the kernel's messages."""

    source: str


class KernelEvent(Event, tag="kernel"):
    """Messages of the kernel about devices, of one kind; see ``telemetry.kernel``.

    Args:
        count: how many came since the last reading.
        kernel_text: the first of them.
    """

    kind: str
    count: Count
    kernel_text: str


class FaultEvent(Event, tag="fault"):
    """A source gives no readings from now on.

    Args:
        text: what it printed or raised, in one line.
    """

    source: Source
    kind: FaultKind
    text: str


class PrintedValues(msgspec.Struct, kw_only=True):
    """The values of one quantity in a program's output; see ``witness.printed``.

    Args:
        lines: with a value, of which ``values`` may be a part.
        raw: the first of them.
    """

    quantity: str
    lines: Count
    values: list[float]
    raw: str


class Printed(Event, tag="printed"):
    """What a program of the user's own printed of its speed."""

    speeds: list[PrintedValues]


RunEvent = (
    Start
    | Span
    | ClockSync
    | Facts
    | Window
    | Replay
    | Evaluate
    | Trained
    | Parameters
    | Result
    | Error
    | End
    | Launch
    | RefusedEvent
    | JobEvent
    | RanksEnded
    | Stop
    | OomKills
    | Finished
    | Sampling
    | DevicesEvent
    | HostEvent
    | KernelLogEvent
    | KernelEvent
    | FaultEvent
    | Printed
)
_EVENT_TYPES: dict[Any, Any] = {kind.__struct_config__.tag: kind for kind in RunEvent.__args__}
read_event: Callable[[bytes], Any] = msgspec.json.Decoder(RunEvent).decode


class EventWriter:
    """Append events to one file; each is a whole line on disk, or counts as absent.

    A file has one writer at a time, so an event that the system writes in several parts stays
    whole; threads that share a writer need a lock. Only the probe in a user's program may add an
    error to a file that another process writes: one short line, which the system appends whole
    unless the disk is almost full.

    An incomplete line, left by a full disk or by a writer that was killed, is ended by a newline
    before the next event, so that only one event is lost.

    Args:
        clock: returns the time of the host's clock in nanoseconds.

    Raises:
        OSError: from the file system, a full disk for instance; the caller decides whether its work
            goes on.
    """

    def __init__(self, path: Path, clock: Callable[[], int]) -> None:
        self._clock = clock
        # Opened for reading too, because ``emit`` looks at the last byte.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event, stamped with the host clock in nanoseconds.

        Args:
            event: its name, such as ``window``.
            fields: values of its fields by name; ``t_ns`` among them replaces the time of writing.

        Raises:
            TypeError: the event has other fields.
        """
        event_type = _EVENT_TYPES[event]
        complete_event = event_type(**{"t_ns": self._clock(), **fields})
        data = msgspec.json.encode(complete_event) + b"\n"
        size = os.fstat(self._fd).st_size
        # End an incomplete line, which a writer that was killed or a full disk has left.
        has_content = size > 0
        if has_content and os.pread(self._fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        while data:  # a system call may write only a part, on a disk that is almost full
            num_written = os.write(self._fd, data)
            data = data[num_written:]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def decode_event(line: bytes) -> dict[str, Any]:
    """Return the event of a line without checking its fields.

    Raises:
        ValueError: not a JSON object, or one without a name.
    """
    event = msgspec.json.decode(line, type=dict[str, Any])
    if "event" not in event:
        raise ValueError("an event must be an object with a name")
    return event


def iterate_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of an event file; a line longer than any event is yielded in pieces.

    A hole in a file, as a full disk or a crash leaves it, is one line of zeros of any length; as a
    whole it might not fit in memory.
    """
    line = file.readline(MAX_LINE_BYTES)
    while line:
        yield line
        line = file.readline(MAX_LINE_BYTES)


def iterate_events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each event of a file with the number of its line, as ``decode_event`` returns it.

    An incomplete last line is left out: its writer was killed. ``EventFile`` counts the lines that
    are not events; here the first one is an error.

    Raises:
        RecordError: the first line that is not an event, with its number.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(iterate_lines(file), 1):
            # A line without a newline is the last one, which a killed writer left incomplete. Or it
            # is the first piece of a line that is longer than any event: it is refused below.
            if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                return
            try:
                read_event(line)  # only checks its fields: the yielded event is a dict
            except ValueError as error:
                raise RecordError(
                    f"not an event: {error}",
                    where=f"{path}:{number}",
                    rule="each line must be an unmodified event of the run",
                ) from None
            yield number, decode_event(line)


@dataclass(slots=True)
class EventFile:
    """The events of one file, read while one iterates over it.

    Args:
        parse: parses a line to an event; a line for which it raises ``ValueError`` is malformed.
        malformed_lines: number of such lines so far; of the whole file after the iteration.
    """

    path: Path
    parse: Callable[[bytes], Any] = decode_event
    malformed_lines: int = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield the events in order; malformed lines are counted instead."""
        self.malformed_lines = 0
        with self.path.open("rb") as file:
            for line in iterate_lines(file):
                if not line.endswith(b"\n"):
                    # Without a newline it is either the last line, which a killed writer left
                    # incomplete: no fault. Or it is the first piece of a line that is longer than
                    # any event. Reading ends, because the next piece does not begin a line.
                    if len(line) == MAX_LINE_BYTES:
                        self.malformed_lines += 1
                    return
                try:
                    event = self.parse(line)
                except ValueError:
                    self.malformed_lines += 1
                else:
                    yield event


class EventTail:
    """Read what is appended to an event file, from call to call.

    The file may not be there yet. Lines that are no events are left out: the run's record, which is
    made from the whole file at the end, counts them.

    Args:
        path: of the file.
        chunk_bytes: how much a call reads at most.
    """

    def __init__(self, path: Path, chunk_bytes: int = MAX_LINE_BYTES) -> None:
        self._path = path
        self._chunk_bytes = chunk_bytes
        self._offset = 0  # bytes of the file that were read
        self._incomplete_line = b""  # end of the last chunk: the next one completes it

    @property
    def is_unread(self) -> bool:
        """Tell whether nothing was read yet."""
        return self._offset == 0

    def read_new(self) -> list[RunEvent]:
        """Return the events of the next chunk; none if nothing was appended.

        Raises:
            OSError: the file is there and cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(self._chunk_bytes)
                self._offset = file.tell()
        except FileNotFoundError:
            return []
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        if len(self._incomplete_line) > MAX_LINE_BYTES:  # no event: a hole in the file
            self._incomplete_line = b""
        events = []
        for line in lines:
            with suppress(ValueError):  # a damaged line is skipped here; the record counts it
                events.append(read_event(line))
        return events
