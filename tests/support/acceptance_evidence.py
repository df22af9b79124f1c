"""Evidence of four devices as an acceptance leaves it, with exact times."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, cast

from trainmark.acceptance.evidence import EvidenceWriter, Joined, Measured, NotMeasured
from trainmark.acceptance.node_session import Acceptance
from trainmark.acceptance.request import AcceptRequest
from trainmark.acceptance.tasks import RankResult
from trainmark.protocols import StepDigest

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.plan.plan import Plan

NODE = "node7"  # the only one; it has all four devices
DEVICES = tuple(f"{NODE}:gpu:{index}" for index in range(4))
# Repeats vary slightly, by the same pattern for all: noise without randomness.
_VARIATION = (1.0, 1.002, 0.998, 1.001, 0.999)


class _ToyPlan:
    """The fields of a plan that are read when a folder is judged."""

    case = "toy"
    recipe_name = "tiny"


def make_acceptance(folder: Path) -> Acceptance:
    """Return an acceptance, which compares the four devices of a machine, in a folder.

    ``NODE`` is the machine's name, and ``DEVICES`` has names such as ``node7:gpu:0``. ``_ToyPlan``
    has the only fields of a plan that are read when the evidence in the folder is judged.
    """
    return Acceptance(
        request=AcceptRequest(case="toy", overrides={"seed": "3"}),
        folder=folder,
        node=NODE,
        plan=cast("Plan", _ToyPlan()),
        device_names=DEVICES,
    )


def make_digests(change: int = 0) -> list[StepDigest]:
    """Return a training of one step; ``change`` is added to its weights."""
    return [StepDigest(loss=(1.0).hex(), gradients={"layer": 5}, weights={"layer": 7 + change})]


class DeviceEvidence:
    """Writes evidence; devices and links that are not named have usual times.

    Args:
        step_s: seconds of a step, by device.
        matmul_s: seconds of a matmul, by device.
        link_s: seconds of a step on a pair of devices, by pair.
        trainings: what each training of a device gave (lists of digests), by device.
        products: the product's name, by device.
        others_cpu_share: share of the cores that other programs used in each round; None: unknown.
    """

    def __init__(
        self,
        folder: Path,
        *,
        step_s: dict[str, float] | None = None,
        matmul_s: dict[str, float] | None = None,
        link_s: dict[tuple[str, str], float] | None = None,
        trainings: dict[str, Any] | None = None,
        products: dict[str, str] | None = None,
        others_cpu_share: float | None = None,
    ) -> None:
        # By device or pair; one that is not named has the usual value.
        self.step_s = step_s or {}
        self.matmul_s = matmul_s or {}
        self.link_s = link_s or {}
        self.trainings = trainings or {}
        self.products = products or {}
        self.others_cpu_share = others_cpu_share
        self.writer = EvidenceWriter(folder, NODE)  # it begins the next session of its node
        self.writer.write(
            Joined,
            node=NODE,
            devices=list(DEVICES),
            software={"torch": "2.13.0"},
            products=[self.products.get(name, "gpu") for name in DEVICES],
        )

    def write_all_phases(self, pair_rounds: int = 2) -> None:
        """Write the rounds of single devices, then ``pair_rounds`` rounds of each pair."""
        # ``DEVICES`` has the names of all four devices, which make six pairs.
        self.write_device_phase(DEVICES)
        for number in range(pair_rounds):
            for first, second in combinations(DEVICES, 2):
                self.write_pair_round(first, second, number)

    def write_device_phase(self, names: tuple[str, ...]) -> None:
        """Write five rounds of each device; the first also holds its two trainings.

        ``_VARIATION`` has a factor for each round, from 0.998 to 1.002: times vary a little. By
        default a step takes 0.1 s, a matmul 0.01 s, and both trainings have the same digests.
        """
        for number, factor in enumerate(_VARIATION):
            for name in names:
                seconds = {
                    "step": [factor * self.step_s.get(name, 0.1)],
                    "matmul": [factor * self.matmul_s.get(name, 0.01)],
                }
                runs = []
                if number == 0:
                    runs = self.trainings.get(name, [make_digests(), make_digests()])
                result = self._result(name, rank=0, seconds=seconds, trainings=runs)
                self._write("devices", number, (name,), [result])

    def write_pair_round(
        self, first: str, second: str, number: int = 0, *, fault: str | None = None
    ) -> None:
        """Write a round of a pair; the usual step takes twice that of its slower device.

        Args:
            fault: what both ranks say of the result of their all-reduce; None: it was right.
        """
        # A device's usual step takes 0.1 s. ``_VARIATION`` has a factor near 1 for each round.
        usual_s = 2 * max(self.step_s.get(name, 0.1) for name in (first, second))
        seconds = {"step": [_VARIATION[number] * self.link_s.get((first, second), usual_s)]}
        results = [
            self._result(name, rank, seconds, trainings=[], fault=fault)
            for rank, name in enumerate((first, second))
        ]
        self._write("pairs", number, (first, second), results)

    def write_machine_round(self, *, fault: str | None = None) -> None:
        """Write a round of all devices together.

        Args:
            fault: what every rank says of the result of its all-reduce; None: it was right.
        """
        # ``DEVICES`` and ``NODE``: the names of the four devices and of their machine.
        results = [
            # 0.4 s: the usual time of a step on four devices, twice that of a pair.
            self._result(name, rank, {"step": [0.4]}, trainings=[], fault=fault)
            for rank, name in enumerate(DEVICES)
        ]
        self._write("nodes", 0, (NODE,), results)

    def write_failed_round(
        self, phase: str, members: tuple[str, ...], reason: str, number: int = 0
    ) -> None:
        """Write a round that failed.

        Args:
            phase: ``devices``, ``pairs`` or ``nodes``: what took part in the round.
            members: the names of those that took part.
            reason: ``deadline``, ``failed`` (an error) or ``stopped`` (a signal to the acceptance).
        """
        self.writer.write(
            NotMeasured,
            phase=phase,
            round=number,
            members=list(members),
            reason=reason,
            error="why",  # any text
        )

    def _result(
        self,
        name: str,
        rank: int,
        seconds: dict[str, list[float]],
        trainings: Any,
        fault: str | None = None,
    ) -> RankResult:
        """Return what the rank that trained on a device reports of a round.

        Args:
            name: of the device.
            rank: 0 if it trained alone, else its place among the devices of the round.
            seconds: of each repetition, by what was timed: ``step`` or ``matmul``.
            trainings: the digests of its trainings, if the round compares them.
            fault: what is wrong with its all-reduce; None: nothing.
        """
        return RankResult(
            rank=rank,
            device=DEVICES.index(name),
            product=self.products.get(name, "gpu"),
            seconds=seconds,
            trainings=trainings,
            faults={} if fault is None else {"all_reduce": fault},
        )

    def _write(self, phase: str, number: int, members: tuple[str, ...], results: Any) -> None:
        """Write a round that was measured.

        Args:
            phase: ``devices``, ``pairs`` or ``nodes``: what took part in the round.
            number: of the round in its phase, from 0.
            members: the names of the devices or nodes that took part.
            results: what each of their ranks reported.
        """
        self.writer.write(
            Measured,
            phase=phase,
            round=number,
            members=list(members),
            results=results,
            others_cpu_share=self.others_cpu_share,
        )
