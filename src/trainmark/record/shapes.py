"""The schema of every event and of the facts of devices and jobs.

Owns which keys an event must have, with type and range, so that readers of events and records
can rely on them. A key that is not named here is allowed and unchecked. Of an event whose name
is not in the table, only the time is checked.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json

# pydantic refuses the standard library's before Python 3.12.
from typing_extensions import TypedDict

from trainmark.devices.numa import compact, parse_cores

_SHAPE = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
_MOST = 2**62  # nanoseconds: 146 years; sums of two still fit 64 bits

Nanoseconds = Annotated[int, Ge(-_MOST), Le(_MOST)]
Spent = Annotated[int, Ge(0), Le(10**18)]  # nanoseconds: 31 years
Count = Annotated[int, Ge(0), Le(10**12)]  # of one window
Bytes = Annotated[int, Ge(0), Le(_MOST)]
Number = Annotated[float, Ge(-1e100), Le(1e100)]  # products of two are still finite
Amount = Annotated[float, Ge(0), Le(1e100)]
Rate = Annotated[float, Gt(0), Le(1e100)]
Rank = Annotated[int, Ge(0), Le(10**6)]
Scores = dict[str, Number | None]
PhaseName = Literal["compile", "warmup", "train"]


@with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class Said(TypedDict):
    """A message: code and arguments; see ``spec.Message``."""

    code: str
    args: dict[str, str | int | float | bool | None]


@with_config(_SHAPE)
class DeviceFacts(TypedDict, total=False):
    """Facts of a rank's device."""

    name: str
    vendor: str
    memory_total_bytes: Bytes | None


@with_config(_SHAPE)
class JobFacts(TypedDict, total=False):
    """Facts of a rank's job at its end, as far as several cases have them."""

    parameters: Bytes | None
    trainable_parameters: Bytes | None
    predicted_peak_bytes: Bytes | None
    kernels: dict[str, str] | None
    skipped_steps: Bytes | None
    flops_formula: str
    artifacts: list[str]


@with_config(_SHAPE)
class CompilerCounts(TypedDict):
    """What torch's compiler did on a rank; see ``results.compilation.Compilation``."""

    graphs: Count
    graph_breaks: Count
    cache_hits: Count
    cache_misses: Count
    cache_bypasses: Count
    graphs_left_out: Count | None


@with_config(_SHAPE)
class RankPlacement(TypedDict):
    """Where a rank ran; see ``devices.numa.Placement``."""

    numa_nodes: list[Count]
    cores: str
    threads: Count
    why_not: str | None
    usable_cores: NotRequired[Count]


@with_config(_SHAPE)
class _Event(TypedDict):
    t_ns: Nanoseconds


class _Timed(_Event):
    start_ns: Nanoseconds
    end_ns: Nanoseconds


class _WindowSums(_Timed):
    event: Literal["window"]
    phase: PhaseName
    epoch: Count
    sequences: Count
    tokens: Count
    tokens_padded: Count
    micro_batches: Count
    model_flops: Amount | None
    used_bytes: Bytes | None
    parts_ns: NotRequired[dict[str, Spent]]
    graphs_compiled: NotRequired[Count]
    check_ns: NotRequired[Spent]


class _Window(_WindowSums):
    step_ns: Annotated[list[Spent], MinLen(1)]
    wait_ns: list[Spent]
    loss: list[Number | None]
    samples: list[Count]
    step_samples: list[Count]


class _UnboundedWindow(_WindowSums):
    step_ns: Annotated[list[int], MinLen(1)]
    wait_ns: list[int]
    loss: list[float | None]
    samples: list[int]
    step_samples: list[int]


class _Span(_Timed):
    event: Literal["span"]
    name: str


class _Start(_Event):
    event: Literal["start"]
    pid: Count


