"""Judge the devices of one machine, or nodes, from the evidence of all its sessions."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Literal

from trainmark import __version__
from trainmark.acceptance.assessment import Assessment
from trainmark.acceptance.bad_rounds import describe_failed_rounds, note_bad_rounds
from trainmark.acceptance.baseline import load_baselines
from trainmark.acceptance.evidence import Evidence
from trainmark.acceptance.measurement import describe_measurement
from trainmark.acceptance.result import AcceptanceResult, Finding, PeerGroup
from trainmark.acceptance.tasks import STEP
from trainmark.acceptance.times import collect_times
from trainmark.acceptance.verdicts import (
    judge_bits,
    judge_times,
    list_pairs_to_measure_again,
    note_times,
)
from trainmark.acceptance.wholes import note_wholes, search_wholes
from trainmark.launch.launchers import read_log_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.acceptance.baseline import Baselines
    from trainmark.acceptance.evidence import Joined
    from trainmark.acceptance.groups import NodeSet
    from trainmark.acceptance.node_session import Acceptance
    from trainmark.acceptance.request import AcceptRequest
    from trainmark.acceptance.session import OpenedSession

# What a node that cannot take part prints before its node rank, a colon and the reason.
REFUSAL = "trainmark accept: node "


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The verdicts on the members so far, and which measurements would decide more.

    Args:
        pairs_again: pairs of members to measure again; one that is to be measured several times is
            listed as often.
        sets_to_measure: disjoint node sets that the search for groups needs next; empty for the
            devices of one machine.
    """

    result: AcceptanceResult
    pairs_again: list[tuple[str, str]]
    sets_to_measure: list[NodeSet] = field(default_factory=list)


def conclude_devices(acceptance: Acceptance, *, interrupted: str | None) -> Conclusion:
    """Judge all devices by what all sessions, commands on the same folder, measured so far.

    The members that are judged are the devices of this machine. They are compared within peer
    groups: devices of the same product.

    Args:
        acceptance: ``worse_by`` of its request is the allowed slowdown of the training step,
            ``rates_worse_by`` that of any other quantity.
        interrupted: name of the signal that ended the measurement; None: no signal did.

    Returns:
        The result, and the pairs of devices that are to be measured again.
    """
    evidence = Evidence.read(acceptance.folder)
    product_of_device = _map_devices_to_products(acceptance, evidence)
    names_by_product = defaultdict(list)
    for name, product in product_of_device.items():
        names_by_product[product].append(name)
    peer_groups = list(names_by_product.values())
    assessment = Assessment(product_of_member=product_of_device)  # gets all findings on the devices
    # Earlier times with which devices are compared; None: with the other devices of their group.
    baselines = load_baselines(acceptance.folder)
    times = collect_times(evidence, alone_phase="devices")
    judgements = judge_times(
        product_of_device,
        times,
        peer_groups,
        worse_by=acceptance.request.worse_by,
        rates_worse_by=acceptance.request.rates_worse_by,
        find_baseline=None if baselines is None else partial(baselines.find, "devices"),
    )
    note_times(assessment, times, judgements)
    # The member to which each device belongs. With several nodes it is the node; here it is the
    # device itself.
    member_of = {name: name for name in product_of_device}
    # The same training must give the same numbers, bit by bit, on all devices of a peer group.
    judge_bits(assessment, evidence, member_of, [set(names) for names in peer_groups])
    # Rounds that failed, or whose results were wrong, also lead to findings.
    note_bad_rounds(assessment, evidence, member_of)
    result = _make_result(
        acceptance,
        assessment,
        evidence,
        unit="device",
        peer_groups=tuple(
            # Only packages in which groups differ are listed, and one machine has one software.
            PeerGroup(members=tuple(names), products=(product,), software={})
            for product, names in names_by_product.items()
        ),
        baselines=baselines,
        interrupted=interrupted,
    )
    return Conclusion(result=result, pairs_again=list_pairs_to_measure_again(judgements))


def _map_devices_to_products(acceptance: Acceptance, evidence: Evidence) -> dict[str, str]:
    """Return the product of each device by its name.

    It is what a rank on the device reported; until one did, what the planning process found.
    """
    # What this machine wrote at the start of its last session: its devices and their products.
    joined = evidence.nodes[acceptance.node]
    product_of_device = dict(zip(joined.devices, joined.products, strict=True))
    for results in evidence.results.values():
        for result in results:  # one of each rank
            name = acceptance.device_names[result.device]  # by the device's number on the machine
            product_of_device[name] = result.product
    return product_of_device


