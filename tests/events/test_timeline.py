"""Figures from events, of a run computed by hand and of random ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fakes import launch_event, make_event, make_span, make_window, measure, write_run
from trainmark.events.timeline import RunTimeline, read_run
from trainmark.protocols import Counts
from trainmark.record.figures import FIGURES, compute_figures
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

H100 = "NVIDIA H100 80GB HBM3"
S = 1_000_000_000
EXCEPTION_MESSAGE = {"code": "exception", "args": {"text": "m"}}


def make_facts(t_ns: int, product: str = H100, matmul: float | None = 4e14) -> dict[str, Any]:
    """Return the event in which a rank reports its device and the device's rate of matmuls.

    The device has 80,000 bytes of memory, any number, which the figure ``mem_total`` repeats.

    Args:
        t_ns: when the rank reports them.
        product: name of the device; the table of published peaks has ``H100``.
        matmul: the rate in FLOP/s; None: it was not measured.
    """
    return make_event(
        "facts",
        t_ns,
        device={"name": product, "memory_total_bytes": 80_000},
        memory_scope="device",
        matmul_flops_per_second=matmul,
    )


def make_uneven_ranks(
    *, product: str = H100, flops: float | None = 2e14
) -> list[list[dict[str, Any]]]:
    """Return the events of two ranks: 5 steps, 2 of them measured, one evaluation.

    ``flops`` are those of each window; each sample has 10 tokens. ``wait_ns`` is the time in which
    each step waits for data. Losses and bytes of memory are any that differ between the ranks.

    Rank 0 trains 4 samples a step and rank 1 three, two in the last step. Times in seconds:

    rank 0: start 1 | init 1-3 | facts | windows 4-6, 6-8, 8.5-12.5 | evaluate 13-15 | train 4-16
    rank 1: start 2 | init 2-3 | facts | windows 4-6, 6-8, 8.5-13   | evaluate 13-15 | train 4-17
    """
    ranks = []
    for rank, (start, samples, last_samples, last_end, trained_end) in enumerate(
        # Start; samples of a step and of the last step; ends of the last window and of training.
        [(1 * S, 4, 4, 12_500_000_000, 16 * S), (2 * S, 3, 2, 13 * S, 17 * S)]
    ):
        # Rank 0 is faster: it ends its first step after 1 s, but its window waits for rank 1.
        first_step_ns = S + S * rank
        # The last window, as that of the warm-up, is half a second longer than its steps.
        last_steps = [2 * S, last_end - 8_500_000_000 - 2 * S - S // 2]
        ranks.append(
            [
                make_event("start", start, pid=100 + rank),
                make_span("init", start, 3 * S),
                make_facts(3 * S, product),
                make_window(
                    4 * S,
                    6 * S,
                    phase="compile",
                    step_ns=[first_step_ns],
                    wait_ns=[S // 4],
                    samples=[samples],
                    loss=[3.0 + rank],
                    tokens=10 * samples,
                    model_flops=flops,
                ),
                make_window(
                    6 * S,
                    8 * S,
                    phase="warmup",
                    first_step=1,
                    step_ns=[S, S // 2],
                    wait_ns=[S // 4, 0],
                    samples=[samples] * 2,
                    loss=[2.0, 2.0],
                    tokens=20 * samples,
                    model_flops=flops,
                ),
                make_window(
                    8_500_000_000,
                    last_end,
                    first_step=3,
                    step_ns=last_steps,
                    wait_ns=[0, S // 2 * rank],
                    samples=[samples, last_samples],
                    loss=[1.0, 0.5 - rank],
                    tokens=10 * (samples + last_samples),
                    used_bytes=2_000 + 500 * rank,
                    model_flops=flops,
                ),
                make_event(
                    "evaluate",
                    15 * S,
                    epoch=0,
                    step=5,
                    start_ns=13 * S,
                    end_ns=15 * S,
                    value=0.8,
                    samples=50,
                    detail={},
                    target_reached=True,
                ),
                make_event(
                    "trained", trained_end, start_ns=4 * S, end_ns=trained_end, steps=5, epochs=1
                ),
                make_event(
                    "result",
                    trained_end,
                    used_bytes=2_000 + 500 * rank,
                    allocator_peak_bytes=1_500 + rank,
                    job={},
                ),
                make_event("end", trained_end + S),
            ]
        )
    return ranks


@pytest.fixture
def uneven_run(tmp_path: Path) -> RunTimeline:
    """Return the run of the two ranks of ``make_uneven_ranks``, launched at 0.5 s."""
    return read_run(write_run(tmp_path / "run", [launch_event(S // 2)], *make_uneven_ranks()), 2)


def test_two_uneven_ranks_give_exact_figures(uneven_run: RunTimeline) -> None:
    """All figures of a run of two ranks equal those computed by hand from its events.

    ``make_uneven_ranks`` has the events. Windows end at 6, 8 and 12.5 s on rank 0 and at 6, 8
    and 13 s on rank 1, and the last one is measured; evaluation takes 2 s. ``FIGURES`` has the
    unit of each figure; 989e12 FLOP/s is the published bf16 peak of the device, an H100. FLOPs
    are 2e14 on each rank in the last window, which takes 4.5 s on the slower one; tokens are
    ten a sample. ``uneven_run`` is the run with these events.
    """
    figures = compute_figures(measure(uneven_run, precision="bf16", warmup_steps=3))
    values = {name: figure.value for name, figure in figures.items()}
    # Figures of telemetry, which this run does not have.
    sampled = {"utilization", "power", "temperature", "energy_per_sample", "energy_to_target"}
    assert {values.pop(name) for name in sampled} == {None}
    # Rank 0 trains 4 samples in each of 5 steps; rank 1 trains 3, in the last step 2.
    samples = 5 * 4 + 4 * 3 + 2
    # ``make_window`` writes as many sequences and padded tokens as samples, if no others are given.
    assert uneven_run.counts == Counts(
        samples=samples, sequences=samples, tokens=10 * samples, tokens_padded=samples
    )
    assert values == pytest.approx(
        {
            "e2e_time": 17.5,  # from the launch at 0.5 s to rank 1's end at 18 s
            "train_time": 13.0,  # rank 1: 4 to 17
            "p_whole": 34 / 13,
            "p_train": 34 / 11,  # less 2 s of evaluation
            "p_core": 34 / 10.0,  # less data wait: rank 0: 12 - 2 - 0.5; rank 1: 13 - 2 - 1
            "token/p/s": 340 / 11 / 2,
            "final_result": 13 / 4.5,  # 8 + 5 samples in rank 1's window of 4.5 s
            # Steps 4 and 5: 2 s on both; 1.5 s on rank 0 and 2 s on rank 1. The slowest counts.
            "step_time_p50": 2.0,
            "step_time_p90": 2.0,
            "step_time_p99": 2.0,
            "step_time_mad": 0.0,
            "step_time_cv": 0.0,
            "model_flops_per_device": 4e14 / 4.5 / 2,
            "matmul_flops_per_device": 4e14,
            "MFU": 100 * (4e14 / 4.5 / 2) / 989e12,
            "MAMFU": 100 * (4e14 / 4.5 / 2) / 4e14,
            # Rank 0: 4 x (3 + 2 + 2 + 1 + 0.5); rank 1: 3 x (4 + 2 + 2 + 1) - 2 x 0.5.
            "loss": 60 / 34,
            "final_loss": (4 * 0.5 - 2 * 0.5) / 6,
            "mem": 2_500.0,
            "mem_total": 80_000.0,
            "allocator_peak": 1_501.0,
        },
        rel=1e-12,
    )
    # The units of all these figures; "" is that of the losses.
    assert {FIGURES[name].unit for name in figures} == {
        "s",
        "samples/s",
        "tokens/s",
        "{work}/s",
        "FLOP/s",
        "%",
        "bytes",
        "",
        "W",
        "°C",
        "J/sample",
        "J",
    }
    assert figures["MFU"].note == message(
        "dense_peak", precision="bf16", tflops=989.0, evidence="A"
    )


@pytest.mark.parametrize(
    ("readings", "of_result", "highest"),
    [
        ([3_000, 9_000, 2_000], 1_000, 9_000),
        ([3_000, None, 2_000], 4_000, 4_000),
        ([3_000, 5_000, None], None, 5_000),
        ([None, None, None], None, None),
    ],
)
def test_memory_is_the_highest_reading(
    tmp_path: Path, readings: list[int | None], of_result: int | None, highest: int | None
) -> None:
    # ``readings`` are bytes used at the end of each of three windows, ``of_result`` those at the
    # end of the run; None: not known. ``S`` is a second in ns.
    # A window lasts a second and has a step of 4 samples; only ``used_bytes`` matters here.
    ranks = [
        [
            make_event("start", 0, pid=1),
            *(
                make_window(
                    number * S,
                    (number + 1) * S,
                    first_step=number,
                    step_ns=[S],
                    samples=[4],
                    loss=[1.0],
                    used_bytes=used_bytes,
                )
                for number, used_bytes in enumerate(readings)
            ),
            make_event("result", 4 * S, used_bytes=of_result),
        ],
        [make_event("start", 0, pid=2), make_event("result", 4 * S, used_bytes=500)],
    ]
    run = read_run(write_run(tmp_path / "run", [launch_event()], *ranks), 2)
    # Readings of the windows and of the result (``of_result``); the second rank has one reading.
    # The figure is that of the rank that used most.
    assert [rank.used_bytes for rank in run.ranks] == [highest, 500]
    assert compute_figures(measure(run)).get("mem").value == max(highest or 0, 500)


def test_losses_are_weighted_by_samples_and_skip_nonfinite_values(tmp_path: Path) -> None:
    def read_losses(loss: list[float | None]) -> list[Any]:
        """Return the loss figures; each step has 10 samples, the last but one has 30."""
        run_dir = tmp_path / str(len(loss)) / str(loss[-1])  # another one for each call
        steps = [S] * len(loss)
        window_event = make_window(
            4 * S,
            40 * S,  # longer than the steps, which losses do not depend on
            step_ns=steps,
            wait_ns=[0] * len(loss),
            loss=loss,
            samples=[10] * (len(loss) - 2) + [30, 10],
        )
        rank = [make_event("start", S, pid=1), make_facts(3 * S), window_event]
        run_dir.mkdir(parents=True)
        run = read_run(write_run(run_dir / "run", [launch_event(S // 2)], rank), 1)
        figures = compute_figures(measure(run, precision="bf16", warmup_steps=3))
        return [figures["loss"], figures["final_loss"]]

    # 17 steps of 10 samples, one that does not count, and steps of 30 and of 10. The final loss
    # is that of the last tenth of the 20 steps, so of two.
    whole_run, last = read_losses([9.0] * 17 + [None, 1.0, 2.0])
    assert (whole_run.value, last.value) == ((170 * 9 + 30 + 20) / 210, 50 / 40)
    for figure in read_losses([None, None, None]):
        assert (figure.value, figure.reason) == (None, message("no_finite_loss"))


def test_samples_of_several_sequences_are_also_counted_as_sequences(tmp_path: Path) -> None:
    ranks = make_uneven_ranks()
    for item in ranks[1]:
        if item["event"] == "window":
            item["sequences"] *= 3  # each sample of rank 1 has three sequences
    run = read_run(write_run(tmp_path / "run", [launch_event(S // 2)], *ranks), 2)
    figures = compute_figures(measure(run, precision="bf16", warmup_steps=3))
    samples_of_first, samples_of_second = (rank.counts.samples for rank in run.ranks)
    # 34 samples are trained in 11 s, with 10 tokens each; see ``make_uneven_ranks``.
    sequences = samples_of_first + 3 * samples_of_second
    sequence_rate = figures["p_train_sequences"]
    assert sequence_rate.value == pytest.approx(sequences / 11)
    assert FIGURES["p_train_sequences"].unit == "sequences/s"
    assert sequence_rate.note == message("sequences_per_sample", sequences=sequences / 34)
    tokens = figures["p_train_tokens"]
    assert tokens.value == pytest.approx(340 / 11)
    assert FIGURES["p_train_tokens"].unit == "tokens/s"
    assert figures["p_train"].value == pytest.approx(34 / 11)


def test_two_uneven_ranks_give_an_exact_series_and_spans(uneven_run: RunTimeline) -> None:
    # In each of 5 steps rank 0 trains 4 samples and rank 1 trains 3, in the last step 2. A step of
    # the run has the time of the slower rank, the samples of both and the mean loss of a sample.
    # Losses are 3 and 4 in the first step, the same on both ranks up to the fourth, and 0.5 and
    # -0.5 in the last.
    assert uneven_run.series.step_ns.tolist() == [2 * S, S, S // 2, 2 * S, 2 * S]
    assert uneven_run.series.samples.tolist() == [7, 7, 7, 7, 6]
    assert uneven_run.series.loss.tolist() == [
        (4 * 3 + 3 * 4) / 7,
        2.0,
        2.0,
        1.0,
        (4 * 0.5 - 1) / 6,
    ]
    assert uneven_run.warmup_steps == 3
    # The launch is at 0.5 s; rank 0 starts at 1 s and ends at 17 s.
    first = uneven_run.ranks[0]
    assert first.spans_ns == {
        "launch": S // 2,
        "init": 2 * S,
        "preflight": 0,
        "data_build": 0,
        "model_build": 0,
        "check": 0,
        "compile": 2 * S,
        "warmup": 2 * S,
        "train": 4 * S,
        "evaluate": 2 * S,
        "checkpoint": 0,
        "finish": 0,
        "unfinished": 0,
        "other": 4 * S,  # 3-4, 8-8.5, 12.5-13, 15-17
    }
    assert first.wall_ns == sum(first.spans_ns.values()) == 16_500_000_000
    second = measure(uneven_run).spans  # of the rank that took longest
    assert (second.rank, second.wall_ns) == (1, 17_500_000_000)
    assert second.train_parts_ns == {
        "data_wait": S,  # 0.25, 0.25 and 0.5 s of the steps' 2, 1, 0.5, 2 and 2 s
        "compute": 7_500_000_000 - S,  # the steps take 7.5 s
        "other": 8_500_000_000 - 7_500_000_000,  # the windows take 8.5 s
    }
    assert (first.steps, first.micro_batches, first.epochs) == (5, 5, 1)
    assert (first.trained.steps, first.target_reached, first.train_ns) == (5, True, 12 * S)


def compute_run_figures(
    tmp_path: Path, ranks: list[list[dict[str, Any]]], world_size: int = 2, **more: Any
) -> Any:
    """Return the figures, by name, of a run whose ranks have these events.

    ``measure`` joins the run with a plan of a device whose precision is bf16 and whose first three
    steps are not measured.

    Args:
        world_size: number of ranks, which may be more than those that left events.
        more: other values of that plan.
    """
    timeline = read_run(write_run(tmp_path / "run", [launch_event()], *ranks), world_size)
    return compute_figures(measure(timeline, precision="bf16", warmup_steps=3, **more))


def test_figure_names_are_always_the_same_and_null_has_a_reason(tmp_path: Path) -> None:
    # ``compute_run_figures`` writes a run of two ranks with these events, here none, and returns
    # its figures by name. ``FIGURES`` has all figures that there are.
    figures_without_events = compute_run_figures(tmp_path, [])
    assert set(figures_without_events) < set(FIGURES)  # others belong to single cases
    assert all(figure.value is None and figure.reason for figure in figures_without_events.values())
    # ``make_uneven_ranks`` has the events of two ranks; the first five end with the warm-up.
    whole_run = make_uneven_ranks()
    run_without_flops = make_uneven_ranks(flops=None)
    run_that_ended_early = [rank[:5] for rank in make_uneven_ranks()]
    for ranks in (whole_run, run_without_flops, run_that_ended_early):
        figures = compute_run_figures(tmp_path, ranks)
        assert figures.keys() == figures_without_events.keys()
        assert all(
            (figure.value is None) == (figure.reason is not None) for figure in figures.values()
        )


def test_mfu_of_an_unknown_product_is_null(tmp_path: Path) -> None:
    # Two devices trained 2e14 FLOPs each in a measured window of 4.5 s, and each multiplies
    # matrices at 4e14 FLOP/s; see ``make_uneven_ranks`` and ``make_facts``.
    # The name has an "e" at its end, which the table of published peaks does not have.
    # ``compute_run_figures`` returns the figures of a run with these events.
    figures = compute_run_figures(tmp_path, make_uneven_ranks(product="NVIDIA H100 80GB HBM3e"))
    assert figures["MFU"].value is None
    assert figures["MFU"].reason == message(
        "peak_unknown", precision="bf16", product="NVIDIA H100 80GB HBM3e"
    )
    # It needs only the rate that was measured, not a published one: 4e14 FLOPs in 4.5 s on two
    # devices, over 4e14 FLOP/s of matmuls.
    assert figures["MAMFU"].value == pytest.approx(100 * 4e14 / 4.5 / 2 / 4e14)


def test_run_without_measured_steps_gives_the_reason(tmp_path: Path) -> None:
    # Windows of the phase "train" are the measured ones; those of compiling and warming up stay,
    # with 3 steps. Training lasts 13 s on the rank that takes longest.
    figures = compute_run_figures(
        tmp_path,
        [
            [rank_event for rank_event in rank if rank_event.get("phase") != "train"]
            for rank in make_uneven_ranks()
        ],
    )
    assert figures["final_result"].reason == message("no_step_after_warmup", steps=3)
    assert figures["matmul_flops_per_device"].value == 4e14  # measured nevertheless
    assert figures["p_whole"].value == pytest.approx(21 / 13)  # 3 steps of 4 + 3 samples in 13 s


def test_rank_without_events_makes_throughputs_null(tmp_path: Path) -> None:
    # ``make_uneven_ranks`` has the events of two ranks. The run had two, but only the first left
    # events, so the time of the slower one is not known.
    figures = compute_run_figures(tmp_path, make_uneven_ranks()[:1])  # one of two
    # ``message`` is a text of the program by its name. The first reason says that no time of
    # training is known for the run, the second that a rank has no measured step.
    for name in ("train_time", "p_whole", "p_train", "p_core", "token/p/s"):
        assert figures[name].reason == message("no_train_time")
    for name in ("final_result", "step_time_p50", "MFU"):
        assert figures[name].reason == message("rank_without_measured_step")


def test_events_of_a_killed_rank_are_used(tmp_path: Path) -> None:
    # Rank 0 trains 4 samples in each of 5 steps, rank 1 three. ``S`` is a second in ns. Without
    # rank 1 the last steps take as long as on rank 0: 2 s and 1.5 s.
    ranks = make_uneven_ranks()
    ranks[1] = ranks[1][:5]  # up to its warm-up window, which ended at 8 s
    timeline = read_run(write_run(tmp_path / "run", [launch_event()], *ranks), 2)
    second = timeline.ranks[1]
    # It trained from 4 s on.
    assert (second.train_ns, second.finished, second.trained) == (4 * S, False, None)
    assert timeline.warmup_steps == 3
    # After its last event, the other rank's steps alone.
    assert timeline.series.samples.tolist() == [7, 7, 7, 4, 4]
    assert timeline.series.step_ns.tolist() == [2 * S, S, S // 2, 2 * S, 3 * S // 2]


def test_time_until_the_end_seen_by_the_launcher_is_a_span(tmp_path: Path) -> None:
    # One rank's events just end; the other one reports an error.
    # ``S`` is a second in ns. The launcher stopped the run at 20 s. ``EXCEPTION_MESSAGE`` is any
    # message of an error. A rank's time counts from the launch, at 0 s.
    cut_off = [make_event("start", S, pid=1), make_span("init", S, 3 * S)]
    raised = [
        make_event("start", S, pid=2),
        make_event(
            "error",
            2 * S,
            kind="error",
            type="E",
            message=EXCEPTION_MESSAGE,
            place="init",
            traceback="",
        ),
    ]
    launcher_events = [launch_event(), make_event("stop", 20 * S, reason="timeout", timeout_s=20)]
    run = read_run(write_run(tmp_path / "run", launcher_events, cut_off, raised), 2)
    first, second = run.ranks
    spans = first.spans_ns
    assert spans["unfinished"] == 17 * S  # from 3 to 20
    assert first.wall_ns == 20 * S - run.launch_ns == sum(spans.values())
    # A rank that reported its error has no such time.
    assert second.spans_ns["unfinished"] == 0
    assert second.wall_ns == 2 * S - run.launch_ns


NS = st.integers(0, 10**6)
STEP = st.tuples(NS, NS, st.integers(0, 64))  # waits, computes, samples
RANK = st.lists(st.tuples(st.lists(STEP, min_size=1, max_size=4), NS), min_size=1, max_size=5)


@given(ranks=st.lists(RANK, min_size=1, max_size=3), gap_ns=NS, evaluates=st.booleans())
def test_throughputs_are_ordered_and_spans_add_up(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[Any], gap_ns: int, evaluates: bool
) -> None:
    """Windows of random steps, with a gap after each.

    ``NS`` are times of up to 1 ms; ``RANK`` makes 1 to 5 windows of 1 to 4 steps.

    Args:
        ranks: for each rank its windows: the steps (time waiting for data and working, in ns;
            samples) and the window's time outside of its steps.
        gap_ns: before the first window and after each window.
        evaluates: whether each gap is an evaluation.
    """
    events_of_ranks = []
    for windows in ranks:
        first, now = gap_ns, gap_ns  # times in ns: of the first window, and of what comes next
        events = [make_event("start", now, pid=1)]
        phases = iter(["compile", "warmup"])  # of the first two windows
        for steps, idle_ns in windows:
            start = now
            step_ns = [wait + work for wait, work, _ in steps]
            now += sum(step_ns) + idle_ns
            events.append(
                make_window(
                    start,
                    now,
                    phase=next(phases, "train"),
                    step_ns=step_ns,
                    wait_ns=[wait for wait, _, _ in steps],
                    samples=[n for _, _, n in steps],
                )
            )
            if evaluates:
                events.append(
                    make_event(
                        "evaluate",
                        now + gap_ns,
                        epoch=0,
                        step=1,
                        start_ns=now,
                        value=0.5,
                        end_ns=now + gap_ns,
                        samples=1,
                        detail={},
                        target_reached=False,
                    )
                )
            now += gap_ns
        count = sum(len(steps) for steps, _ in windows)
        end_event = make_event("trained", now, start_ns=first, end_ns=now, steps=count, epochs=1)
        events_of_ranks.append([*events, end_event, make_event("end", now + gap_ns)])
    folder = tmp_path_factory.mktemp("run")
    timeline = read_run(write_run(folder, [launch_event()], *events_of_ranks), len(ranks))
    for rank in timeline.ranks:
        assert sum(rank.spans_ns.values()) == rank.wall_ns
        assert min(rank.spans_ns.values()) >= 0
    measurement = measure(timeline, warmup_steps=1)
    parts = measurement.spans.train_parts_ns
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == timeline.ranks[measurement.spans.rank].total_windows_ns
    figures = compute_figures(measurement)
    core, train, whole = (figures[name].value or 0 for name in ("p_core", "p_train", "p_whole"))
    assert core == 0 or core >= train  # 0 stands for no value
    assert train == 0 or train >= whole
