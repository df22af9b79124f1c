"""Presets: sample logs of our own making against golden records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from trainmark.library.analysis import PRESETS, Options, analyze

GOLDEN = Path(__file__).parents[1] / "golden"


def _mllog(time_ms, key, value=None, **metadata):
    event = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key,
             "value": value, "metadata": {"file": "train.py", "lineno": 3, **metadata}}  # fmt: skip
    return f"0: :::MLLOG {json.dumps(event)}\n"


def _perflog(time_ms, name, value=None, rank=0):
    metadata = {"file": "a.py", "lineno": 9, "time_ms": time_ms, "rank": rank}
    event = {"event": name, "value": value, "metadata": metadata}
    return f"[PerfLog] {json.dumps(event)}\n"


def _megatron(step, ms, batch=512):
    return (
        f" [2026-01-01 00:00:0{step}] iteration {step:8d}/     200 | consumed samples: "
        f"{step * batch:12d} | elapsed time per iteration (ms): {ms:.1f} | learning rate: "
        f"1.500E-04 | global batch size: {batch:5d} | lm loss: {9 - step:.6E} | loss scale: 1.0 |"
        " number of nan iterations:   0 |\n time (ms) | forward: 11.00 | backward: 22.00\n"
    )


def _deepspeed(step, average, current):
    return (
        f"[2026-01-01 00:00:0{step},114] [INFO] [timer.py:260:stop] epoch=0/micro_step={step}0/"
        f"global_step={step}0, RunningAvgSamplesPerSec={average}, CurrSamplesPerSec={current}, "
        "MemAllocated=4.32GB, MaxMemAllocated=38.49GB\n"
    )


def _nlp(step, cost, ips, loss):
    return (
        f"[2026-01-01 00:00:0{step},459] [    INFO] - global step {step}, epoch: 0, batch: {step}, "
        f"loss: {loss}, avg_reader_cost: 0.00024 sec, avg_batch_cost: {cost} sec, speed: "
        f"{1 / cost:.2f} step/s, ips_total: {8 * ips} tokens/s, ips: {ips} tokens/s, "
        "learning rate: 4.60000e-05\n"
    )


LOGS = {
    "megatron": _megatron(1, 9000) + _megatron(2, 1000) + _megatron(3, 3000),
    "megatron_ramp_up": _megatron(1, 9000, 8) + _megatron(2, 1000, 256) + _megatron(3, 3000, 512),
    "deepspeed": _deepspeed(1, 90.5, 100.5) + _deepspeed(2, 150.2, 200.25) + _deepspeed(3, 1, 300),
    "deepspeed_pipe": "".join(
        f"steps: {10 * i} loss: {7 - i}.2500 iter time (s): 0.{i}00 samples/sec: {40 * i}.000\n"
        for i in (1, 2, 3)
    ),
    "deepspeed_old": "".join(
        f"[INFO] [timer.py:157:stop] 0/{10 * i}, SamplesPerSec={i}0.5\n" for i in (1, 2, 3)
    ),
    "transformers": (
        "  1%|1         | 1/100 [00:01<01:40,  1.01s/it]\r{'loss': 2.5, 'learning_rate': 5e-05, "
        "'epoch': 0.1}\n{'eval_loss': 9.0, 'eval_samples_per_second': 77.0, 'epoch': 0.1}\n"
        "{'loss': '0.1328', 'grad_norm': '0.1357', 'epoch': '2.96'}\n{'train_runtime': '1575', "
        "'train_samples_per_second': '1.333', 'train_steps_per_second': '0.168', "
        "'train_loss': '0.2854', 'epoch': '3'}\n"
    ),
    "paddle": _nlp(1, 9.0, 100, 9.5) + _nlp(2, 0.5, 11000, 8.5) + _nlp(3, 0.5, 12000, 8.25),
    "nanogpt": (
        "step 0: train loss 10.9, val loss 10.9\niter 0: loss 10.9, time 30000.00ms, mfu -100.00%\n"
        "iter 10: loss 6.5000, time 100.00ms, mfu 12.30%\niter 20: loss 6.2500, time 300.00ms, "
        "mfu 12.40%\n"
    ),
    "mllog_throughput": (
        _mllog(1000, "run_start")
        + _mllog(2000, "tracked_stats", {"throughput": 5.0, "loss": 9.0})
        + _mllog(3000, "tracked_stats", {"throughput": 20.0})
        + _mllog(4000, "tracked_stats", {"throughput": 30.0, "loss": 1.5})
        + _mllog(5000, "run_stop", None, status="success")
    ),
    "mllog_blocks": (
        _mllog(0, "block_start", None, samples_count=0)
        + _mllog(8000, "block_stop", None, samples_count=100)
        + _mllog(8500, "eval_accuracy", 0.5, samples_count=100)
        + _mllog(9000, "block_start", None, samples_count=100)
        + _mllog(10000, "block_stop", None, samples_count=200)
        + _mllog(20000, "block_start", None, samples_count=200)
        + _mllog(23000, "block_stop", None, samples_count=500)
        + _mllog(24000, "run_stop", None, status="aborted")
    ),
    "mllog_epochs": (
        _mllog(0, "train_samples", 1000)
        + "".join(
            _mllog(10000 * i, "epoch_start", None, epoch_num=i)
            + _mllog(10000 * i + 4000, "epoch_stop", None, epoch_num=i)
            for i in (1, 2, 3)
        )
    ),
    "perflog": (
        _perflog(900, "INIT_START")
        + _perflog(1000, "STEP_BEGIN")
        + _perflog(9000, "STEP_END", {"loss": 9.0, "num_trained_samples": 8})
        + _perflog(9100, "STEP_BEGIN")
        + _perflog(9500, "STEP_END", {"loss": 3.0, "num_trained_samples": 16})
        + _perflog(9600, "STEP_END", {"loss": 99.0, "num_trained_samples": 999}, rank=1)
        + _perflog(99000, "EVALUATE", {"eval_loss": 1.0})
        + _perflog(99100, "STEP_BEGIN")
        + _perflog(99600, "STEP_END", {"loss": 2.5, "num_trained_samples": 24})
        + _perflog(99900, "FINISHED")
    ),
}  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(text, **options):
        Path("train.log").write_text("starting\n" + text, encoding="utf-8")
        return analyze("train.log", Options(**{"preset": "auto"} | options))

    return call


def test_records_of_the_sample_logs_are_the_golden_ones(run):
    records = {name: run(text, skip_steps=0 if name == "transformers" else 1, gpu_num=8).record
               for name, text in LOGS.items()}  # fmt: skip
    lines = "".join(f"{name}\t{record.to_json()}\n" for name, record in records.items())
    assert lines == (GOLDEN / "analysis_presets.tsv").read_text(encoding="utf-8")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_sample_line_is_recognised_as_its_own_preset_only(preset):
    sample = PRESETS[preset].sample
    assert [name for name, one in PRESETS.items() if re.search(one.signature, sample)] == [preset]


def test_explicit_options_win_over_the_preset(run):
    log = LOGS["megatron"]
    found = run(log, base_batch_size=1024, gpu_num=8, skip_steps=1, ips_unit="tokens/s").record
    assert (found.FINAL_RESULT, found.UNIT) == (8 * 1024 / 2, "tokens/s")
    found = run(log, model_mode=2, skip_steps=1).record
    assert (found.FINAL_RESULT, found.UNIT) == (0.5, "steps/s")
    found = run(log, keyword="forward:", model_mode=4).record
    assert (found.FINAL_RESULT, found.UNIT) == (0.011, "s/epoch")
    assert run(log, keyword_loss="loss scale:").record.LOSS_RESULT == 1.0


def test_step_times_without_a_batch_become_steps_a_second(run):
    assert run(LOGS["nanogpt"], skip_steps=1).record.UNIT == "steps/s"
    with_batch = run(LOGS["nanogpt"], skip_steps=1, base_batch_size=12).record
    assert (with_batch.FINAL_RESULT, with_batch.UNIT) == (60.0, "samples/s")


def test_the_preset_of_most_lines_is_taken(run):
    found = run(LOGS["megatron"] * 2 + LOGS["nanogpt"])
    assert found.figures["notes"][0] == "preset megatron"


@pytest.mark.parametrize("name", ["mllog_throughput", "perflog"])
def test_broken_events_are_counted_not_believed(run, name):
    marker = {"perflog": "[PerfLog]", "mllog_throughput": ":::MLLOG"}[name]
    broken = "".join(f"{marker} {text}\n" for text in ("{broken", '{"event": "STEP_END"}', "[1]"))
    found = run(LOGS[name] + broken, skip_steps=1)
    assert found.record == run(LOGS[name], skip_steps=1).record
    assert found.figures["lines_malformed"] == 3
