"""Several nodes: what they exchange, and how they are judged."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from support.acceptance_evidence import make_digests
from trainmark.acceptance import cluster, evidence, peers
from trainmark.acceptance.cluster import attach_session, plan_session, prepare_session
from trainmark.acceptance.conclusion import conclude_nodes
from trainmark.acceptance.evidence import (
    Arrived,
    Beat,
    EvidenceWriter,
    Joined,
    Left,
    Measured,
    NotMeasured,
)
from trainmark.acceptance.folder import save_request
from trainmark.acceptance.peers import Session
from trainmark.acceptance.request import AcceptRequest
from trainmark.acceptance.session import count_rounds, read_session
from trainmark.acceptance.tasks import RankResult
from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.launch import job_watch
from trainmark.launch.launchers import JobState
from trainmark.launch.submission import CLUSTER_FILE
from trainmark.pages.acceptance import build_acceptance_document
from trainmark.pages.rendering import to_markdown
from trainmark.pages.texts import LANGUAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.acceptance.conclusion import Conclusion
    from trainmark.acceptance.result import AcceptanceResult
    from trainmark.acceptance.session import OpenedSession
    from trainmark.launch.launchers import EngineJob, JobPhase

NODES = ("a", "b", "c", "d")
VARIATION = (1.0, 1.002, 0.998)  # of the step times of the rounds: noise without randomness


@dataclass
class UnsubmittedSession:
    """A session with the only field that ``attach_session`` uses, which it sets."""

    is_submitted: bool = False


class Engine:
    """A launcher whose job goes through given phases, and the clock by which it is waited for.

    Args:
        phases: of the job, one for each time that the engine is asked for its state; None: it does
            not answer.
        poll_s: seconds between two such questions.
        on_first_sleep: called in the first second of the wait.

    Attributes:
        queried_at_s: when the engine was asked.
        num_cancels: how often it was to cancel the job.
    """

    def __init__(
        self,
        phases: list[JobPhase | None],
        *,
        poll_s: float,
        on_first_sleep: Callable[[], None] = lambda: None,
    ) -> None:
        self.poll_s = poll_s
        self.queried_at_s: list[float] = []
        self.num_cancels = 0
        self._phases = iter(phases)
        self._on_first_sleep = on_first_sleep
        self._now_s = 0.0

    def read_state(self, _job: EngineJob) -> JobState:
        """Note the time, and answer with the next phase; None: the engine cannot be reached."""
        self.queried_at_s.append(self._now_s)
        phase = next(self._phases)
        if phase is None:
            raise EnvironmentFault("the engine cannot be reached")
        return JobState(phase=phase)

    def cancel(self, _job: EngineJob) -> None:
        """Count the call; the job goes on through its phases."""
        self.num_cancels += 1

    def monotonic(self) -> float:
        """Return the time by the clock of the wait, in seconds from 0."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass, without real waiting."""
        if self._now_s == 0:
            self._on_first_sleep()
        self._now_s += seconds


def join(
    folder: Path, rank: int, *, product: str = "gpu", torch: str = "2.13.0", session: int = 1
) -> EvidenceWriter:
    """Write that a node has joined; return the writer of its evidence.

    Args:
        rank: of the node; it decides its name.
        product: of its only device; nodes of the same product and software are compared.
        torch: version of its PyTorch.
        session: number of the start of ``trainmark accept``; later starts have higher numbers.
    """
    writer = EvidenceWriter(folder, NODES[rank], session)
    writer.write(
        Joined,
        node=writer.node,
        devices=[f"{writer.node}:gpu:0"],
        products=[product],
        software={"torch": torch, "numpy": "2.4"},
        node_rank=rank,
        address=f"host-{rank}",
    )
    return writer


