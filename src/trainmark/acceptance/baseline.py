"""A baseline: times that members are compared with in place of their peers'.

It comes from an earlier acceptance, or from runs of the same work, and is kept in the folder of the
acceptance, so that every later session judges by the same.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Literal

from trainmark.acceptance.evidence import Evidence
from trainmark.acceptance.model import Baseline
from trainmark.acceptance.result import read_result
from trainmark.acceptance.tasks import STEP
from trainmark.acceptance.times import collect_times
from trainmark.documents import Frozen, write_atomically
from trainmark.errors import UsageError
from trainmark.plan.plan import UNCHECKED, Plan
from trainmark.record.record import ACCEPTANCE_PLANS_DIR
from trainmark.record.trust import is_refuted
from trainmark.record.work import describe_planned_work, describe_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from trainmark.record.record import Record

    BaselineReader = Callable[[Sequence[Plan]], "Baselines"]

BASELINE_FILE = "baseline.json"
AlonePhase = Literal["devices", "nodes"]
# Names of ``describe_planned_work`` that change neither what a step does nor how long it takes.
_UNRELATED_TO_STEPS = {
    "max_epochs",
    "max_steps",
    "eval_every_epochs",
    "eval_every_samples",
    "eval_from_sample",
    "target_value",
    "target_required",
    "warmup_steps",
    "window_steps",
    "world",
    "device_products",
    "ran_world",
    "peak_tflops",
    "resumed_after",
    "suite_version",
    "bound",
}


class BaselineTime(Frozen):
    """The time of one quantity on one product.

    Args:
        phase: ``devices``: of a device alone; ``nodes``: of all devices of a node.
        seconds: median of ``count`` measurements.
    """

    phase: AlonePhase
    product: str
    quantity: str
    seconds: float
    count: int


class Baselines(Frozen):
    """All times of a baseline: earlier times with which devices and nodes are compared.

    Args:
        source: what the user named: runs, or the folder of an earlier acceptance.
        times: by phase (``devices`` or ``nodes``), product and quantity.
    """

    source: str
    times: tuple[BaselineTime, ...]

    def find(self, phase: AlonePhase, product: str, quantity: str) -> Baseline | None:
        """Return the baseline of a quantity on a product; None if there is none.

        A baseline is the median of ``count`` measurements.

        Args:
            phase: ``devices``: the time of a device alone; ``nodes``: that of a whole node alone.
        """
        for time in self.times:
            if (time.phase, time.product, time.quantity) == (phase, product, quantity):
                return Baseline(seconds=time.seconds, count=time.count)
        return None


def save_baselines(folder: Path, baselines: Baselines | None) -> None:
    """Write a baseline to the folder of an acceptance; None: remove that of an earlier session."""
    path = folder / BASELINE_FILE
    if baselines is None:
        path.unlink(missing_ok=True)
        return
    with write_atomically(path) as file:
        file.write(baselines.model_dump_json(indent=2).encode() + b"\n")


def load_baselines(folder: Path) -> Baselines | None:
    """Return the baseline that an acceptance keeps in its folder; None if it has none."""
    path = folder / BASELINE_FILE
    return Baselines.model_validate_json(path.read_bytes()) if path.exists() else None


def read_baselines_of_acceptance(folder: Path, plans: Sequence[Plan]) -> Baselines:
    """Return the times of the passing members of an earlier acceptance.

    Args:
        plans: of the acceptance that is to be judged.

    Raises:
        UsageError: it did other work, or nothing passed.
        RecordError: it was never judged.
    """
    result = read_result(folder)
    evidence = Evidence.read(folder)
    for path in sorted((folder / ACCEPTANCE_PLANS_DIR).iterdir()):
        _refuse_other_work(Plan.read(path), plans, str(folder))
    passing = set(result.list_names("pass"))
    is_of_nodes = result.unit == "node"  # else the devices of one machine were judged
    # All names of the product of each passing device and node. Nodes report one when they join;
    # below, `_add_names_by_ranks` adds what the rank on a device called its product.
    products_of_device: dict[str, set[str]] = {}
    products_of_node: dict[str, set[str]] = {}  # stays empty if devices of one machine were judged
    for joined in evidence.nodes.values():
        if is_of_nodes and joined.node in passing:
            # A node is looked up by the product of its first device.
            products_of_node[joined.node] = {joined.products[0]}
        for device, product in zip(joined.devices, joined.products, strict=True):
            # The member that passed or not: in an acceptance of nodes, that is the device's node.
            member = joined.node if is_of_nodes else device
            if member in passing:
                products_of_device[device] = {product}
    _add_names_by_ranks(products_of_device, evidence)
    times = _compute_median_times(evidence, "devices", products_of_device)
    if is_of_nodes:
        times += _compute_median_times(evidence, "nodes", products_of_node)
    return _require_times(Baselines(source=str(folder), times=tuple(times)))


def _add_names_by_ranks(products_of_device: dict[str, set[str]], evidence: Evidence) -> None:
    """Add the product names that ranks reported, which may differ from those that nodes reported.

    A node has the names from the driver or the vendor's tool, a rank has the name from torch. The
    acceptance of one machine looks a baseline up by the name that ranks report, that of several
    nodes by the name that nodes report.

    Args:
        products_of_device: all names of the product of each device; changed in place.
    """
    for (phase, _, members), results in evidence.results.items():
        # In the phase `devices` a team is one device with one rank.
        if phase == "devices" and members[0] in products_of_device:
            products_of_device[members[0]].add(results[0].product)


def _compute_median_times(
    evidence: Evidence, phase: AlonePhase, products_of_member: dict[str, set[str]]
) -> list[BaselineTime]:
    """Return the median of each quantity over all measurements of members, by product.

    Args:
        evidence: what an earlier acceptance measured.
        phase: in which members were measured alone: ``devices`` or ``nodes``.
        products_of_member: all names of the product of each member, a device or a node; members
            that it does not contain are left out.
    """
    # By product and quantity, such as a training step or a copy.
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for quantity, times in collect_times(evidence, phase).items():
        for time in times.alone:
            # A time counts for each name, so that a search by any of the names finds it.
            for product in products_of_member.get(time.member, ()):
                seconds[product, quantity].append(time.seconds)
    return [
        BaselineTime(
            phase=phase,
            product=product,
            quantity=quantity,
            seconds=median(values),
            count=len(values),
        )
        for (product, quantity), values in seconds.items()
    ]


def compute_baselines_of_runs(
    records: Iterable[Record], plans: Sequence[Plan], source: str
) -> Baselines:
    """Return the step times of those runs that passed on one device or on all devices of a node.

    A run on one device stands for the phase ``devices`` of an acceptance, which measures each
    device alone, and one on all devices of a node for the phase ``nodes``.

    Args:
        records: of the runs.
        plans: of the acceptance that is to be judged, one for each size of a team, which is a
            number of devices that train together.
        source: of the baseline, as the user named it.

    Raises:
        UsageError: a run did other work, or none passed on one node with a record that its events
            do not contradict.
    """
    # Step times of the runs, by phase and product.
    seconds: dict[tuple[AlonePhase, str], list[float]] = defaultdict(list)
    for record in records:
        step_s = record.figure("step_time_p50")
        if step_s is None or record.plan.nnodes > 1:
            continue
        # A refuted record contradicts its own events, so its time proves nothing.
        if not record.passed or is_refuted(record.trust):
            continue
        _refuse_other_work(record.plan, plans, source)
        # One text, with the name of each product once. The text of a run on several products is no
        # product's name, so that no device or node is found to have this baseline.
        product = describe_work(record)["device_products"]
        if record.plan.world_size == 1:
            seconds["devices", product].append(step_s)
        # The largest team of the acceptance on one node has all devices of the node. If a node has
        # only one device, a run on it counts as one of a node, too.
        if record.plan.nproc == max(plan.nproc for plan in plans):
            seconds["nodes", product].append(step_s)
    times = [
        BaselineTime(
            phase=phase,
            product=product,
            quantity=STEP,
            seconds=median(values),
            count=len(values),
        )
        for (phase, product), values in seconds.items()
    ]
    return _require_times(Baselines(source=source, times=tuple(times)))


def _refuse_other_work(plan: Plan, plans: Sequence[Plan], source: str) -> None:
    """Refuse a baseline whose step is not the step that is measured.

    Args:
        plan: of the baseline.
        plans: of the acceptance, of which the first is compared; they differ only in what does not
            concern a step.
        source: of the baseline, as the user named it.

    Raises:
        UsageError: the work of the baseline differs.
    """
    work_of_baseline = describe_planned_work(plan)
    for name, value in describe_planned_work(plans[0]).items():
        value_of_baseline = work_of_baseline.get(name)
        if name in _UNRELATED_TO_STEPS:
            continue
        # In a dry run the data is unchecked if only other machines can see it.
        if value == UNCHECKED:
            continue
        if value_of_baseline != value:
            raise UsageError(
                f"{name} is {value}, but was {value_of_baseline} in the baseline",
                where=f"--baseline {source}",
                rule="the baseline must use the same case and recipe",
                fix="use the same case, recipe and field values as the baseline, or choose another "
                "baseline",
            )


def _require_times(baselines: Baselines) -> Baselines:
    """Return the given baselines if they have times.

    Raises:
        UsageError: they have none.
    """
    if not baselines.times:
        raise UsageError(
            "the baseline contains no step time from a device or node that passed",
            where=f"--baseline {baselines.source}",
            rule="a baseline must be measured on one device, or on all devices of one node",
            fix="choose runs with --nnodes 1, or an acceptance test in which a node passed",
        )
    return baselines
