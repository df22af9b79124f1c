"""The speed in a program's output is read without a pattern, if it stands there in a known form."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from trainmark.published.analysis.speeds import read_logged_speeds

if TYPE_CHECKING:
    from pathlib import Path

TORCHTITAN = [
    f"[titan] 2026-11-28 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  7.62  "
    f"\x1b[34mmemory: 66.91GiB(37.51%)  \x1b[34mtps: {tps:,}  \x1b[36mtflops: {tflops}  "
    f"\x1b[35mmfu: {mfu}%\x1b[39m"
    for step, tps, tflops, mfu in ((1, 1426, 40.5, 4.1), (10, 10050, 314.71, 31.8))
]
TRAINER = [
    "{'loss': '2.77', 'grad_norm': '1.2', 'learning_rate': '4e-05', 'epoch': '0.02'}",
    "{'train_runtime': '20', 'train_samples_per_second': '80.5', 'train_steps_per_second': '10.1',"
    " 'train_loss': '5.5', 'epoch': '0.1'}",
]
MEGATRON = [
    f" iteration {step:8}/ 200 | elapsed time per iteration (ms): {ms} | throughput per GPU "
    f"(TFLOP/s/GPU): {rate} | global batch size: 512 | lm loss: 6.8E+00 |"
    for step, ms, rate in ((10, 2000.0, 300.0), (20, 1000.0, 600.0))
]
NANOGPT = [
    f"iter {step}: loss 3.4, time {ms}ms, mfu {mfu}%"
    for step, ms, mfu in ((0, 900.0, -100.0), (10, 120.0, 12.3))
]


def read(folder: Path, lines: list[str]) -> dict[str, tuple[int, list[float]]]:
    """Return, by quantity, the number of lines of a log that have it, and its values."""
    log = folder / "log.txt"
    log.write_text("\n".join(lines) + "\n")
    return {x.quantity: (x.lines, x.values) for x in read_logged_speeds([log])}


@pytest.mark.parametrize(
    ("lines", "speeds"),
    [
        (
            TORCHTITAN,
            {
                "tokens_per_second_per_device": (2, [1426, 10050]),
                "tflops_per_device": (2, [40.5, 314.71]),
                "mfu_percent": (2, [4.1, 31.8]),
            },
        ),
        (TRAINER, {"samples_per_second": (1, [80.5])}),
        (MEGATRON, {"step_s": (2, [2.0, 1.0]), "tflops_per_device": (2, [300.0, 600.0])}),
        # nanoGPT prints an MFU of -100% until it has measured one.
        (NANOGPT, {"step_s": (2, [0.9, 0.12]), "mfu_percent": (2, [-100.0, 12.3])}),
        (
            [f"step {step}, mfu: 0.31, tokens/s: 100" for step in (1, 2)],
            {"tokens_per_second": (2, [100, 100]), "mfu_percent": (2, [31.0, 31.0])},
        ),
        # Neither a peak nor the speed of an evaluation is a speed of training.
        (["step 1 peak TFLOPs: 989 loss 2.0"], {}),
        (["validation step 3 tokens/s 999"], {}),
        (["downloading", "done"], {}),
        ([], {}),
    ],
)
def test_speeds_of_known_forms(tmp_path, lines, speeds):
    # ``speeds``: by quantity, the number of lines that have it, and its values. Names such as
    # ``NANOGPT`` are lines as this trainer prints them, with these values.
    read_speeds = read(tmp_path, lines)
    assert read_speeds.keys() == speeds.keys()
    for name, (count, values) in speeds.items():
        assert read_speeds[name] == (count, pytest.approx(values))


def test_first_line_with_a_value_is_kept(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("\n".join(["hello", *NANOGPT]) + "\n")
    # ``NANOGPT`` are two lines as the trainer nanoGPT prints them, each with two quantities: a step
    # time and an MFU (share of the device's peak). Both were first read in the first of the lines.
    assert [x.raw for x in read_logged_speeds([log])] == [NANOGPT[0], NANOGPT[0]]


def test_line_of_the_last_value_is_kept_if_only_that_counts(tmp_path):
    # Older versions of DeepSpeed print the mean speed since the start: only the last one counts.
    lines = [f"0/{step}, SamplesPerSec={step}.5" for step in (10, 20, 30)]
    log = tmp_path / "log.txt"
    log.write_text("\n".join(lines) + "\n")
    (speed,) = read_logged_speeds([log])
    assert (speed.values, speed.lines, speed.raw) == ([30.5], 1, lines[-1])


def test_log_that_has_a_speed_is_taken(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("rank 1 is ready\n")
    second.write_text("\n".join(NANOGPT) + "\n")
    # Only one of several logs, such as those of ranks, has speeds: ``NANOGPT``, two lines of the
    # trainer nanoGPT with step times of 900 ms and 120 ms.
    (step_time, _mfu) = read_logged_speeds([first, second])
    assert step_time.values == pytest.approx([0.9, 0.12])


def test_output_that_is_no_text_has_no_speed(tmp_path):
    log = tmp_path / "log.txt"
    # Bytes of a compressed log, cut off: they are not decompressed, and no text.
    log.write_bytes(gzip.compress(b"step 1 tokens/s 100\n" * 99)[:40])
    assert read_logged_speeds([log]) == []