def make_rank_result(
    rank: int, step_s: float, *, product: str = "gpu", bits: bool = False
) -> RankResult:
    """Return what a rank reports of a round: one step of ``step_s`` seconds on its only device.

    Args:
        rank: its number within the training of this round, from 0.
        bits: whether the round also compared results bit by bit. The rank then has trained twice,
            and ``make_digests`` stands for the checksums of each training, equal by default.
    """
    return RankResult(
        rank=rank,
        device=0,
        product=product,
        seconds={"step": [step_s]},
        faults={},
        trainings=[make_digests(), make_digests()] if bits else [],
    )


def measure_alone(writer: EvidenceWriter, step_s: float = 0.1) -> None:
    """Write rounds of a node's only device, and of the node with this device.

    Only the first round compares results bit by bit. ``VARIATION`` has the factor of each round's
    time, near 1.

    Args:
        writer: of the node's evidence.
        step_s: seconds of a step, before the factor; 0.1 is what usual nodes take in these tests.
    """
    for number, factor in enumerate(VARIATION):
        for phase, member in (("devices", f"{writer.node}:gpu:0"), ("nodes", writer.node)):
            writer.write(
                Measured,
                phase=phase,
                round=number,
                members=[member],
                results=[make_rank_result(rank=0, step_s=factor * step_s, bits=number == 0)],
            )


def judge_folder(folder: Path, num_nodes: int = 4) -> AcceptanceResult:
    """Return the result of the evidence in a folder, in which ``num_nodes`` nodes were planned."""
    return conclude_session(folder, num_nodes).result


def conclude_session(folder: Path, num_nodes: int = 4) -> Conclusion:
    """Judge the evidence in a folder; nodes that have not joined are called ``node`` and rank.

    The session and its plan have only the fields that ``conclude_nodes`` reads.
    """
    plan = SimpleNamespace(case="toy", recipe_name="tiny", nnodes=num_nodes)
    opened = SimpleNamespace(
        folder=folder,
        request=AcceptRequest(case="toy"),
        session_dir=folder,  # the launcher's logs of nodes that never joined are looked up here
        plan=plan,
        node_names=tuple(f"node {number}" for number in range(num_nodes)),
    )
    return conclude_nodes(cast("OpenedSession", opened), interrupted=None)


def test_equal_nodes_pass_and_a_slow_one_fails(tmp_path: Path) -> None:
    """The steps of the nodes a, b and d take 0.1 s, those of c (rank 2) 0.13 s: 30% more.

    Each node has one device, here called ``c:gpu:0`` for example. ``judge_folder`` judges the
    evidence of four nodes by default.
    """
    for rank in range(4):
        measure_alone(join(tmp_path, rank), step_s=0.13 if rank == 2 else 0.1)

    result = judge_folder(tmp_path)

    assert result.unit == "node"
    assert [member.decision for member in result.members] == ["pass", "pass", "fail", "pass"]
    # It fails twice: as a node (no text), and because its device failed (whose name is the text).
    assert [finding.text for finding in result.members[2].findings] == ["", "c:gpu:0"]
    # ``bits``: comparisons of the trainings of several devices bit by bit; here one, of all four.
    assert [(comparison.control, comparison.devices) for comparison in result.bits] == [
        ("deterministic", 4)
    ]


def test_both_nodes_of_a_pair_are_one_measurement(tmp_path: Path) -> None:
    """The nodes a and b (ranks 0 and 1) both report round 0 of their pair: 0.2 s and 0.3 s.

    ``links`` has a result for each measured pair; ``rounds`` is the number of its rounds.
    """
    writers = [join(tmp_path, rank) for rank in range(4)]
    for writer in writers:
        measure_alone(writer)
    for rank, seconds in ((0, 0.2), (1, 0.3)):  # each node reports the same round by its own rank
        writers[rank].write(
            Measured,
            phase="pairs",
            round=0,
            members=["a", "b"],
            results=[make_rank_result(rank, seconds)],
        )

    links = judge_folder(tmp_path).links

    assert [(link.members, link.rounds) for link in links] == [(("a", "b"), 1)]