def conclude_nodes(opened: OpenedSession, *, interrupted: str | None) -> Conclusion:
    """Judge all nodes by what all sessions, commands on the same folder, measured so far.

    The members that are judged are nodes. They are compared within peer groups: nodes of the same
    products and software.

    Args:
        opened: the session, with the folder of all sessions of the acceptance. ``worse_by`` of its
            request is the allowed slowdown of the training step, ``rates_worse_by`` that of any
            other quantity.
        interrupted: name of the signal that ended the measurement; None: no signal did.

    Returns:
        The result, and what is to be measured next: pairs of nodes that are measured again, and
        node sets that the search for slow groups needs.
    """
    request = opened.request
    evidence = Evidence.read(opened.folder)
    # What each node wrote when it joined: its name, its devices, their products, its software.
    nodes = sorted(evidence.nodes.values(), key=lambda joined: joined.node)
    peer_groups = _group_peers(nodes)
    node_names_by_group = [[joined.node for joined in group] for group in peer_groups]
    # Times of nodes alone, which the phase `nodes` measures, and of pairs, by quantity.
    times = collect_times(evidence, alone_phase="nodes")
    # Earlier times with which nodes are compared; None: with the other nodes of their group.
    baselines = load_baselines(opened.folder)
    # The product of a node is that of its first device.
    assessment = Assessment(product_of_member={joined.node: joined.products[0] for joined in nodes})
    judgements = judge_times(
        assessment.product_of_member,
        times,
        node_names_by_group,
        worse_by=request.worse_by,
        rates_worse_by=request.rates_worse_by,
        find_baseline=None if baselines is None else partial(baselines.find, "nodes"),
    )
    note_times(assessment, times, judgements)
    _judge_devices(assessment, evidence, peer_groups, baselines, request)
    devices_by_group = [set(_list_devices(group)) for group in peer_groups]
    # The same training must give the same numbers, bit by bit, on all devices of a peer group.
    judge_bits(assessment, evidence, _map_devices_to_nodes(nodes), devices_by_group)
    _note_failures(assessment, evidence, opened, nodes)
    # A whole is the training of all nodes of a peer group together. If it is slow, sets of these
    # nodes are to be measured, to find the groups of nodes that are slow only with others. This
    # follows all other findings, because nodes that fail already take no part.
    sets_to_measure: list[NodeSet] = []
    if "groups" in request.chosen_phases and STEP in times:
        searches = search_wholes(assessment, evidence, times[STEP], node_names_by_group, request)
        note_wholes(assessment, searches)
        for whole in searches:
            sets_to_measure.extend(whole.search.to_measure)
    result = _make_result(
        opened,
        assessment,
        evidence,
        unit="node",
        peer_groups=_describe_groups(peer_groups),
        baselines=baselines,
        interrupted=interrupted,
    )
    return Conclusion(
        result=result,
        pairs_again=list_pairs_to_measure_again(judgements),
        sets_to_measure=sets_to_measure,
    )


def _make_result(
    acceptance: Acceptance | OpenedSession,
    assessment: Assessment,
    evidence: Evidence,
    *,
    unit: Literal["device", "node"],
    peer_groups: tuple[PeerGroup, ...],
    baselines: Baselines | None,
    interrupted: str | None,
) -> AcceptanceResult:
    """Return the result of an acceptance, as its file has it.

    Args:
        acceptance: its plan names the case and the recipe, its request has the options.
        assessment: all that was found about the members.
        evidence: what was measured in all sessions, and when.
        unit: what the members are.
        peer_groups: the members that were compared with each other.
        baselines: earlier times that members were compared with; None: with their peers.
        interrupted: name of the signal that ended the measurement; None: no signal did.
    """
    phases = acceptance.request.chosen_phases
    if unit == "device":  # the default phases contain `groups`, which needs several nodes
        phases = [phase for phase in phases if phase != "groups"]
    return AcceptanceResult(
        suite_version=__version__,
        unit=unit,
        case=acceptance.plan.case,
        recipe=acceptance.plan.recipe_name,
        overrides=acceptance.request.overrides,
        measurement=describe_measurement(evidence),
        phases=phases,
        members=assessment.list_members(),
        links=assessment.links,
        bits=assessment.bits,
        quantities=assessment.quantities,
        wholes=tuple(assessment.wholes),
        peer_groups=peer_groups,
        baseline=None if baselines is None else baselines.source,
        not_measured=tuple(describe_failed_rounds(evidence)),
        interrupted=interrupted,
    )


def _map_devices_to_nodes(nodes: Iterable[Joined]) -> dict[str, str]:
    """Return the name of the node of each device, by the name of the device.

    Args:
        nodes: what each node wrote when it joined: its name, and the names of its devices.
    """
    return {device: joined.node for joined in nodes for device in joined.devices}


def _list_devices(nodes: Iterable[Joined]) -> list[str]:
    """Return the names of the devices of some nodes.

    Args:
        nodes: what each node wrote when it joined, with the names of its devices.
    """
    return [device for joined in nodes for device in joined.devices]


def _group_peers(nodes: list[Joined]) -> list[list[Joined]]:
    """Return the nodes as peer groups: those of the same products and software together.

    Args:
        nodes: what each node wrote when it joined: the product of each of its devices, and the
            versions of its software by package.
    """
    groups: dict[str, list[Joined]] = defaultdict(list)
    for joined in nodes:
        key = json.dumps([joined.products, joined.software], sort_keys=True)
        groups[key].append(joined)
    return list(groups.values())


