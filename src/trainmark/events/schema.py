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
MAX_LINE_BYTES = 64 << 20  # of an event's line; far more than any has
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
    """Something that a process of a run writes into its event file.

    Args:
        t_ns: when it was written, or the time that its writer gave instead. Like ``start_ns`` and
            ``end_ns``, it is on the monotonic clock of the writer's machine, in nanoseconds; the
            clocks of two machines count from different moments.
    """

    t_ns: int


class Timed(Event):
    """A piece of work with its start and end, on the clock of ``t_ns``."""

    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise ValueError("end_ns is before start_ns")


class Start(Event, tag="start"):
    """A rank's process began."""

    pid: Count


class Span(Timed, tag="span"):
    """A piece of a rank's work outside of training.

    Args:
        name: such as ``model_build`` or ``checkpoint``; ``replay``: saving the state before a
            window that is then repeated.
    """

    name: str


class ClockSync(Event, tag="synced"):
    """A rank left the first barrier of all ranks, which aligns the clocks of nodes.

    Ranks leave a barrier within less than a millisecond of each other.

    Args:
        unix_ns: wall clock of the machine at the same moment, in nanoseconds since 1970.
    """

    unix_ns: int


class Facts(Event, tag="facts"):
    """What a rank reports of its device and its job before training.

    Args:
        device: facts of the rank's device by name, such as ``name`` and ``memory_total_bytes``.
        memory_scope: whose memory ``used_bytes`` of other events is: of all processes on the device
            (``device``), or of the rank's alone (``process``).
        precision_flags: what is set for the job's precision, by name, such as ``tf32``.
        attention_flags: whether each of torch's attention kernels may run, by its name; empty: the
            device does not tell.
        matmul_flops_per_second: the measured rate of the device in the job's precision; None: not
            measured.
        matmul_swing: how much less time the faster half of its measurement took than the slower
            half, as a share of the slower half's time. The halves are the first and the last
            repetitions.
        steps_per_epoch: optimizer steps of an epoch, the short last one included; 0: not known.
        step_flops: model FLOPs of a step on this rank, if all its sequences have full length; None:
            no formula applies.
        samples_per_epoch: over all ranks; None: an epoch has all samples of the training data.
        collective: library of the collectives; None: there is one rank.
    """

    device: dict[str, Any] = field(default_factory=dict)
    memory_scope: str | None = None
    precision_flags: dict[str, Any] | None = None
    attention_flags: dict[str, bool] = field(default_factory=dict)
    matmul_flops_per_second: float | None = None
    matmul_swing: float | None = None
    steps_per_epoch: Count = 0
    step_flops: float | None = None
    samples_per_epoch: Count | None = None
    collective: str | None = None


class Window(Timed, tag="window", kw_only=True, omit_defaults=True, gc=False):
    """The steps of a rank between two synchronisations; lists have one entry a step.

    Args:
        phase: what its steps are for: only those of ``train`` are measured, after ``compile``, the
            first step, and ``warmup``.
        epoch: from 0.
        first_step: number of steps that this launch took before the window.
        step_ns: duration of each step.
        wait_ns: time for which each step waited for data.
        loss: mean of this rank's samples; None: not known.
        samples: number that the case counted on this rank.
        step_samples: number in the step's batches on all ranks, as this rank's batches declare it;
            only that of this rank if a user's own program does not state it.
        sequences: sum over the steps on this rank, as are the next four.
        tokens: without padding; 0: the case has no tokens.
        tokens_padded: with padding.
        model_flops: None: not known.
        used_bytes: the most device memory that was found in use so far; None: the device does not
            report it.
        parts_ns: time of the stages of steps by name, such as an exchange between ranks.
        graphs_compiled: number of graphs that ``torch.compile`` compiled in the window.
        check_ns: time of the checks of parameters since the event of the last window.
    """

    phase: Literal["compile", "warmup", "train"]
    epoch: Count
    first_step: Count = 0
    step_ns: list[SpentNs]
    wait_ns: list[SpentNs]
    loss: list[float | None]
    samples: list[Count]
    step_samples: list[Count]
    sequences: Count
    tokens: Count
    tokens_padded: Count
    micro_batches: Count
    model_flops: float | None
    used_bytes: Count | None
    parts_ns: dict[str, SpentNs] = field(default_factory=dict)
    graphs_compiled: Count = 0
    check_ns: SpentNs = 0

    def __post_init__(self) -> None:
        """Check the times, and that there is a step and each list has an entry for each step."""
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
        first_step: number of steps that this launch took before the window.
        steps: number of steps of the window.
        repeats: how often the window was repeated.
        control: whether two further repeats agree on all ranks (``deterministic``): only then does
            a difference count. ``not_needed``: the first repeat did not differ on any rank.
        difference: what this rank computed otherwise in its first pass or first repeat; None:
            nothing, or the control was not ``deterministic``.
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
    """An evaluation of the model.

    Args:
        epoch: in which it was made, from 0.
        step: number of steps that this launch took before it.
        value: the quality over all ranks; None: there is none.
        samples: number of rows from which the value was computed, on all ranks.
        detail: further figures over all rows, by name; None: not finite.
        target_reached: the value reached the target of the run.
        reason: why there is no value, if the job knows.
        parts: figures over groups of rows, by kind of group, then by name.
        scores: what this rank scored; None: the job does not tell which rows it scored.
    """

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
    """The end of training, with the loop's own counts.

    Args:
        steps: number of steps that this launch took.
        epochs: number of epochs that were begun, those of earlier launches included.
        whole_epochs: number of epochs, from the first one, that were trained to their end; 0 in a
            launch that continued from a checkpoint.
        check_ns: time of the checks of parameters since the event of the last window.
    """

    steps: Count
    epochs: Count
    whole_epochs: Count = 0
    check_ns: SpentNs = 0