def test_node_that_never_joined_fails(tmp_path: Path) -> None:
    """Three of the four planned nodes have measured themselves; the fourth wrote nothing.

    Ranks 0, 1 and 3 are the nodes a, b and d. A node without evidence is called ``node`` and its
    rank.
    """
    for rank in (0, 1, 3):  # all but rank 2, whose name is not known without an event
        measure_alone(join(tmp_path, rank))

    result = judge_folder(tmp_path)

    assert result.list_names("fail") == ["node 2"]
    assert result.list_names("pass") == ["a", "b", "d"]


def test_node_that_missed_its_pairs_fails_once_and_its_partners_pass(tmp_path: Path) -> None:
    """Each node writes its own evidence; ``NODES`` holds their names by rank: a, b, c and d.

    A node of a pair that does not come is absent; the one that waits for it writes so.
    """
    writers = [join(tmp_path, rank) for rank in range(4)]
    for writer in writers:
        measure_alone(writer)  # all four are equally fast alone
    # Nodes a, b and d (ranks 0, 1 and 3) each waited for node c in vain, in one round each.
    for number, rank in enumerate((0, 1, 3)):
        writers[rank].write(
            NotMeasured,
            phase="pairs",
            round=number,
            members=sorted([NODES[rank], "c"]),
            reason="deadline",
            error="c did not come",
            absent="c",
        )

    result = judge_folder(tmp_path)

    assert result.list_names("fail") == ["c"]
    # One finding against c (the third of the nodes), not one for each of its three pairs.
    assert [finding.code for finding in result.members[2].findings] == ["no_answer"]
    assert len(result.not_measured) == 3  # but each of the three rounds is listed


def test_late_node_is_not_blamed(tmp_path: Path) -> None:
    """A node that missed its round but came later is alive: nothing is held against it."""
    # Nodes a, b, c and d, all equally fast alone.
    writers = [join(tmp_path, rank) for rank in range(4)]
    for writer in writers:
        measure_alone(writer)
    # Node a waited for node c until its deadline, and then gave up the round.
    writers[0].write(
        NotMeasured,
        phase="pairs",
        round=1,
        members=["a", "c"],
        reason="deadline",
        error="c did not come",
        absent="c",
    )
    # Node c arrived after a's deadline, because it had waited for another node that hangs. The
    # barrier at which the nodes of a round meet is named by its phase and number.
    writers[2].write(Arrived, barrier_name="pairs 1")

    result = judge_folder(tmp_path)

    assert result.list_names("fail") == []
    # Evidence counts rounds from 0, texts from 1.
    assert result.not_measured == ("pairs, round 2, a and c: c did not come",)


def measure_pairs(writers: list[EvidenceWriter], rounds: int = 3) -> None:
    """Write rounds of all pairs of nodes, whose steps take 0.2 s; both nodes report."""
    for number in range(rounds):
        for first, second in combinations(range(len(writers)), 2):
            # Within the pair, its two nodes have the ranks 0 and 1.
            for index, rank in enumerate((first, second)):
                writers[rank].write(
                    Measured,
                    phase="pairs",
                    round=number,
                    members=[NODES[first], NODES[second]],
                    results=[make_rank_result(index, 0.2 * VARIATION[number])],
                )


def measure_set(writers: list[EvidenceWriter], members: str, step_s: float) -> None:
    """Write five rounds of a set of nodes; each letter of ``members`` is a node's name."""
    for number in range(5):
        for rank, name in enumerate(members):
            writers[NODES.index(name)].write(
                Measured,
                phase="groups",
                round=number,
                members=list(members),
                results=[make_rank_result(rank, step_s)],
            )


