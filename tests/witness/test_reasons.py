"""Why a printed speed differs from the measured one, on exact numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmark.events.schema import Printed, PrintedValues
from trainmark.record.printed import compare_printed, find_in_printed
from trainmark.record.printed_speed import summarize_printed

STEP_S, TOKENS, FLOPS, STEPS, WARMUP = 0.1, 1000, 5e9, 20, 10


def make_measurement(
    printed: dict[str, list[float]],
    *,
    ranks: int = 1,
    speed_line: str | None = "",
    steps_of_run: int = STEPS,
    **phase: Any,
) -> Any:
    """Return a measurement of a warm-up of 10 steps of 0.3 s, and 10 steps of 0.1 s.

    It has what ``compare_printed`` reads: a printed speed is compared with the measured one, and a
    difference is explained, if it can be.

    A step has 10 samples and 1,000 tokens (``TOKENS``). ``STEPS`` is 20, ``WARMUP`` 10.

    Args:
        printed: the values of each quantity that the program printed.
        speed_line: the pattern of the work's file; the default stands for any. None: the file has
            none, and known forms are read.
        steps_of_run: steps that the values are of, warm-up included.
        phase: other fields of the measured steps, such as ``samples``.
    """
    train = SimpleNamespace(
        **{
            "windows_ns": 1_000_000_000,
            "steps": 10,
            "samples": 100,
            "tokens": 10 * TOKENS,
            "tokens_padded": 10 * TOKENS,
            "micro_batches": 10,
            "wait_ns": 0,
        }
        | phase
    )
    # Evaluations and checkpoints take 3.5 s of the training.
    rank = SimpleNamespace(
        phases={"train": train}, steps=20, total_windows_ns=4_000_000_000, train_ns=7_500_000_000
    )
    speeds = [
        PrintedValues(quantity=name, lines=len(values), values=values, raw="line")
        for name, values in printed.items()
    ]
    # The last step takes 0.08 s instead: a program may print only its best step.
    times_ns = [300_000_000] * WARMUP + [100_000_000] * 9 + [80_000_000]
    return SimpleNamespace(
        printed=summarize_printed(
            Printed(t_ns=0, speeds=speeds), steps=steps_of_run, warmup=WARMUP
        ),
        ranks=[rank] * ranks,
        plan=SimpleNamespace(witness=SimpleNamespace(spec=SimpleNamespace(speed_line=speed_line))),
        steps=SimpleNamespace(warmup=WARMUP, time_ns=times_ns),
    )


def make_figures(*, mfu: float | None = 25.0) -> Any:
    """Return the figures that fit ``make_measurement``; ``mfu`` in percent, None: not known."""
    # 10,000 tokens a second (1,000 a step), 0.1 s a step and 0.05 TFLOP/s (5e9 FLOPs a step).
    values = {
        "final_result": TOKENS / STEP_S,
        "step_time_p50": STEP_S,
        "model_flops_per_device": FLOPS / STEP_S,
        "MFU": mfu,
    }
    return {name: SimpleNamespace(value=value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("printed", "phase", "reason"),
    [
        # Measured: 1e4 tokens/s, 100 ms a step, at best 80 ms, with the warm-up 200 ms and over the
        # whole training 375 ms; 0.05 TFLOP/s and 25% MFU. ``phase`` makes a difference explainable:
        # 2 or 4 micro-batches a step, 1.4 times the tokens with padding, 0.6 of 1 s spent waiting.
        ({"tokens_per_second": [2e4] * 20}, {"micro_batches": 20}, "micro_batches"),
        ({"tokens_per_second": [2e4] * 20}, {}, "twice"),
        ({"tokens_per_second": [2.5e3] * 20}, {"micro_batches": 40}, "accumulation"),
        ({"tokens_per_second": [1.4e4] * 20}, {"tokens_padded": 14_000}, "padding"),
        ({"tokens_per_second": [2.5e4] * 20}, {"wait_ns": 600_000_000}, "waiting"),
        ({"step_ms": [200.0] * 20}, {}, "warmup"),
        ({"steps_per_second": [12.5] * 20}, {}, "fastest"),
        ({"steps_per_second": [1 / 0.375] * 20}, {}, "whole"),
        ({"tflops_per_device": [0.08] * 20}, {}, "formula"),
        ({"mfu_percent": [35.0] * 20}, {}, "peak"),
    ],
)
def test_difference_has_its_reason(printed, phase, reason):
    (comparison,) = compare_printed(make_measurement(printed, **phase), make_figures())
    assert comparison.reason is not None
    assert not comparison.agrees
    assert comparison.reason.code == f"printed_because_{reason}"


def test_speed_per_rank_is_distinguished_from_the_total():
    # It prints the speed of one of its four ranks.
    # A rank trains 1,000 tokens in a step of 0.1 s, so four train 4e4 a second.
    measurement = make_measurement({"tokens_per_second": [1e4] * 20}, ranks=4)
    (comparison,) = compare_printed(measurement, make_figures())
    assert comparison.measured == pytest.approx(4e4)
    assert comparison.reason is not None
    assert comparison.reason.code == "printed_because_one_rank"


@pytest.mark.parametrize("quantity", ["tokens_per_second", "tokens_per_second_per_device"])
def test_ranks_counted_twice_are_named(quantity):
    # 4 times the measured speed: 4e4 of all four ranks, 1e4 of each. The program prints it 20
    # times.
    speed = 1.6e5 if quantity == "tokens_per_second" else 4e4
    (comparison,) = compare_printed(
        make_measurement({quantity: [speed] * 20}, ranks=4), make_figures()
    )
    assert comparison.reason is not None
    assert comparison.reason.code == "printed_because_all_ranks"
    assert comparison.reason.args == {"ratio": 4.0}


def test_speed_printed_once_may_be_of_the_whole_training():
    (comparison,) = compare_printed(
        make_measurement({"samples_per_second": [26.0]}), make_figures()
    )
    assert comparison.agrees
    # Compared with the speed of the whole training: 10 samples a step, and 7.5 s for 20 steps,
    # which is 0.375 s for each, with warm-up and pauses. That is 26.67, and 26.67 / 26 - 1 is 1/39.
    assert (comparison.measured, comparison.change) == (
        pytest.approx(10 / 0.375),
        pytest.approx(1 / 39),
    )


def test_speed_printed_once_may_be_of_the_steady_steps():
    (comparison,) = compare_printed(
        make_measurement({"samples_per_second": [100.0]}), make_figures()
    )
    # ``make_measurement`` has 10 steps of warm-up and then 10 of 0.1 s. The program prints one
    # value, which may be of all steps or of the latter.
    assert comparison.agrees
    # 10 samples a step of 0.1 s, after the warm-up.
    assert comparison.measured == pytest.approx(100.0)


def test_samples_of_a_device_are_those_of_all_divided_by_ranks():
    measurement = make_measurement({"samples_per_second_per_device": [100.0] * 20}, ranks=4)
    (comparison,) = compare_printed(measurement, make_figures())
    # 4 ranks with 100 samples each in 1 s: 400 a second, divided by 4.
    assert comparison.measured == pytest.approx(100.0)


def test_fastest_step_so_far_is_named_if_steps_hardly_vary():
    """The printed values never fall, as those of the fastest step so far do.

    The last one is 2% above the measured mean of 1e4. A difference of 2% alone would agree. The
    first 10 (``WARMUP``) of 30 values do not count; 20 are the fewest that can show it.
    """
    values = [5e3] * WARMUP + [9.95e3] * 9 + [1.012e4] * 10 + [1.02e4]
    (comparison,) = compare_printed(
        make_measurement({"tokens_per_second": values}, steps_of_run=30), make_figures()
    )
    assert comparison.reason is not None
    assert comparison.reason.code == "printed_because_fastest"
    assert not comparison.agrees


@pytest.mark.parametrize(
    "values",
    [
        # Each comment says why the values do not show that the fastest step so far is printed.
        [1.0e4] * 29 + [1.1e4],  # two digits: such values repeat by themselves
        [10_123.0] * 30,  # all are equal
        [9.95e3] * 28 + [1.02e4, 1.01e4],  # the last one is slower than the one before
        [9.95e3] * 28 + [1.02e4],  # 19 after the warm-up, the first third; 20 would show it
    ],
)
def test_speed_that_hardly_varies_is_no_fastest_step(values):
    (comparison,) = compare_printed(
        make_measurement({"tokens_per_second": values}, steps_of_run=30), make_figures()
    )
    assert comparison.agrees


def test_flops_differ_by_the_formula_if_the_speed_agrees():
    """A rule on time would predict the same difference."""
    # Half of the measured TFLOP/s; with two micro-batches a step, half could be a time as well.
    printed = {"tokens_per_second": [1e4] * 20, "tflops_per_device": [0.05 / 2] * 20}
    speed, flops = compare_printed(make_measurement(printed, micro_batches=20), make_figures())
    assert speed.agrees
    assert flops.reason is not None
    assert flops.reason.code == "printed_because_formula"
    assert flops.reason.args == {"ratio": pytest.approx(0.5)}


def test_output_without_a_known_form_is_said():
    measurement = make_measurement({}, speed_line=None)
    assert [x.code for x in find_in_printed(measurement, make_figures())] == ["printed_unknown"]


def test_speed_that_agrees_has_no_reason():
    # A run of 20 steps, 10 of which are warm-up. The values of the warm-up do not count; the mean
    # of the others is the measured 1e4 tokens a second.
    measurement = make_measurement({"tokens_per_second": [1.0] * 10 + [9.9e3, 1.01e4] * 5})
    (comparison,) = compare_printed(measurement, make_figures())
    assert comparison.agrees
    assert comparison.reason is None
    assert [x.code for x in find_in_printed(measurement, make_figures())] == ["printed_agrees"]


def test_speed_without_a_measured_one_is_named():
    # The program prints 40% in each of 20 steps; the measured MFU is not known.
    measurement = make_measurement({"mfu_percent": [40.0] * 20})
    findings = list(find_in_printed(measurement, make_figures(mfu=None)))
    assert [finding.code for finding in findings] == ["printed_unmeasured"]


@pytest.mark.parametrize("values", [[], [0.0, 0.0, 0.0]], ids=["no_line", "only_zeros"])
def test_output_without_a_speed_is_reported(values):
    measurement = make_measurement({"tokens_per_second": values})
    assert [x.code for x in find_in_printed(measurement, make_figures())] == ["printed_nothing"]


def test_mean_of_rates_is_over_the_time():
    measurement = make_measurement({"tokens_per_second": [1.0] * 10 + [5e3, 2e4] * 5})
    assert measurement.printed[0].mean == pytest.approx(8e3)  # 1 / mean(1 / 5e3, 1 / 2e4)