class Parameters(Event, tag="parameters"):
    """Which trained parameters of a rank changed, by name.

    Args:
        changed: whether the parameter differs from its state before training.
        gradients: whether any value of its gradients in the first steps was not zero.
        updates: number of steps that should have changed parameters.
        sums: checksums of unsharded parameters, which must be equal on all ranks.
    """

    changed: dict[str, bool]
    gradients: dict[str, bool]
    updates: Count
    sums: dict[str, int] = field(default_factory=dict)


class Result(Event, tag="result"):
    """What a rank knows after training of its job and memory.

    Args:
        job: facts that the job reports of itself, by name.
        precision_changed: how torch's flags, or matmuls of the first step, differ from the
            precision that was set before training: a text for each difference.
        flops_counted: FLOPs of matmuls in one step, of a case in the first; None: not counted.
        attention: names of the attention kernels that ran in the first step.
        rows: digests of some rows of the first epoch, by which repeated ones are found.
        used_bytes: the most device memory that was found in use so far; None: the device does not
            report it.
        allocator_peak_bytes: largest amount that torch's allocator held; None: not known.
        evaluation_unchecked: an evaluation did not tell which rows it scored.
    """

    job: dict[str, Any] = field(default_factory=dict)
    precision_changed: list[str] = field(default_factory=list)
    flops_counted: float | None = None
    attention: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    used_bytes: Count | None = None
    allocator_peak_bytes: Count | None = None
    evaluation_unchecked: bool = False


class Error(Event, tag="error"):
    """The report of a rank that failed, in its own file.

    Args:
        kind: such as ``oom``, ``disk_full`` or ``error``; see ``rank.failure.classify_error``.
        type: name of the exception's class.
        place: part of the run in which it was raised, such as ``train``.
        traceback: of a long one, the end.
    """

    kind: str
    type: str
    message: Message
    place: str
    traceback: str


class End(Event, tag="end"):
    """A rank's process or the sampler ends."""


