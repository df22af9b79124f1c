"""Judge the nodes of an acceptance from the evidence of all its sessions."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trainmark import __version__
from trainmark.acceptance.baseline import load_baselines
from trainmark.acceptance.evidence import Evidence
from trainmark.acceptance.result import AcceptanceResult, Finding, PeerGroup
from trainmark.acceptance.tasks import STEP
from trainmark.acceptance.verdicts import (
    Assessment,
    collect_times,
    judge_bits,
    judge_times,
    note_bad_rounds,
)
from trainmark.acceptance.wholes import judge_wholes
from trainmark.launch.launchers import read_log_end

if TYPE_CHECKING:
    from trainmark.acceptance.baseline import Baselines
    from trainmark.acceptance.evidence import Joined
    from trainmark.acceptance.groups import Team
    from trainmark.acceptance.request import AcceptRequest
    from trainmark.acceptance.session import OpenedSession

# In the log of a node that cannot take part: then its node rank and a colon.
REFUSAL = "trainmark accept: node "


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What is known of the nodes so far, and what would tell more.

    Args:
        pairs_again: pairs of nodes to measure again, each as often as that.
        sets_to_measure: disjoint sets of nodes that the search for groups needs next.
    """

    result: AcceptanceResult
    pairs_again: list[tuple[str, str]]
    sets_to_measure: list[Team]


def conclude_nodes(
    opened: OpenedSession, request: AcceptRequest, *, interrupted: str | None
) -> Conclusion:
    """Judge what was measured so far."""
    evidence = Evidence.read(opened.folder)
    nodes = sorted(evidence.nodes.values(), key=lambda joined: joined.node)
    groups = _comparable(nodes)
    names = [[joined.node for joined in group] for group in groups]
    times = collect_times(evidence, "nodes")
    baselines = load_baselines(opened.folder)
    assessment = Assessment(products={joined.node: joined.products[0] for joined in nodes})
    pairs_again = judge_times(
        assessment,
        times,
        names,
        worse_by=request.worse_by,
        rates_worse_by=request.rates_worse_by,
        find_baseline=None if baselines is None else partial(baselines.find, "nodes"),
    )
    owner = {device: joined.node for joined in nodes for device in joined.devices}
    _judge_devices(assessment, evidence, groups, baselines, request)
    devices = [{device for joined in group for device in joined.devices} for group in groups]
    judge_bits(assessment, evidence, owner, devices)
    owner |= {joined.node: joined.node for joined in nodes}
    not_measured = note_bad_rounds(assessment, evidence, owner)
    _note_absent(assessment, evidence, opened)
    sets_to_measure: list[Team] = []
    if "groups" in request.chosen_phases and STEP in times:
        sets_to_measure = judge_wholes(assessment, evidence, times[STEP], names, request)
    result = AcceptanceResult(
        suite_version=__version__,
        unit="node",
        case=opened.plan.case,
        recipe=opened.plan.recipe_name,
        phases=request.chosen_phases,
        members=assessment.members(),
        links=assessment.links,
        bits=assessment.bits,
        quantities=assessment.quantities,
        wholes=tuple(assessment.wholes),
        peer_groups=_describe_groups(groups),
        baseline=None if baselines is None else baselines.source,
        not_measured=tuple(not_measured),
        interrupted=interrupted,
    )
    return Conclusion(result=result, pairs_again=pairs_again, sets_to_measure=sets_to_measure)


def _comparable(nodes: list[Joined]) -> list[list[Joined]]:
    """Return the nodes in groups of the same products and software."""
    groups: dict[str, list[Joined]] = defaultdict(list)
    for joined in nodes:
        key = json.dumps([joined.products, joined.software], sort_keys=True)
        groups[key].append(joined)
    return list(groups.values())


def _describe_groups(groups: list[list[Joined]]) -> tuple[PeerGroup, ...]:
    """Return the groups with the packages in which they differ."""
    packages = {name for group in groups for name in group[0].software}
    different = [
        name
        for name in sorted(packages)
        if len({group[0].software.get(name) for group in groups}) > 1
    ]
    return tuple(
        PeerGroup(
            members=tuple(joined.node for joined in group),
            products=tuple(dict.fromkeys(group[0].products)),
            software={name: group[0].software.get(name) for name in different},
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
    """Judge the devices of each group of nodes, and give their findings to their nodes."""
    owner = {
        device: joined.node for group in groups for joined in group for device in joined.devices
    }
    of_devices = Assessment(
        products={device: assessment.products[node] for device, node in owner.items()}
    )
    judge_times(
        of_devices,
        collect_times(evidence, "devices"),
        [[device for joined in group for device in joined.devices] for group in groups],
        worse_by=request.worse_by,
        rates_worse_by=request.rates_worse_by,
        find_baseline=None if baselines is None else partial(baselines.find, "devices"),
    )
    for device, findings in of_devices.findings.items():
        for finding in findings:
            named = finding.model_copy(update={"text": device})
            assessment.findings[owner[device]].append(named)


def _note_absent(assessment: Assessment, evidence: Evidence, opened: OpenedSession) -> None:
    """Blame nodes that never joined, and those that did not come to a round."""
    for name, error in evidence.lost_nodes().items():
        if name in assessment.products:
            assessment.findings[name].append(Finding(code="no_answer", text=error))
    joined = {node.node_rank for node in evidence.nodes.values()}
    for node_rank in sorted(set(range(opened.plan.nnodes)) - joined):
        name = opened.node_names[node_rank]
        assessment.products.setdefault(name, "")
        text = explain_absence(opened, node_rank)
        assessment.findings[name].append(Finding(code="no_answer", text=text))


def explain_absence(opened: OpenedSession, node_rank: int) -> str:
    """Return why a node never joined: in its own words if a log has them."""
    for path in sorted(opened.session_dir.glob("log.*")):
        for line in read_log_end(path).splitlines():
            _, mark, text = line.partition(f"{REFUSAL}{node_rank}: ")
            if mark:
                return text
    return (
        f"it never started, or does not see {opened.folder}; "
        f"the logs in {opened.session_dir} may say why"
    )
