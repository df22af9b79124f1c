"""What an analysis refuses, assumes and says: units, devices, failures, outliers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmark.errors import UsageError
from trainmark.library.analysis.engine import analyze
from trainmark.library.analysis.options import Options
from trainmark.library.analysis.summary import text

MEGATRON = "".join(
    f" iteration {i}/9 | elapsed time per iteration (ms): 2000.0 | global batch size: 512 |\n"
    for i in range(3)
)
DEEPSPEED = "global_step=10, RunningAvgSamplesPerSec=1.5, CurrSamplesPerSec=2.5, MemAllocated=4GB\n"
PADDLE = "loss: 8.5, avg_batch_cost: 0.5 sec, speed: 2.0 step/s, {}ips: 100 tokens/s\n"
TRAINER = (
    "[INFO] - loss: 9.9, learning_rate: 1e-05, global_step: 1, interval_runtime: 1.2, "
    "interval_samples_per_second: 13.1, interval_steps_per_second: 0.8, epoch: 0.1\n"
    "[INFO] - eval_loss: 77.0, eval_samples_per_second: 99.0, epoch: 0.1\n"
    "[INFO] - train_runtime: 9.0, train_samples_per_second: 12.0, train_loss: 55.0, epoch: 0.1\n"
)


def _perflog(**metadata):
    event = {"event": "STEP_END", "value": {"num_trained_samples": 8}, "metadata": metadata}
    return f"[PerfLog] {json.dumps(event)}\n"


PERFLOG = _perflog(time_ms=1000) + _perflog(time_ms=2000) + _perflog(time_ms=3000)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(data, **options):
        Path("train.log").write_text(data, encoding="utf-8")
        return analyze("train.log", Options(**{"preset": "auto"} | options))

    return call


@pytest.mark.parametrize(
    ("data", "unit"),
    [
        (MEGATRON, "samples/s"),
        (DEEPSPEED, "samples/s"),
        (TRAINER, "samples/s"),
        (PERFLOG, "samples/s"),
        ("{'train_samples_per_second': 1.5, 'epoch': 1}\n", "samples/s"),
        (PADDLE.format(""), "tokens/s"),
    ],
)
def test_a_unit_does_not_rename_what_a_preset_counts(run, data, unit):
    other = "tokens/s" if unit == "samples/s" else "samples/s"
    with pytest.raises(UsageError) as caught:
        run(data, ips_unit=other)
    assert f"its numbers are {unit}" in str(caught.value)
    assert "leave ips_unit out" in str(caught.value)
    assert "base_batch_size=N" in str(caught.value)
    assert run(data, ips_unit=unit).figures["unit"] == unit


def test_a_unit_that_a_line_writes_is_not_renamed_either(run):
    options = {"preset": None, "keyword": "ips:", "model_mode": -1}
    with pytest.raises(UsageError, match="its numbers are samples/s"):
        run("ips: 5 samples/sec\n", ips_unit="tokens/s", **options)
    assert run("ips: 5\n", ips_unit="tokens/s", **options).record.UNIT == "tokens/s"


def test_a_batch_in_the_wanted_unit_computes_it(run):
    record = run(MEGATRON, ips_unit="tokens/s", base_batch_size=4096).record
    assert (record.FINAL_RESULT, record.UNIT) == (2048.0, "tokens/s")


def test_one_device_is_said_to_be_assumed(run):
    notes = run(PADDLE.format("")).figures["notes"]
    assert "gpu_num 1 assumed: give gpu_num=N; the result is of one device" in notes
    assert "gpu_num 1 assumed: give gpu_num=N" in run(DEEPSPEED).figures["notes"]
    assert "assumed" not in text(run(DEEPSPEED, gpu_num=1))


@pytest.mark.parametrize(
    ("data", "result"),
    [
        ("using world size: 8, data-parallel size: 8\n" + MEGATRON, 256.0),
        (PADDLE.format("ips_total: 801 tokens/s, "), 800.0),
    ],
)
def test_devices_come_from_the_log_unless_they_are_given(run, data, result):
    found = run(data)
    record = found.record
    assert (record.gpu_num, record.run_mode, record.FINAL_RESULT) == (8, "mp", result)
    assert "gpu_num 8, as the log says" in found.figures["notes"]
    given = run(data, gpu_num=2)
    assert given.record.gpu_num == 2
    assert "the log says 8 devices; gpu_num=2 is used" in given.figures["notes"]


@pytest.mark.parametrize("total", ["150", "1.2.3", "0"])
def test_speeds_that_are_no_multiple_say_no_devices(run, total):
    assert run(PADDLE.format(f"ips_total: {total} tokens/s, ")).record.gpu_num == 1


@pytest.mark.parametrize("preset", ["auto", "paddle"])
def test_lines_of_the_paddlenlp_trainer(run, preset):
    record = run(TRAINER, preset=preset, gpu_num=8).record
    assert (record.FINAL_RESULT, record.UNIT, record.LOSS_RESULT) == (13.1, "samples/s", 9.9)


def test_a_failed_run_keeps_its_figure_in_the_summary_only(run):
    found = run(MEGATRON, failed=True)
    assert (found.record.FINAL_RESULT, found.record.JOB_FAIL_FLAG) == (0.0, 1)
    assert "result 256 samples/s" in text(found)
    all_ = found.figures
    assert (all_["result"], all_["unit"], all_["loss"]) == (256.0, "samples/s", None)


def test_a_diverged_run_has_no_result(run):
    record = run(TRAINER.replace("9.9", "nan")).record
    assert (record.FINAL_RESULT, record.JOB_FAIL_FLAG, record.LOSS_RESULT) == (0.0, 1, None)


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ([1.0] * 40 + [31.0] + [1.0] * 59, (1.3, 1.0)),
        ([2.0, 2.0, 0.5, 2.0], (1.625, 2.0)),
    ],
)
def test_outliers_that_moved_the_mean_are_told(run, values, numbers):
    data = "".join(f"time: {value}\n" for value in values)
    found = run(data, preset=None, keyword="time:", model_mode=2)
    mean, median = numbers
    told = f"mean {mean:g} but median {median:g}."
    assert told in text(found)
    assert "robust takes the median" in text(found)
    assert "outliers" not in text(run(data, preset=None, keyword="time:", index=2, ips_unit="MB"))


def test_robust_takes_the_median_for_the_mean(run):
    data = MEGATRON.replace("2000.0", "80000.0", 1) + MEGATRON
    assert run(data).record.FINAL_RESULT == 34.133
    found = run(data, robust=True)
    assert found.record.FINAL_RESULT == 256.0
    assert found.figures["statistic"] == "median"
    assert "(mode -2: batch x devices / median)" in text(found)
    profile = {"preset": None, "keyword": "t:", "index": 3, "ips_unit": "s", "robust": True}
    assert run("t: 1\nt: 2\nt: 9\n", **profile).record.FINAL_RESULT == 2.0


@pytest.mark.parametrize("data", [MEGATRON + MEGATRON.replace("512", "256"), None])
def test_robust_is_refused_where_the_samples_of_a_time_change(run, data):
    last = _perflog(time_ms=4000).replace("8}", "9}")
    with pytest.raises(UsageError) as caught:
        run(data or PERFLOG.replace("8}", "7}", 1) + last, robust=True)
    assert caught.value.where == "robust"


def _throughput(value):
    event = {"key": "tracked_stats", "value": {"throughput": value}, "time_ms": 1, "metadata": {}}
    return f":::MLLOG {json.dumps(event)}\n"


def test_mlperfs_throughput_has_the_unit_that_is_given(run):
    record = run(_throughput(5154997.0), ips_unit="tokens/s").record
    assert (record.FINAL_RESULT, record.UNIT) == (5154997.0, "tokens/s")
    assert "result 5154997 tokens/s" in text(run(_throughput(5154997.0), ips_unit="tokens/s"))
    assert "no unit" not in text(run(_throughput(2.0), ips_unit="samples/s"))


@pytest.mark.parametrize(
    ("data", "options"),
    [(_throughput(2.0), {}), ("speed 2\n", {"preset": None, "keyword": "speed", "model_mode": -1})],
)
def test_a_speed_without_a_unit_is_not_given_one(run, data, options):
    found = run(data, **options)
    assert (found.record.FINAL_RESULT, found.record.UNIT) == (2.0, "")
    assert "the log names no unit of its speed: give ips_unit" in text(found)
    assert "result 2 (no unit)" in text(found)