class Launch(Event, tag="launch"):
    """A launcher or a node process began.

    Args:
        unix_ns: wall clock of the machine at the same moment, in nanoseconds since 1970.
        started: the same moment in UTC, as ISO 8601 to the second.
        argv: command line of the launcher; of a node, its module and its number.
        environment: facts of the machine by name; empty: the nodes describe themselves, or nothing
            was started.
        node: number of the node; None: the launcher writes the event.
        node_name: name that the cluster's engine gives the machine, else the one it gives itself.
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
    """A rank that ended with a code other than 0.

    Args:
        exit_code: negative: a signal of this number, without the minus, ended it.
        t_ns: when the process that started the rank noticed its end, on that machine's clock.
    """

    rank: Count
    exit_code: int
    t_ns: int


class RanksEnded(Event, tag="ranks_ended"):
    """How the ranks of a machine ended.

    Args:
        failures: the ranks that failed by themselves; empty if they were stopped from outside.
        others_cpu_share: share of the machine's cores, from 0 to 1, that other programs used while
            the ranks ran; None: not measured.
    """

    failures: list[FailedRank]
    others_cpu_share: float | None = None


class HangGroup(TypedDict):
    """Ranks that were at one place when their stacks were saved; see ``rank.hang``."""

    ranks: RankRanges  # their numbers, such as ``0-3,8-11``
    # In a collective; waiting for the device or other ranks; in other code; or without an answer.
    state: Literal["collective", "waits", "elsewhere", "silent"]
    call: str | None  # the collective, or in what they wait; None in the other two states
    where: str  # file, line and function; of silent ranks the state of their process


class Stop(Event, tag="stop"):
    """Why the ranks were stopped from outside, or never started.

    Args:
        timeout_s: the time limit that has passed; 0: none has.
        message: what failed in the launcher or in code of the case; like the other texts, empty if
            the reason has none.
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
        """Check the number of ranks in ``hang``: a group has its ranks as text, like ``0-3,8``."""
        num_ranks = sum(count_numbers(group["ranks"]) for group in self.hang)
        if num_ranks > MAX_HANGING_RANKS:
            raise ValueError(
                f"the field hang lists {num_ranks:,} ranks; "
                f"at most {MAX_HANGING_RANKS:,} are allowed"
            )


class OomKills(Event, tag="oom_kills"):
    """How many processes the kernel's out-of-memory killer ended while the ranks ran.

    Args:
        count: of the whole machine, so that other programs' processes may be among them.
    """

    count: Count


class Finished(Event, tag="finished"):
    """A launcher or a node process ends."""


class Sampling(Event, tag="sampling"):
    """The sampler, which reads devices and machine at regular times, began or opened its monitor.

    Args:
        interval_s: time between two readings.
        monitor: name of the library or tool that reads the devices; None: none was opened yet.
        devices: the monitor's number of the device of each rank of this machine; empty: not known.
        host_sources: names of the sources that can be read of the machine.
        pid: of the sampler's process.
    """

    interval_s: float
    monitor: str | None
    devices: list[int]
    host_sources: list[str]
    pid: int | None = None


class DevicesEvent(Event, tag="devices"):
    """A reading of the ranks' devices.

    Args:
        took_ns: duration of the reading, which ended at ``t_ns``.
        devices: one sample of each device, even if several ranks share it.
    """

    took_ns: SpentNs
    devices: list[DeviceSample]


class HostEvent(Event, tag="host", omit_defaults=True):
    """A reading of the machine; None: it was not read this time.

    Args:
        took_ns: duration of the reading, which ended at ``t_ns``.
        utilization_percent: use of all processors since the reading before, 0 to 100.
        power_w: of the whole machine.
        energy_j: that the processors' packages have used since the sampler began.
    """

    took_ns: SpentNs
    utilization_percent: float | None = None
    memory_used_bytes: Count | None = None
    power_w: float | None = None
    energy_j: float | None = None


class KernelLogEvent(Event, tag="kernel_log"):
    """The sampler began to read the kernel's messages.

    Args:
        source: the file or the program that has them, such as ``dmesg``.
    """

    source: str


class KernelEvent(Event, tag="kernel"):
    """Messages of the kernel about devices, of one kind; see ``telemetry.kernel``.

    Args:
        kind: what the messages report; see ``telemetry.kernel.classify_message``.
        count: how many came since the last reading.
        kernel_text: the first of them.
    """

    kind: str
    count: Count
    kernel_text: str


class FaultEvent(Event, tag="fault"):
    """A source gives no readings from now on.

    Args:
        kind: how it failed; see ``protocols.monitor.MonitorFault``.
        text: what it printed or raised, in one line.
    """

    source: Source
    kind: FaultKind
    text: str


class PrintedValues(msgspec.Struct, kw_only=True):
    """The values of one quantity in a program's output; see ``witness.printed``.

    Args:
        quantity: its name, such as ``tokens_per_second``.
        lines: number of lines with a value; one with several values counts once for each.
        values: in the order of the lines; of very many, only some, evenly spread.
        raw: the first line with a value.
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
        path: of the file, which is made if it is not there.
        clock: returns the time of the machine's monotonic clock in nanoseconds.

    Raises:
        OSError: from the file system, a full disk for instance; the caller decides whether its work
            goes on.
    """

    def __init__(self, path: Path, clock: Callable[[], int]) -> None:
        self._clock = clock
        # Opened for reading too, because ``emit`` looks at the last byte.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event, with the time of writing as ``t_ns``.

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
