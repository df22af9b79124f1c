"""The result of an acceptance: ``acceptance.json``, computed from the evidence of all nodes.

It can be made again at any time, from what was measured so far.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainmark import documents
from trainmark.acceptance.groups import Outcome  # noqa: TC001 - pydantic reads it at run time
from trainmark.documents import Frozen
from trainmark.errors import EXIT_FAILED, EXIT_NOISY, EXIT_PASSED

if TYPE_CHECKING:
    from pathlib import Path

RESULT_FILE = "acceptance.json"
Decision = Literal["pass", "fail", "undecided"]
# Files with the names of the members of each decision, one a line.
LIST_FILES: dict[Decision, str] = {
    "pass": "passing.txt",
    "fail": "failing.txt",
    "undecided": "undecided.txt",
}
Code = Literal[
    "slow",
    "slow_network",
    "slow_group",
    "slow_hot",
    "slow_unknown",
    "slow_link",
    "link_failed",
    "group_failed",
    "computes_differently",
    "wrong_result",
    "failed",
    "no_answer",
]
Doubt = Literal[
    "not_measured",
    "too_few_rounds",
    "no_peers",
    "interval",
    "interval_after_few_rounds",
    "differs_without_majority",
]


class Interval(Frozen):
    """By what share something takes longer than its peers, and the ends of the interval."""

    slower: float
    low: float
    high: float


class Finding(Frozen):
    """One reason why a member fails.

    Args:
        quantity: what was measured: ``step``, ``matmul``, ``all_reduce`` …; None: no time.
        members: of a link its two ends, of a group all of it.
        text: what a rank said, or which tensor differed, in English.
    """

    code: Code
    quantity: str | None = None
    interval: Interval | None = None
    members: tuple[str, ...] = ()
    text: str = ""


class Member(Frozen):
    """A device or node with its verdict.

    Args:
        step: of the training step; None if it was not measured, or has no peers.
        doubt: why it is undecided.
        more_rounds: rounds that would decide; None: decided, or no number of rounds would.
    """

    name: str
    product: str
    decision: Decision
    findings: tuple[Finding, ...] = ()
    step: Interval | None = None
    step_s: float | None = Field(None, description="median seconds of a step alone")
    doubt: Doubt | None = None
    more_rounds: int | None = None


class Link(Frozen):
    """Two members, and what their link adds to the step of the slower one."""

    members: tuple[str, str]
    quantity: str
    decision: Decision
    interval: Interval
    rounds: int


class Bits(Frozen):
    """How the devices of one product and software computed the same training."""

    product: str
    control: Literal["deterministic", "not_deterministic", "no_majority", "not_measured"]
    devices: int


class Quantity(Frozen):
    """What is known of one kind of time.

    Args:
        noise: standard deviation of a measurement of a member alone, as a share.
        noise_of_pairs: that of a pair in a round.
        trend: share by which all pairs became slower over the rounds, which was removed.
        detectable_link: share by which a link must be slower to be noticed in 95 of 100 cases.
    """

    name: str
    worse_by: float
    noise: float | None = None
    noise_of_pairs: float | None = None
    trend: float | None = None
    detectable_link: float | None = None


class PeerGroup(Frozen):
    """Members that are compared with each other, and with no others.

    Args:
        software: versions by package, of those packages alone in which groups differ.
    """

    members: tuple[str, ...]
    products: tuple[str, ...]
    software: dict[str, str | None]


class Whole(Frozen):
    """All comparable nodes in one training, and what was found of groups among them.

    Args:
        interval: by what share it is slower than its nodes alone and in pairs predict; None: it
            failed.
        groups: that are slow, or fail, only together with others.
        parts: that are fast by themselves; where ``cannot_tell``, what connects them is slow.
    """

    num_members: int
    outcome: Outcome
    interval: Interval | None
    groups: tuple[tuple[str, ...], ...] = ()
    parts: tuple[tuple[str, ...], ...] = ()


class MeasurementFacts(Frozen):
    """What was measured in all sessions, when, and with which software.

    Args:
        rounds: number of rounds with a result, by phase.
        devices: number of devices of all nodes that took part.
        software: versions by package, the driver's among them, of those packages that all nodes
            have in the same version; ``peer_groups`` has the others.
        others_cpu_share: share of the cores that other programs used during the rounds, by node.
    """

    started: str | None = Field(description="UTC, ISO 8601; null: no round was measured")
    ended: str | None = Field(description="UTC, ISO 8601; end of the last round")
    duration_s: float = Field(description="of all sessions, without the time between them")
    sessions: int
    rounds: dict[str, int]
    devices: int
    software: dict[str, str]
    others_cpu_share: dict[str, float]


class AcceptanceResult(Frozen):
    """The verdicts of an acceptance.

    Args:
        unit: what is accepted: the devices of one machine, or nodes.
        interrupted: the signal that ended it before all was measured; None: none did.
        not_measured: rounds that failed, in words.
        peer_groups: of members; of one machine's devices they differ in the product alone.
        baseline: what times alone were compared with in place of those of the peers.
        overrides: the recipe fields that the user changed, as the user wrote them.
        measurement: None: an earlier version wrote the result.
    """

    schema_version: Literal[1] = 1
    suite_version: str
    unit: Literal["device", "node"]
    case: str
    recipe: str
    phases: list[str]
    members: list[Member]
    links: list[Link]
    bits: list[Bits]
    quantities: list[Quantity]
    wholes: tuple[Whole, ...] = ()
    baseline: str | None = None
    peer_groups: tuple[PeerGroup, ...] = ()
    overrides: dict[str, str] = Field({})
    measurement: MeasurementFacts | None = None
    not_measured: tuple[str, ...] = ()
    interrupted: str | None = None

    def list_names(self, decision: Decision) -> list[str]:
        """Return the members of one decision, in their order."""
        return [member.name for member in self.members if member.decision == decision]

    @property
    def exit_code(self) -> int:
        """Return 0 if all pass, 1 if some fail, else 3.

        It is 3 if some are undecided, if a signal ended the measurement, or if there are no
        members. Rounds of ``not_measured`` do not count by themselves: a member that is at fault
        for one fails, and one that was measured too little is undecided.
        """
        if self.list_names("fail"):
            return EXIT_FAILED
        if self.list_names("undecided") or not self.members or self.interrupted:
            return EXIT_NOISY
        return EXIT_PASSED

    def write(self, folder: Path) -> None:
        """Write the result and the lists of names, each whole or not at all."""
        files = {RESULT_FILE: self.model_dump_json(indent=2) + "\n"}
        for decision, name in LIST_FILES.items():
            files[name] = "".join(f"{member}\n" for member in self.list_names(decision))
        for name, text in files.items():
            with documents.write_atomically(folder / name) as file:
                file.write(text.encode())


def read_result(folder: Path) -> AcceptanceResult:
    """Read the result of an acceptance.

    Raises:
        RecordError: there is none, or it is damaged.
    """
    path = folder / RESULT_FILE
    try:
        return AcceptanceResult.model_validate_json(documents.read_bytes(path))
    except (OSError, ValueError) as error:
        rule = "the file must have been written by `trainmark accept --out FOLDER`"
        raise documents.make_damage_error(
            error, path, "not the result of an acceptance test", rule=rule
        ) from None


def describe_schema() -> str:
    """Return the JSON schema of ``acceptance.json``."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    document |= AcceptanceResult.model_json_schema(mode="serialization")
    return json.dumps(document, indent=2) + "\n"