class _Facts(_Event):
    event: Literal["facts"]
    device: DeviceFacts
    steps_per_epoch: NotRequired[Count]
    memory_scope: NotRequired[str]
    precision_flags: NotRequired[dict[str, str | int | float | bool | None] | None]
    matmul_flops_per_second: NotRequired[Rate | None]
    matmul_swing: NotRequired[Annotated[float, Ge(0), Le(1)] | None]
    collective: NotRequired[str | None]
    placement: NotRequired[RankPlacement | None]
    samples_per_epoch: NotRequired[Count | None]
    shares_cores: NotRequired[bool]


class _Evaluate(_Timed):
    event: Literal["evaluate"]
    epoch: Count
    step: Count
    value: Number | None
    samples: Count
    detail: Scores
    target_reached: bool
    reason: NotRequired[Said | None]
    parts: NotRequired[dict[str, Scores]]


class _Trained(_Timed):
    event: Literal["trained"]
    steps: Count
    epochs: Count
    samples: NotRequired[Bytes]
    evaluations: NotRequired[Count]
    whole_epochs: NotRequired[Count]
    check_ns: NotRequired[Spent]


class _Parameters(_Event):
    event: Literal["parameters"]
    changed: list[str]
    unchanged: list[str]
    gradient: list[str]
    no_gradient: list[str]
    updates: Count


class _Result(_Event):
    event: Literal["result"]
    job: JobFacts
    compiler: NotRequired[CompilerCounts | None]
    used_bytes: Bytes | None
    allocator_peak_bytes: NotRequired[Bytes | None]


@with_config(_SHAPE)
class _Report(TypedDict):
    """The report of a rank that failed."""

    kind: Literal[
        "oom", "diverged", "disk_full", "error", "impossible_figure", "untimed_work", "not_trained"
    ]
    type: str
    message: Said
    place: str
    traceback: str


class _Error(_Event, _Report):
    event: Literal["error"]


class _End(_Event):
    event: Literal["end"]


@with_config(_SHAPE)
class DeviceUser(TypedDict):
    """A process of others on a device of this run; see ``protocols.Occupant``."""

    device: str
    process: str
    used_bytes: Bytes | None
    computes: bool


@with_config(_SHAPE)
class Machine(TypedDict, total=False):
    """Facts about the machine, found by the launcher; unknown ones are null or absent."""

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
    memory_total_bytes: Bytes | None
    driver: str | None
    container: str | None
    container_version: str | None
    container_image: str | None
    container_digest: str | None
    network: str | None
    pip_index: str | None
    variables: dict[str, str]
    device_users: list[DeviceUser]


class _Synced(_Event):
    """After the first barrier of all ranks, which they leave at about the same time."""

    event: Literal["synced"]
    unix_ns: Nanoseconds


@with_config(_SHAPE)
class _Condition(TypedDict):
    code: str
    severity: Literal["stops", "spoils"]
    what: str


class _Examined(_Event):
    """What ``trainmark doctor --quick`` found on a node before its ranks were started."""

    event: Literal["examined"]
    found: list[_Condition]


class _Refused(_Event):
    """Why a node did not start its ranks."""

    event: Literal["refused"]
    unix_ns: Nanoseconds
    message: Said


class _Job(_Event):
    """A new state of the engine's job; see ``launch.contract.JobState``."""

    event: Literal["job"]
    phase: Literal["waiting", "running", "ended"]
    said: str
    ending: Literal[
        "completed", "failed", "cancelled", "timed_out", "preempted", "node_lost",
        "out_of_memory", "refused", "unknown",
    ] | None  # fmt: skip
    exit_code: Annotated[int, Ge(-(2**31)), Le(2**31)] | None
    lost: list[Rank]


class _Launch(_Event):
    event: Literal["launch"]
    unix_ns: Nanoseconds
    started: str
    argv: list[str]
    environment: Machine
    node: NotRequired[Rank]


@with_config(_SHAPE)
class _FailedRank(TypedDict):
    rank: Rank
    exit_code: Annotated[int, Ge(-(2**31)), Le(2**31)]
    time_s: Amount
    report: NotRequired[_Report | None]


class _AgentExit(_Event):
    event: Literal["agent_exit"]
    exit_code: Annotated[int, Ge(-(2**31)), Le(2**31)]
    failures: list[_FailedRank]
    others_cpu_share: NotRequired[Annotated[float, Ge(0), Le(1)] | None]


