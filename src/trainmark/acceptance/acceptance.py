"""Accept the devices of one machine: plan phases, measure what is missing, and judge."""

from __future__ import annotations

import socket
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from trainmark import __version__, devices
from trainmark.acceptance.baseline import load_baselines, save_baselines
from trainmark.acceptance.evidence import Evidence, EvidenceWriter, Left
from trainmark.acceptance.folder import folder_of, opened_folder, resolve_plans, save_request
from trainmark.acceptance.node_session import (
    Acceptance,
    NodeSession,
    Round,
    device_names,
    node_name,
    rank_setup,
    write_joined,
)
from trainmark.acceptance.result import AcceptanceResult, PeerGroup
from trainmark.acceptance.schedule import disjoint_rounds
from trainmark.acceptance.verdicts import (
    Assessment,
    collect_times,
    judge_bits,
    judge_times,
    note_bad_rounds,
)
from trainmark.errors import UsageError
from trainmark.launch.network import LOOPBACK, refuse_unusable_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.acceptance.baseline import BaselineReader
    from trainmark.acceptance.request import AcceptRequest
    from trainmark.launch.processes import StopRequest
    from trainmark.plan.plan import Plan


def plan_acceptance(
    request: AcceptRequest, *, dry_run: bool = False
) -> tuple[Acceptance, list[Plan]]:
    """Check the options and return what would be measured, with the plans to save; write nothing.

    Args:
        dry_run: it is only shown; see ``resolve``.

    Raises:
        UsageError: the options do not fit.
        EnvironmentFault: too few devices.
        DataError: the data cannot be trained on.
    """
    if (request.nnodes or 1) > 1:
        raise UsageError(
            f"{request.nnodes} nodes",
            where="--nnodes",
            rule="a launcher starts several nodes",
            fix="add --launcher ssh or slurm, see `trainmark list launchers`",
        )
    if request.phases is not None and "groups" in request.chosen_phases:
        raise UsageError(
            "groups of one machine's devices",
            where="--phases",
            rule="groups are of nodes; all devices of a node train together in the phase nodes",
            fix="leave groups out, or add --launcher",
        )
    vendor = devices.choose_vendor(request.device)
    nproc = request.nproc or vendor.count()
    node = node_name(socket.gethostname())
    names = device_names(node, vendor, nproc)
    plans = resolve_plans(request, [(1, nproc), (1, min(2, nproc)), (1, 1)], dry_run=dry_run)
    acceptance = Acceptance(
        request=request,
        folder=folder_of(request),
        plan=plans[0],
        node=node,
        device_names=names,
    )
    return acceptance, plans


@contextmanager
def prepared(
    request: AcceptRequest, *, read_baselines: BaselineReader | None = None
) -> Iterator[Acceptance]:
    """Check everything, make the folder or open that of an earlier session, and hold its lock.

    Args:
        read_baselines: returns the baseline that was asked for, given the plans.

    Raises:
        UsageError: the options do not fit, or not those of the earlier session.
        EnvironmentFault: too few devices, or the folder cannot be used.
        DataError: the data cannot be trained on.
    """
    acceptance, plans = plan_acceptance(request)
    baselines = None if read_baselines is None else read_baselines(plans)
    with opened_folder(acceptance.folder, request):
        save_baselines(acceptance.folder, baselines)
        save_request(acceptance.folder, request, plans)
        yield acceptance


def measure(
    acceptance: Acceptance, stop: StopRequest, *, show: Callable[[str], None] = lambda _: None
) -> AcceptanceResult:
    """Measure what is missing, judge, and write the result.

    Args:
        stop: the measurement ends as soon as it holds a signal; what was measured counts.
        show: called with the progress, in words.

    Raises:
        EnvironmentFault: the ranks cannot reach each other.
    """
    count = len(acceptance.device_names)
    with rank_setup(acceptance.plan, count) as setup:
        vendor = devices.list_vendors()[acceptance.plan.device.vendor]
        refuse_unusable_network(setup.variables, vendor, world_size=count, master=LOOPBACK)
        writer = EvidenceWriter(acceptance.folder, acceptance.node)
        write_joined(writer, acceptance, setup)
        session = NodeSession(acceptance, setup, writer, stop, show)
        session.run(acceptance.rounds)
        session.run(_further_rounds(acceptance))
        writer.write(Left, signal=stop.signal_name)
    result, _ = conclude(acceptance, interrupted=stop.signal_name)
    result.write(acceptance.folder)
    return result


def _further_rounds(acceptance: Acceptance) -> list[Round]:
    """Return rounds that confirm what looks bad in pairs."""
    if "pairs" not in acceptance.request.chosen_phases:
        return []
    _, again = conclude(acceptance, interrupted=None)
    number = {name: index for index, name in enumerate(acceptance.device_names)}
    pairs = [(number[first], number[second]) for first, second in again]
    evidence = Evidence.read(acceptance.folder)
    used = [pair for phase, pair, _ in evidence.results if phase == "pairs"]
    start = max([*used, len(acceptance.rounds)]) + 1
    return [
        Round(phase="pairs", number=start + offset, teams=list(teams))
        for offset, teams in enumerate(disjoint_rounds(pairs))
    ]


def conclude(
    acceptance: Acceptance, *, interrupted: str | None
) -> tuple[AcceptanceResult, list[tuple[str, str]]]:
    """Judge what was measured so far.

    Returns:
        The result, and the pairs that are to be measured again, each as often as that.
    """
    evidence = Evidence.read(acceptance.folder)
    joined = evidence.nodes[acceptance.node]
    products = dict(zip(joined.devices, joined.products, strict=True))
    for results in evidence.results.values():
        for of_rank in results:  # ranks name their device better than planning can
            products[acceptance.device_names[of_rank.device]] = of_rank.product
    by_product = defaultdict(list)
    for name, product in products.items():
        by_product[product].append(name)
    groups = list(by_product.values())
    assessment = Assessment(products=products)
    baselines = load_baselines(acceptance.folder)
    again = judge_times(
        assessment,
        collect_times(evidence, "devices"),
        groups,
        worse_by=acceptance.request.worse_by,
        rates_worse_by=acceptance.request.rates_worse_by,
        find_baseline=None if baselines is None else partial(baselines.find, "devices"),
    )
    owner = {name: name for name in products}
    judge_bits(assessment, evidence, owner, [set(names) for names in groups])
    not_measured = note_bad_rounds(assessment, evidence, owner)
    result = AcceptanceResult(
        suite_version=__version__,
        unit="device",
        case=acceptance.plan.case,
        recipe=acceptance.plan.recipe_name,
        phases=[phase for phase in acceptance.request.chosen_phases if phase != "groups"],
        members=assessment.members(),
        links=assessment.links,
        bits=assessment.bits,
        quantities=assessment.quantities,
        peer_groups=tuple(
            PeerGroup(members=tuple(names), products=(product,), software={})
            for product, names in by_product.items()
        ),
        baseline=None if baselines is None else baselines.source,
        not_measured=tuple(not_measured),
        interrupted=interrupted,
    )
    return result, again
