"""Baselines: reference times that replace a comparison with peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.fakes import GOLDEN
from trainmark.acceptance.acceptance import prepare_acceptance
from trainmark.acceptance.baseline import (
    Baselines,
    BaselineTime,
    compute_baselines_of_runs,
    load_baselines,
    read_baselines_of_acceptance,
)
from trainmark.acceptance.conclusion import conclude_devices
from trainmark.acceptance.evidence import EvidenceWriter, Joined, Measured
from trainmark.acceptance.folder import resolve_plans
from trainmark.acceptance.judgement import Measurements, Verdict
from trainmark.acceptance.model import Baseline, judge_measurements
from trainmark.acceptance.request import AcceptRequest
from trainmark.acceptance.tasks import RankResult
from trainmark.api.accepting import plan_acceptance
from trainmark.errors import UsageError
from trainmark.record.record import Record
from trainmark.record.trust import grade_reasons
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.acceptance.node_session import Acceptance

VARIATION = (1.0, 1.002, 0.998, 1.001, 0.999)  # of the times of five rounds, instead of noise
PRODUCT = "card"


def make_single_node_measurements(num_nodes: int, step_s: float) -> Measurements:
    """Return five rounds of each node alone; all nodes are equally fast.

    ``VARIATION`` has five factors near 1 (0.998 to 1.002), one for each round: in a round the steps
    of every node take ``step_s`` times its factor, which stands for noise. The three arrays have an
    element for each measurement: which node, in which round, and its seconds.
    """
    return Measurements(
        num_nodes=num_nodes,
        alone_node=np.tile(np.arange(num_nodes), len(VARIATION)),
        alone_round=np.repeat(np.arange(len(VARIATION)), num_nodes),
        alone_s=step_s * np.repeat(VARIATION, num_nodes),
    )


def test_uniformly_slow_cluster_fails_against_a_baseline() -> None:
    """Each of eight nodes was measured alone in five rounds, with steps of about 1.1 s.

    A baseline is the time of a step in earlier measurements, here 1.0 s; by default a node may be
    3% slower. ``count`` is the number of measurements whose median it is; 40 is any that is not
    small.
    """
    measured = make_single_node_measurements(num_nodes=8, step_s=1.1)

    # Without a baseline nodes are compared with one another, and these are equally fast.
    assert judge_measurements(measured).nodes.verdict == [Verdict.PASS] * 8
    nodes = judge_measurements(measured, baseline=Baseline(seconds=1.0, count=40)).nodes
    assert nodes.verdict == [Verdict.SLOW] * 8
    # 1.1 s over the 1.0 s of the baseline, minus 1.
    assert nodes.slower.tolist() == pytest.approx([0.1] * 8)


@pytest.mark.parametrize(("step_s", "verdict"), [(1.0, Verdict.PASS), (1.2, Verdict.SLOW)])
def test_single_node_is_judged_by_a_baseline(step_s: float, verdict: Verdict) -> None:
    """A node without peers is compared with a baseline, a step of 1.0 s.

    Steps of 1.0 s pass. Steps of 1.2 s are 20% slower, and by default only 3% are allowed.
    ``count`` is the number of measurements whose median the baseline is; 40 is any that is not
    small.
    """
    nodes = judge_measurements(
        make_single_node_measurements(num_nodes=1, step_s=step_s),
        baseline=Baseline(seconds=1.0, count=40),
    ).nodes

    assert nodes.verdict == [verdict]


def test_baseline_with_few_measurements_widens_the_intervals() -> None:
    """Four equally fast nodes take 1.0 s for a step alone, as long as the baseline.

    A node's slowdown is an estimate with an interval around it. A baseline is a median of ``count``
    measurements: the fewer they are, the less it is known, and the wider the interval.
    """
    measured = make_single_node_measurements(num_nodes=4, step_s=1.0)
    width = {}  # of the interval of the first node, by ``count``
    for count in (1, 100):
        nodes = judge_measurements(measured, baseline=Baseline(seconds=1.0, count=count)).nodes
        width[count] = nodes.high[0] - nodes.low[0]

    # Clearly wider. 1.2 is no computed ratio, only a margin that excludes an equal width.
    assert width[1] > 1.2 * width[100]


def make_request(folder: Path, **changes: object) -> AcceptRequest:
    """Return a request to time each of two CPU ranks alone, into ``folder``.

    ``changes`` are further fields of the request.
    """
    return AcceptRequest.build(
        case="toy", device="cpu", nproc=2, phases="devices", out=folder, **changes
    )


def write_evidence_and_result(acceptance: Acceptance, step_s: float) -> None:
    """Write five rounds of each device as if measured, and the result that follows from them.

    ``VARIATION`` has a factor near 1 for each of the five rounds, which stands for noise, and
    ``PRODUCT`` is the name of the product that all devices are. ``conclude`` judges what was
    written.
    """
    writer = EvidenceWriter(acceptance.folder, acceptance.node)
    device_names = list(acceptance.device_names)
    writer.write(
        Joined,
        node=acceptance.node,
        devices=device_names,
        products=[PRODUCT] * len(device_names),
        software={},
    )
    for number, factor in enumerate(VARIATION):
        for device, name in enumerate(device_names):
            result = RankResult(
                rank=0,  # of the training of this device alone
                device=device,
                product=PRODUCT,
                seconds={"step": [factor * step_s]},
                trainings=[],
                faults={},
            )
            writer.write(Measured, phase="devices", round=number, members=[name], results=[result])
    conclude_devices(acceptance, interrupted=None).result.write(acceptance.folder)


@pytest.fixture
def earlier_acceptance(tmp_path: Path) -> Path:
    """Return the folder of an acceptance of two devices, whose steps took 0.1 s in five rounds."""
    with prepare_acceptance(make_request(tmp_path / "earlier")) as acceptance:
        write_evidence_and_result(acceptance, step_s=0.1)
    return tmp_path / "earlier"


def test_later_acceptance_is_compared_with_an_earlier_one(
    earlier_acceptance: Path, tmp_path: Path
) -> None:
    """The steps of both devices took 0.1 s in the earlier acceptance, and 0.12 s in the later."""
    later = make_request(tmp_path / "later", baseline=str(earlier_acceptance))
    # As ``trainmark.api`` does, the test reads the times from the path that the request names.
    with prepare_acceptance(
        later, read_baselines=lambda plans: read_baselines_of_acceptance(earlier_acceptance, plans)
    ) as new:
        write_evidence_and_result(new, step_s=0.12)
        result = conclude_devices(new, interrupted=None).result

    assert result.baseline == str(earlier_acceptance)
    # Both devices fail: they are as fast as each other, but slower than the 0.1 s of before.
    assert [member.decision for member in result.members] == ["fail", "fail"]
    interval = result.members[0].findings[0].interval
    assert interval is not None
    assert interval.slower == pytest.approx(0.12 / 0.1 - 1)


def test_baseline_is_the_median_of_passed_devices(earlier_acceptance: Path) -> None:
    """Both devices passed the earlier acceptance: a median of 0.1 s over five rounds of each."""
    plans = resolve_plans(make_request(earlier_acceptance), [(1, 2)])  # one node with two ranks

    baselines = read_baselines_of_acceptance(earlier_acceptance, plans)

    count = 2 * len(VARIATION)  # rounds of two devices
    assert baselines.times == (
        BaselineTime(phase="devices", product=PRODUCT, quantity="step", seconds=0.1, count=count),
    )
    assert baselines.find("devices", PRODUCT, "step") == Baseline(seconds=0.1, count=count)
    # The earlier acceptance measured devices alone, but not the whole node.
    assert baselines.find("nodes", PRODUCT, "step") is None


def test_baseline_of_runs_leaves_out_runs_that_their_events_contradict() -> None:
    """Two records of the same run are given, of which only one is used.

    ``GOLDEN`` is the folder of stored example files; this one is the record of a run that passed on
    the only device of its node. Each call of ``compute_baselines_of_runs`` gets the records, the
    plans of the acceptance that is to be judged, which do the same work as the run, and a name of
    the baseline, which only errors and results show.
    """
    run = Record.model_validate_json((GOLDEN / "record_toy.json").read_bytes())
    # The same record, but rated as one whose evidence was altered after the run.
    refuted = run.model_copy(
        update={"trust": grade_reasons([message("evidence_altered", file="plan.json")])}
    )
    # The run is on one device, which is all of its node: it stands for both phases. A count is the
    # number of runs behind a time: 1, although two records were given.
    times = compute_baselines_of_runs([run, refuted], [run.plan], "runs").times
    assert [(time.phase, time.count) for time in times] == [("devices", 1), ("nodes", 1)]
    with pytest.raises(UsageError, match="the baseline contains no step time from a device"):
        compute_baselines_of_runs([refuted], [run.plan], "runs")


def test_baseline_of_other_work_is_refused_before_the_folder_is_made(
    earlier_acceptance: Path, tmp_path: Path
) -> None:
    """Times are comparable only between equal steps, so the batch sizes must be equal.

    The fixture returns the folder of a finished acceptance with the recipe's micro-batch size, 64.
    """
    later = make_request(tmp_path / "later", overrides={"micro_batch_size": "32"})

    with (
        pytest.raises(UsageError) as refused,
        prepare_acceptance(
            later,
            read_baselines=lambda plans: read_baselines_of_acceptance(earlier_acceptance, plans),
        ),
    ):
        pass

    assert "micro_batch_size" in refused.value.what
    assert not (tmp_path / "later").exists()


def test_dry_run_checks_the_baseline_and_needs_no_peers(
    earlier_acceptance: Path, tmp_path: Path
) -> None:
    """``plan_acceptance`` is what a dry run calls: it plans, and measures nothing."""
    later = make_request(tmp_path / "later", baseline=str(earlier_acceptance))
    timetable = plan_acceptance(later.model_copy(update={"nproc": 1})).make_timetable()

    # No remark that a single device has no other one to be compared with: it has the baseline.
    assert timetable.remarks == ()
    # A baseline of other work (the earlier acceptance had another micro-batch size) is refused.
    with pytest.raises(UsageError) as refused:
        plan_acceptance(later.model_copy(update={"overrides": {"micro_batch_size": "32"}}))
    assert "micro_batch_size" in refused.value.what
    assert str(refused.value.where).startswith("--baseline")
    assert not (tmp_path / "later").exists()


def test_resumed_acceptance_announces_only_missing_rounds(earlier_acceptance: Path) -> None:
    """Five of six wanted rounds have been measured, so one is missing.

    The fixture returns the folder of an acceptance with a round for each of the five factors of
    ``VARIATION``. The request wants one more (``repeats``).
    """
    request = make_request(earlier_acceptance, repeats=len(VARIATION) + 1)
    timetable = plan_acceptance(request).make_timetable()

    assert timetable.num_rounds == {"devices": 1}  # of six, five were measured
    assert timetable.limit_s == request.deadline  # seconds that the only missing round may take
    assert len(timetable.schedule[0].teams) == 2  # each of the two devices trains alone
    # It names how many rounds were measured in earlier sessions.
    assert len(timetable.remarks) == 1


def test_later_session_without_a_baseline_does_not_use_the_earlier_one(tmp_path: Path) -> None:
    """An acceptance keeps its baseline in its folder; the next session must not find it there."""
    request = make_request(tmp_path / "out")
    # The first session has a baseline: an empty one, named "x", which is enough to be kept.
    with prepare_acceptance(request, read_baselines=lambda _: Baselines(source="x", times=())):
        assert load_baselines(tmp_path / "out") is not None
    with prepare_acceptance(request):  # a second session in the same folder
        assert load_baselines(tmp_path / "out") is None
