"""Accept the devices of one machine: plan phases, measure what is missing, and judge."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainmark import devices
from trainmark.acceptance.baseline import save_baselines
from trainmark.acceptance.conclusion import conclude_devices
from trainmark.acceptance.evidence import Evidence, EvidenceWriter, Left
from trainmark.acceptance.folder import choose_folder, open_folder, resolve_plans, save_request
from trainmark.acceptance.node_session import (
    MIN_DEVICES_FOR_PAIRS,
    Acceptance,
    NodeSession,
    Round,
    list_device_names,
    make_node_name,
    prepare_rank_setup,
    write_joined_event,
)
from trainmark.acceptance.schedule import pack_disjoint_rounds
from trainmark.errors import UsageError
from trainmark.launch.network import LOOPBACK, refuse_unusable_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.acceptance.baseline import BaselineReader
    from trainmark.acceptance.request import AcceptRequest
    from trainmark.acceptance.result import AcceptanceResult
    from trainmark.launch.processes import StopRequest
    from trainmark.plan.plan import Plan


def plan_acceptance(
    request: AcceptRequest, *, dry_run: bool = False
) -> tuple[Acceptance, list[Plan]]:
    """Check the options and return what would be measured, with the plans to save; write nothing.

    Args:
        dry_run: the caller only shows what would be measured. Data that this machine cannot see is
            then not checked.

    Returns:
        What would be measured, and the plan of a training for each size of a team, which is the
        devices that train together: all devices of this machine, two devices, one device.

    Raises:
        UsageError: the options do not fit.
        EnvironmentFault: too few devices.
        DataError: the data cannot be trained on.
    """
    if (request.nnodes or 1) > 1:
        raise UsageError(
            f"{request.nnodes} nodes cannot be measured without a launcher",
            where="--nnodes",
            rule="an acceptance test of several nodes needs a launcher",
            fix="add --launcher ssh or --launcher slurm; see `trainmark list launchers`",
        )
    # A phase is what is measured: single devices, whole nodes, pairs, or groups of nodes. The
    # default phases contain `groups`, too, which is then left out. It is refused only if the user
    # names it.
    if request.phases is not None and "groups" in request.chosen_phases:
        raise UsageError(
            "the groups phase cannot run on a single node",
            where="--phases",
            rule=(
                "the groups phase needs several nodes; on a single node, the nodes phase already "
                "measures all devices together"
            ),
            fix="remove groups from --phases, or add --launcher for several nodes",
        )
    vendor = devices.choose_vendor(request.device)
    nproc = request.nproc or vendor.count()
    # The default phases contain `pairs`, too, which is then left out.
    if request.phases is not None and "pairs" in request.chosen_phases:
        _refuse_few_devices_for_pairs(request, nproc)
    node = make_node_name(socket.gethostname())
    # Nodes of a team, and devices of each: all devices, a pair, and a single one. With one or two
    # devices some of these are the same size, which `resolve_plans` plans once.
    worlds = [(1, nproc), (1, min(2, nproc)), (1, 1)]
    plans = resolve_plans(request, worlds, dry_run=dry_run)
    acceptance = Acceptance(
        request=request,
        folder=choose_folder(request),
        plan=plans[0],  # that of the largest team, all devices
        node=node,
        device_names=list_device_names(node, vendor, nproc),
    )
    return acceptance, plans


def _refuse_few_devices_for_pairs(request: AcceptRequest, num_devices: int) -> None:
    """Refuse the phase of pairs on a machine whose devices do not form several pairs.

    Raises:
        UsageError: there are fewer than ``MIN_DEVICES_FOR_PAIRS`` devices.
    """
    if num_devices >= MIN_DEVICES_FOR_PAIRS:
        return
    other_phases = [phase for phase in request.chosen_phases if phase != "pairs"]
    fix = "remove pairs from --phases" if other_phases else "use --phases devices,nodes"
    raise UsageError(
        f"the pairs phase cannot run on {num_devices} device{'' if num_devices == 1 else 's'}",
        where="--phases",
        rule=(
            f"on a single machine, the pairs phase needs at least {MIN_DEVICES_FOR_PAIRS} devices, "
            "because it compares pairs with each other; the nodes phase measures all devices "
            "together"
        ),
        fix=f"{fix}, or measure at least {MIN_DEVICES_FOR_PAIRS} devices",
    )


@contextmanager
def prepare_acceptance(
    request: AcceptRequest, *, read_baselines: BaselineReader | None = None
) -> Iterator[Acceptance]:
    """Check everything, make the folder or open that of an earlier session; yield the acceptance.

    Several commands may measure in one folder, one after the other: each is a session. The lock of
    the folder is held until the end of the block.

    Args:
        read_baselines: returns the earlier times with which devices are to be compared. It gets the
            plans of this acceptance, and refuses times of another case or recipe. None: devices are
            compared with their peers.

    Raises:
        UsageError: the options contradict each other, or differ from the earlier session's.
        EnvironmentFault: too few devices, or the folder cannot be used.
        DataError: the data cannot be trained on.
    """
    acceptance, plans = plan_acceptance(request)
    baselines = None if read_baselines is None else read_baselines(plans)
    with open_folder(acceptance.folder, request):
        save_baselines(acceptance.folder, baselines)
        save_request(acceptance.folder, request, plans)
        yield acceptance


def measure(
    acceptance: Acceptance, stop: StopRequest, *, show: Callable[[str], None] = lambda _: None
) -> AcceptanceResult:
    """Measure what no earlier session has measured, judge all of it, and write the result.

    Several commands may measure in one folder, one after the other: each is a session.

    Args:
        acceptance: the devices of this machine, the folder, and the rounds in which they measure:
            in a round, teams of devices that train together measure at the same time.
        stop: the measurement ends as soon as it holds a signal; what was measured counts.
        show: called with the progress, in words.

    Raises:
        EnvironmentFault: the ranks cannot reach each other.
    """
    num_devices = len(acceptance.device_names)
    with prepare_rank_setup(acceptance.plan, num_devices) as setup:
        vendor = devices.list_vendors()[acceptance.plan.device.vendor]
        refuse_unusable_network(setup.variables, vendor, world_size=num_devices, master=LOOPBACK)
        writer = EvidenceWriter(acceptance.folder, acceptance.node)
        write_joined_event(writer, acceptance, setup)
        session = NodeSession(
            acceptance,
            setup,
            writer,
            poll_stop_signal=lambda: stop.signal_name,
            show=show,
        )
        session.run(acceptance.rounds)
        # Planned only now: it reads what the rounds before have measured.
        session.run(_plan_confirming_rounds(acceptance))
        # The event that ends the session of this machine, with the signal that asked for it.
        writer.write(Left, signal=stop.signal_name)
    # Pairs that still look bad are not measured again in this session.
    result = conclude_devices(acceptance, interrupted=stop.signal_name).result
    result.write(acceptance.folder)
    return result


def _plan_confirming_rounds(acceptance: Acceptance) -> list[Round]:
    """Return rounds of the pairs of devices by which devices or links look slow so far.

    Measuring them again shows whether they are slow. The pairs of a round measure at the same time,
    so that no device is in two of them. There are no rounds if the user did not choose the phase of
    pairs.
    """
    if "pairs" not in acceptance.request.chosen_phases:
        return []
    pairs_again = conclude_devices(acceptance, interrupted=None).pairs_again
    index_of = {name: index for index, name in enumerate(acceptance.device_names)}
    pairs = [(index_of[first], index_of[second]) for first, second in pairs_again]
    evidence = Evidence.read(acceptance.folder)
    used_numbers = [number for phase, number, _ in evidence.results if phase == "pairs"]
    # Rounds that were measured are skipped by their numbers. So these get numbers above those of
    # all rounds of pairs that any session measured, and above those of the planned rounds. Planned
    # ones are numbered from 0, and are some of `acceptance.rounds`: their numbers are below its
    # length. Numbers of rounds that failed may be used again: such rounds are not skipped.
    first_number = max([*used_numbers, len(acceptance.rounds)]) + 1
    return [
        Round(phase="pairs", number=number, teams=list(teams))
        for number, teams in enumerate(pack_disjoint_rounds(pairs), first_number)
    ]