def test_slow_set_of_all_nodes_is_halved_and_slow_path_between_halves_blames_no_node(
    tmp_path: Path,
) -> None:
    """Of four nodes, a to d, all alone and all pairs are as fast as each other.

    Then the search for slow groups measures the set of all nodes, which is slow, and its halves,
    which are not. ``sets_to_measure`` are the sets that it needs next, ``wholes`` the results of
    sets of all nodes.
    """
    writers = [join(tmp_path, rank) for rank in range(4)]
    for writer in writers:
        measure_alone(writer)
    measure_pairs(writers)
    assert conclude_session(tmp_path).sets_to_measure == [("a", "b", "c", "d")]
    # A node alone takes 0.1 s and a pair 0.2 s: two nodes communicate for 0.1 s. In a ring of n
    # nodes each sends 2 (n - 1) / n times what a node of a pair sends; here n is 4.
    predicted_s = 0.1 + 0.1 * 2 * 3 / 4
    measure_set(writers, "abcd", step_s=0.4)

    conclusion = conclude_session(tmp_path)

    # The halves are pairs that ``measure_pairs`` has measured, but the search for slow groups uses
    # only rounds of its own phase.
    assert conclusion.sets_to_measure == [("a", "b"), ("c", "d")]
    (set_of_all_nodes,) = conclusion.result.wholes
    assert (set_of_all_nodes.outcome, set_of_all_nodes.num_members) == ("unfinished", 4)
    assert set_of_all_nodes.interval is not None
    # 0.01: the times that the prediction is made from vary by up to 0.2%, see ``VARIATION``.
    assert set_of_all_nodes.interval.slower == pytest.approx(0.4 / predicted_s - 1, abs=0.01)

    measure_set(writers, "ab", step_s=0.2)  # each half takes what is predicted
    measure_set(writers, "cd", step_s=0.2)

    # Only the path between the halves is slow: no node is blamed.
    conclusion = conclude_session(tmp_path)
    assert conclusion.result.list_names("fail") == []
    assert conclusion.result.wholes[0].outcome == "cannot_tell"
    assert conclusion.result.wholes[0].parts == (("a", "b"), ("c", "d"))
    assert conclusion.sets_to_measure == []


def test_set_with_a_node_that_reported_nothing_has_no_measurement(tmp_path: Path) -> None:
    """A round of a set of nodes counts only if each of them has reported its step.

    ``NODES`` are the four nodes a, b, c and d. Their set is still to be measured, and there is no
    result of it (``wholes`` has those of sets of all nodes).
    """
    writers = [join(tmp_path, rank) for rank in range(4)]
    for writer in writers:
        measure_alone(writer)
    measure_pairs(writers)
    # Only one of the four nodes reports its step of the set.
    writers[0].write(
        Measured,
        phase="groups",
        round=0,
        members=list(NODES),
        results=[make_rank_result(rank=0, step_s=0.25)],
    )

    conclusion = conclude_session(tmp_path)

    assert conclusion.sets_to_measure == [NODES]
    assert conclusion.result.wholes == ()


def test_nodes_of_another_product_are_not_compared(tmp_path: Path) -> None:
    """The nodes a, b and c have devices of the product ``gpu``, d (rank 3) of the product ``old``.

    A doubt is the reason why a node is undecided.
    """
    # The last node is slow, but no other node has its product.
    for rank in range(4):
        product = "old" if rank == 3 else "gpu"
        measure_alone(join(tmp_path, rank, product=product), step_s=0.3 if rank == 3 else 0.1)

    result = judge_folder(tmp_path)

    assert [member.decision for member in result.members] == ["pass", "pass", "pass", "undecided"]
    assert result.members[3].doubt == "no_peers"


def test_groups_of_other_software_are_named_on_the_page(tmp_path: Path) -> None:
    """Nodes are peers if they have the same product and software.

    The nodes c and d (ranks 2 and 3) have an older torch than a and b; each pair passes as a group
    of its own. The page is checked in each language.
    """
    for rank in range(4):
        measure_alone(join(tmp_path, rank, torch="2.12.1" if rank > 1 else "2.13.0"))

    result = judge_folder(tmp_path)

    groups = [(group.members, group.products, group.software) for group in result.peer_groups]
    assert groups == [
        (("a", "b"), ("gpu",), {"torch": "2.13.0"}),
        (("c", "d"), ("gpu",), {"torch": "2.12.1"}),
    ]
    assert result.measurement is not None
    assert result.measurement.software == {"numpy": "2.4"}  # of the packages that do not differ
    assert result.measurement.devices == 4
    for lang in LANGUAGES:
        page = to_markdown([build_acceptance_document(result)], lang)
        assert "numpy 2.4" in page
        assert "| gpu | torch 2.13.0 |" in page
        assert "| gpu | torch 2.12.1 |" in page
    assert result.list_names("pass") == list(NODES)