def _describe_groups(groups: list[list[Joined]]) -> tuple[PeerGroup, ...]:
    """Return the peer groups in the form of a result, with the packages in which they differ.

    All nodes of a group have the products and the software of the first one.

    Args:
        groups: the nodes of each group, as what each wrote when it joined: its name, the product of
            each of its devices, and the versions of its software by package.
    """
    packages = {name for group in groups for name in group[0].software}
    different_packages = [
        name
        for name in sorted(packages)
        if len({group[0].software.get(name) for group in groups}) > 1
    ]
    return tuple(
        PeerGroup(
            members=tuple(joined.node for joined in group),
            products=tuple(dict.fromkeys(group[0].products)),  # each product once
            software={name: group[0].software.get(name) for name in different_packages},
        )
        for group in groups
    )


def _judge_devices(
    assessment: Assessment,
    evidence: Evidence,
    groups: list[list[Joined]],
    baselines: Baselines | None,
    request: AcceptRequest,
) -> None:
    """Judge the devices of each peer group, and give their findings to their nodes.

    Args:
        assessment: of the nodes, which get the findings.
        evidence: what all nodes measured.
        groups: the nodes of each peer group, as what each wrote when it joined, with its name and
            its devices.
        baselines: earlier times with which devices are compared; None: with their peers.
        request: has the slowdowns up to which a device passes.
    """
    node_of_device = _map_devices_to_nodes(chain.from_iterable(groups))
    # A node has one product here, that of its first device. All its devices count as of this one.
    product_of_device = {
        device: assessment.product_of_member[node] for device, node in node_of_device.items()
    }
    times = collect_times(evidence, alone_phase="devices")
    # ``worse_by`` is the allowed slowdown of the step, ``rates_worse_by`` that of others: a matmul,
    # a copy or a collective.
    judgements = judge_times(
        product_of_device,
        times,
        [_list_devices(group) for group in groups],
        worse_by=request.worse_by,
        rates_worse_by=request.rates_worse_by,
        find_baseline=None if baselines is None else partial(baselines.find, "devices"),
    )
    device_assessment = Assessment(product_of_member=product_of_device)
    note_times(device_assessment, times, judgements)
    for device, findings in device_assessment.findings.items():
        for finding in findings:
            # The finding is the node's. Findings on times have no text yet, so that it can say
            # which device they are about.
            named_finding = finding.model_copy(update={"text": device})
            assessment.findings[node_of_device[device]].append(named_finding)


def _note_failures(
    assessment: Assessment, evidence: Evidence, opened: OpenedSession, nodes: Sequence[Joined]
) -> None:
    """Add findings for rounds that failed, for wrong results, and for nodes that are lost.

    Args:
        assessment: gets the findings.
        evidence: the results and failures of all rounds.
        opened: the session, which names the nodes that were to join.
        nodes: what each node wrote when it joined: its name, and the names of its devices.
    """
    # A team of a round consists of devices or of nodes. A fault of a device is one of its node.
    node_of_name = _map_devices_to_nodes(nodes) | {joined.node: joined.node for joined in nodes}
    note_bad_rounds(assessment, evidence, node_of_name)
    _note_absent(assessment, evidence, opened)


def _note_absent(assessment: Assessment, evidence: Evidence, opened: OpenedSession) -> None:
    """Add findings for nodes that did not come to a round, and for those that never joined.

    Args:
        assessment: of the nodes; ``product_of_member`` has those that joined.
    """
    for name, error in evidence.find_lost_nodes().items():
        # A node that never joined gets its finding below.
        if name in assessment.product_of_member:
            assessment.findings[name].append(Finding(code="no_answer", text=error))
    joined_ranks = {node.node_rank for node in evidence.nodes.values()}
    for node_rank in sorted(set(range(opened.plan.nnodes)) - joined_ranks):
        name = opened.node_names[node_rank]
        assessment.product_of_member.setdefault(name, "")  # the product of the node is unknown
        text = explain_absence(opened, node_rank)
        assessment.findings[name].append(Finding(code="no_answer", text=text))


def explain_absence(opened: OpenedSession, node_rank: int) -> str:
    """Return why a node never joined: what it printed itself, if a log has that.

    Args:
        opened: the session; ``session_dir`` has its logs, ``folder`` is that of the acceptance,
            which all nodes must see.
        node_rank: number of the node in the session.
    """
    # A node that cannot take part prints ``REFUSAL``, its rank, a colon, and the reason.
    beginning = f"{REFUSAL}{node_rank}: "
    for path in sorted(opened.session_dir.glob("log.*")):
        for line in read_log_end(path).splitlines():
            _, separator, reason = line.partition(beginning)
            if separator:  # empty if the line does not contain the beginning
                return reason
    return (
        f"the node never started, or cannot see {opened.folder}; see the logs in "
        f"{opened.session_dir}"
    )