@with_config(_SHAPE)
class StackGroup(TypedDict):
    """Ranks that were at one place when their stacks were saved; see ``measure.hang``.

    A record adds how many they are, and least and greatest of the steps that they last reported.
    """

    ranks: Annotated[str, AfterValidator(lambda text: compact(parse_cores(text)))]  # as 0-3,8
    state: Literal["collective", "waits", "elsewhere", "silent", "unknown"]
    call: str | None  # the collective, or in what they wait
    where: str
    count: NotRequired[Count]
    steps: NotRequired[list[Count]]


class _Stop(_Event):
    event: Literal["stop"]
    reason: Literal["timeout", "launcher_killed", "launcher_error", "signal", "files_lost"]
    timeout_s: NotRequired[Amount]
    message: NotRequired[str]
    signal: NotRequired[str]
    stacks: NotRequired[list[str]]
    hang: NotRequired[list[StackGroup]]
    files: NotRequired[list[str]]


class _OomKills(_Event):
    event: Literal["oom_kills"]
    count: Count


class _Unknown(_Event):
    event: str


_STOP_NEEDS = {
    "timeout": "timeout_s",
    "launcher_error": "message",
    "signal": "signal",
    "files_lost": "files",
}
# The bounds of ``_Window``, for lists that were read without.
BOUNDS_OF_STEPS = {
    "step_ns": (0, 10**18),
    "wait_ns": (0, 10**18),
    "loss": (-1e100, 1e100),
    "samples": (0, 10**12),
    "step_samples": (0, 10**12),
}


def _consistent(event: dict[str, Any]) -> dict[str, Any]:
    """Refuse an event whose fields contradict each other."""
    if "end_ns" in event and event["end_ns"] < event["start_ns"]:
        raise ValueError("end_ns is before start_ns")
    if event["event"] == "window":
        steps, waits, losses = len(event["step_ns"]), len(event["wait_ns"]), len(event["loss"])
        if not steps == waits == losses == len(event["samples"]) == len(event["step_samples"]):
            raise ValueError("step_ns, wait_ns, loss, samples, step_samples differ in length")
    if event["event"] == "stop":
        name = _STOP_NEEDS.get(event["reason"])
        if name is not None and name not in event:
            raise ValueError(f"a stop for {event['reason']} has {name}")
    return event


# Its validator is called directly: 0.5 us less for a line of 10 us.
_UNBOUNDED = TypeAdapter(_UnboundedWindow).validator
_WINDOW_BEGINS = b'{"event":"window",'  # as ``events.EventWriter`` writes it
_KNOWN: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        _Window
        | _Span
        | _Start
        | _Facts
        | _Evaluate
        | _Trained
        | _Parameters
        | _Result
        | _Error
        | _End
        | _Launch
        | _Synced
        | _Examined
        | _Refused
        | _Job
        | _AgentExit
        | _Stop
        | _OomKills,
        Field(discriminator="event"),
        AfterValidator(_consistent),
    ]
)
_ANY: TypeAdapter[Any] = TypeAdapter(_Unknown)


def read_event(line: bytes) -> dict[str, Any]:
    """Return the event of one line.

    Raises:
        ValueError: not JSON, or an event that does not match the schema.
    """
    try:
        event: dict[str, Any] = _KNOWN.validate_json(line)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] != "union_tag_invalid":
            raise
        event = _ANY.validate_python(from_json(line, allow_inf_nan=False))
    return event


def read_event_unbounded(line: bytes) -> dict[str, Any]:
    """Return the event of one line as ``read_event`` does, in two thirds of the time.

    The numbers of single steps in a window may be outside of ``BOUNDS_OF_STEPS``.

    Raises:
        ValueError: as ``read_event``.
    """
    if line.startswith(_WINDOW_BEGINS):
        try:
            return _consistent(_UNBOUNDED.validate_json(line))
        except ValidationError:
            pass  # malformed, or with a name given twice: the union decides
    return read_event(line)