def test_node_clocks_minutes_apart_change_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four equally fast nodes, a to d, whose clocks differ by up to 70 minutes.

    ``list_alive`` returns which of the given ranks have been heard of lately.
    """
    now_s = evidence.time.time()
    # Each node writes its evidence with a clock that is wrong by some seconds.
    for rank, offset_s in enumerate((0.0, -600.0, 600.0, 3_600.0)):
        monkeypatch.setattr(evidence.time, "time", lambda offset_s=offset_s: now_s + offset_s)
        measure_alone(join(tmp_path, rank))
    session = Session(tmp_path, session_number=1)
    session.scan()

    # Whether a node is alive depends on when its events are read here, not on their timestamps.
    assert session.list_alive(range(4)) == [0, 1, 2, 3]
    assert judge_folder(tmp_path).list_names("pass") == list(NODES)


def test_two_nodes_are_compared_with_each_other(tmp_path: Path) -> None:
    """Alone node a takes 0.1 s for a step, and node b (rank 1) 0.12 s: 20% more.

    By default 3% are allowed. The slower node fails though there is only one other.
    """
    for rank in range(2):
        measure_alone(join(tmp_path, rank), step_s=0.12 if rank else 0.1)

    result = judge_folder(tmp_path, num_nodes=2)

    assert [member.decision for member in result.members] == ["pass", "fail"]


def test_node_without_the_shared_folder_is_named_with_its_error(tmp_path: Path) -> None:
    """Three of the four planned nodes have measured themselves; the last one, rank 3, could not.

    A node without evidence is called ``node`` and its rank.
    """
    for rank in (0, 1, 2):  # of four
        measure_alone(join(tmp_path, rank))
    # The output of the job, each line with its node: node 3 could not write evidence.
    (tmp_path / "log.job.txt").write_text(
        "2: started\n3: trainmark accept: node 3: host7 cannot read /shared/out\n"
    )

    result = judge_folder(tmp_path)

    assert result.list_names("fail") == ["node 3"]
    assert result.members[-1].findings[0].text == "host7 cannot read /shared/out"


def test_node_whose_namesake_begins_at_the_same_time_gets_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of the host name a begin their evidence in the same session and folder.

    The second one does not see the first one's file, and notices it only when it makes its own.
    """
    assert EvidenceWriter(tmp_path, "a", session=1).node == "a"
    # As if the file of the namesake came only after this node had looked for it.
    monkeypatch.setattr(Path, "exists", lambda _: False)

    assert EvidenceWriter(tmp_path, "a", session=1).node == "a-2"


def test_two_nodes_with_the_same_name_get_different_names(tmp_path: Path) -> None:
    """A node begins the file of its evidence in the shared folder, named after its host.

    ``join`` does so for the node of rank 0, a. Another node of this name in the same session gets a
    number.
    """
    assert join(tmp_path, rank=0, session=1).node == "a"
    assert EvidenceWriter(tmp_path, "a", session=1).node == "a-2"
    assert EvidenceWriter(tmp_path, "a", session=2).node == "a"  # alone in the later session


def never_stop() -> bool:
    """Stand for a user who does not ask to stop."""
    return False


def test_pair_waits_for_a_node_to_arrive_but_not_for_one_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a pair starts, its nodes meet at a barrier, here named ``pairs 3``.

    Of three nodes one arrives during the wait, one leaves before, and one (rank 2) never joins.
    """
    first, second = join(tmp_path, rank=0), join(tmp_path, rank=1)
    session = Session(tmp_path, session_number=1)
    assert session.wait_for_all(num_nodes=2, timeout_s=60, is_stopped=never_stop) == [0, 1]
    assert session.get_address(1) == "host-1"  # as the node stated when it joined

    second.write(Left, signal=None)  # it ended by itself, not by a signal
    pauses = []  # of the waits, in seconds

    def arrive_during_pause(pause_s: float) -> None:
        pauses.append(pause_s)
        first.write(Arrived, barrier_name="pairs 3")

    monkeypatch.setattr(peers.time, "sleep", arrive_during_pause)

    for rank, has_arrived in ((0, True), (1, False), (2, False)):
        arrival = session.wait_for(rank, "pairs 3", timeout_s=60, is_stopped=never_stop)
        assert arrival is has_arrived
    # Only for the node that arrived: one that left will not come, and of one that never joined the
    # session knows nothing.
    assert len(pauses) == 1


def test_silent_node_is_lost_until_its_next_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of rank 0 joins, is silent for too long by a fake clock, and writes a heartbeat.

    ``scan`` reads the events that are new; ``peers`` has by rank what is known of each node.
    """
    now_s = 1000.0  # any time
    monkeypatch.setattr(peers.time, "monotonic", lambda: now_s)
    writer = join(tmp_path, rank=0)
    session = Session(tmp_path, session_number=1)
    session.scan()
    assert session.peers[0].is_alive

    now_s += peers.SILENCE_S + 1  # longer than a node may be silent
    session.scan()
    assert not session.peers[0].is_alive

    writer.write(Beat)
    session.scan()
    assert session.peers[0].is_alive


def test_events_of_other_sessions_are_ignored(tmp_path: Path) -> None:
    """In the same folder node 0 joined session 1, and node 1 joined session 2, which is read.

    ``wait_for_all`` returns the ranks of the nodes that have joined, as soon as one has.
    """
    join(tmp_path, rank=0, session=1)
    join(tmp_path, rank=1, session=2)
    session = Session(tmp_path, session_number=2)

    joined_ranks = session.wait_for_all(num_nodes=1, timeout_s=60, is_stopped=never_stop)
    assert joined_ranks == [1]


def test_each_phase_has_its_planned_rounds() -> None:
    """``repeats`` is the number of rounds of single nodes, ``rounds`` that of pairs, if given."""
    request = AcceptRequest(repeats=4, phases="nodes,pairs")

    # In 63 rounds each of 64 nodes meets each other one.
    assert count_rounds(request, num_nodes=64) == {"nodes": 4, "pairs": 63}
    fewer_pairs = request.model_copy(update={"rounds": 8})
    assert count_rounds(fewer_pairs, num_nodes=64)["pairs"] == 8


@pytest.mark.parametrize(
    ("settings", "fields", "where"),
    [
        ("ssh: {hosts: [a]}", {"nproc": 1}, "--nnodes"),  # one node only
        ("ssh: {hosts: [a, b]}", {}, "--nproc"),  # the number of ranks of a node is not known
        # Nodes would not share a folder.
        ("ssh: {hosts: [a, b], run_root: /tmp/x}", {"nproc": 1}, "cluster file"),
        # The same host twice. This is found last, after the plans were made; for the CPU they can
        # be made on any machine.
        ("ssh: {hosts: [a, A]}", {"nproc": 1, "device": "cpu"}, "ssh.hosts"),
    ],
)
def test_cluster_that_cannot_be_accepted_is_refused(
    tmp_path: Path, settings: str, fields: dict[str, Any], where: str
) -> None:
    """A request that cannot work is refused before any node is started.

    Args:
        settings: the content of the cluster file, which lists the hosts to log in to.
        fields: further fields of the request; ``nproc`` is the number of ranks of each node.
        where: the option or setting that the error names as its place.
    """
    (tmp_path / "cluster.yaml").write_text(settings)
    request = AcceptRequest.build(
        case="toy",
        launcher="ssh",
        cluster=tmp_path / "cluster.yaml",
        out=tmp_path / "out",
        **fields,
    )

    with pytest.raises(UsageError) as refused, prepare_session(request):
        pass

    assert str(refused.value.where).endswith(where)
    assert not list((tmp_path / "out").glob("*.json"))  # no plan or result was written


def test_time_limit_of_a_session_is_not_that_of_its_plan(tmp_path: Path) -> None:
    """The plan has the limit of one training, and the job that of all rounds.

    Earlier versions wrote the job's limit into the recipe of the session's plan. A folder with such
    a plan can still be read.
    """
    (tmp_path / "cluster.yaml").write_text("ssh: {hosts: [a, b]}")
    request = AcceptRequest.build(
        case="toy",
        launcher="ssh",
        cluster=tmp_path / "cluster.yaml",
        out=tmp_path / "out",
        nproc=1,
        device="cpu",
    )
    opened, plans = plan_session(request, dry_run=True)
    assert opened.plan.recipe == plans[0].recipe  # of a training on one node
    job = opened.describe_job()
    # An agent on each node; the others go on if one fails.
    assert (job.node_module, job.ends_with_a_node) == ("trainmark.acceptance.agent", False)
    assert (job.nnodes, job.run_dir) == (2, opened.session_dir)
    # 300 s to join and two deadlines of 600 s for each of 5 rounds of devices, 5 of nodes, 1 of
    # pairs and 2 barriers. Two nodes have no rounds of groups.
    assert job.timeout_s == 300 + 2 * 600 * (5 + 5 + 1 + 2)

    opened.session_dir.mkdir(parents=True)
    save_request(opened.folder, opened.request, plans)
    (opened.session_dir / CLUSTER_FILE).write_text(opened.cluster.model_dump_json())
    recipe = opened.plan.recipe | {"timeout_s": job.timeout_s}
    opened.plan.model_copy(update={"recipe": recipe}).save(opened.session_dir)
    assert read_session(opened.session_dir).limit_s == job.timeout_s


def test_error_of_the_block_that_attaches_a_session_is_not_a_taken_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``attach_session`` locks the folder of an acceptance while its ``with`` block runs."""
    # A folder with one session. What it holds is replaced: the test is only about the lock.
    (tmp_path / "sessions" / "1").mkdir(parents=True)
    monkeypatch.setattr(cluster, "read_session", lambda _: UnsubmittedSession())
    # An error of the block itself passes unchanged, though it has the type by which
    # ``attach_session`` notices a lock that another command holds.
    with pytest.raises(BlockingIOError, match="of the block"), attach_session(tmp_path):
        raise BlockingIOError("of the block")
    # The lock itself, held by another command (here by the outer block), is reported.
    with (
        attach_session(tmp_path),
        pytest.raises(EnvironmentFault, match="already waiting"),
        attach_session(tmp_path),
    ):
        pass


def wait_for_engine(engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a job of two nodes with a time limit of 100 s, by the clock of ``engine``.

    Nobody asks to stop: no signal came, and no earlier command has cancelled the job.
    """
    monkeypatch.setattr(job_watch, "time", engine)
    opened = SimpleNamespace(
        folder=folder,
        number=1,  # of the session
        request=AcceptRequest(),
        plan=SimpleNamespace(nnodes=2),
        limit_s=100.0,  # of the job
    )
    cluster.wait_for_nodes(
        cast("Any", opened),
        cast("Any", engine),
        cast("Any", SimpleNamespace(num_cancels=0)),
        cast("Any", SimpleNamespace(signal_name=None)),
        show=lambda _: None,
    )


def test_time_in_the_queue_of_the_engine_is_no_time_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with a limit of 100 s waits in the queue for longer than that, then runs and ends.

    ``Engine`` takes the phases of the job that it answers when it is asked, every 60 s from 0 s on:
    it is asked five times while the job waits, at 300 s, and at 360 s.
    """
    engine = Engine(["waiting"] * 5 + ["running", "ended"], poll_s=60)
    wait_for_engine(engine, tmp_path, monkeypatch)  # which sets the limit
    assert (engine.queried_at_s[-1], engine.num_cancels) == (360, 0)


def test_job_is_cancelled_after_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is first seen to run at 60 s. Its limit of 100 s is exceeded at the look at 161 s.

    The time is looked at each second, and the engine asked for the job's phase every 60 s;
    ``Engine`` takes the phases that it answers. "lost": it took the cancelled job's nodes away.
    """
    engine = Engine(["waiting", "running", "running", "lost"], poll_s=60)
    wait_for_engine(engine, tmp_path, monkeypatch)  # which sets the limit
    # At the look after the cancel the engine is asked again, and not only at 180 s.
    assert (engine.queried_at_s, engine.num_cancels) == ([0, 60, 120, 162], 1)


def test_wait_for_an_engine_that_never_answers_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node joins. The job is cancelled after its limit of 100 s, and given up 90 s later.

    ``wait_for_engine`` sets the limit; it also holds for the time in which the engine is silent.
    The 90 s are those that ``job_watch`` waits from the first cancel for the job to end.
    """
    # ``Engine`` takes what it answers to each question for the job's state; None: it does not
    # answer. Asked every 5 s and after each cancel, it needs fewer than 50 of them in 191 s.
    engine = Engine([None] * 50, poll_s=5)
    wait_for_engine(engine, tmp_path, monkeypatch)
    assert engine.num_cancels >= 1
    # The wait looks each second: at 101 s for the first time at more than 100 s.
    assert engine.queried_at_s[-1] <= 101 + 90


def test_engine_is_asked_no_more_often_than_its_launcher_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait looks each second, but asks for the job's phase every 5 s (``poll_s``).

    ``Engine`` takes the phases that it answers: it is asked four times until the job has ended.
    """
    engine = Engine(["waiting", "running", "running", "ended"], poll_s=5)
    wait_for_engine(engine, tmp_path, monkeypatch)
    assert engine.queried_at_s == [0, 5, 10, 15]


def test_job_that_ends_with_its_nodes_is_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only node that joined leaves in the first second, but the job ends only after 10 s.

    Until then nobody measures, but the job is still believed to run. The engine is asked every 5 s:
    at 0 s the job runs, at 5 s there is no answer (None), and at 10 s it says that the job ended.
    """
    writer = join(tmp_path, rank=0)

    def leave() -> None:
        writer.write(Left, signal=None)

    engine = Engine(["running", None, "ended"], poll_s=5, on_first_sleep=leave)
    wait_for_engine(engine, tmp_path, monkeypatch)
    assert (engine.queried_at_s, engine.num_cancels) == ([0, 5, 10], 0)


def test_attach_takes_the_last_session_and_ignores_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each session of an acceptance has a folder. ``attach_session`` opens the last one by
    # ``read_session``, which is replaced: it notes the folder. Here are the sessions 2 and 10, the
    # last one by its number though not by its name, and a file that a file manager left.
    for name in ("2", "10"):
        (tmp_path / "sessions" / name).mkdir(parents=True)
    (tmp_path / "sessions" / ".DS_Store").touch()
    opened_folders = []

    def note_folder(session_dir: Path) -> UnsubmittedSession:
        opened_folders.append(session_dir.name)
        return UnsubmittedSession()

    monkeypatch.setattr(cluster, "read_session", note_folder)

    with attach_session(tmp_path):
        pass

    assert opened_folders == ["10"]


def test_attach_to_a_folder_without_a_session_is_refused(tmp_path: Path) -> None:
    """The folder of an acceptance would have ``sessions``; this one is empty."""
    with pytest.raises(RecordError) as refused, attach_session(tmp_path):
        pass
    assert refused.value.where == str(tmp_path)
