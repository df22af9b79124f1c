"""Presets: sample logs written for the tests give golden records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.fakes import GOLDEN, check_golden
from trainmark.published.analysis import PRESETS, Options, analyze

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


LOGS = sorted((GOLDEN / "logs").glob("*.log"))  # the first lines of logs, made by us


def analyze_sample(name, more="", **options):
    """Analyze a sample log, copied to ``train.log``, with additional lines at its end.

    Args:
        name: of the trainer, by which the golden log is found.
        more: the additional lines.
        options: of the analysis; by default the trainer is recognized (preset "auto").
    """
    Path("train.log").write_bytes((GOLDEN / f"logs/{name}.log").read_bytes() + more.encode())
    return analyze("train.log", Options(**{"preset": "auto"} | options))


def test_records_of_the_sample_logs_match_their_golden_file():
    # ``LOGS`` are short logs, one in the form of each of several trainers. Of each but one, the
    # first value is skipped, and speeds are those of 8 devices.
    records = {
        # The log of transformers has one value only, which must not be skipped.
        path.stem: analyze_sample(path.stem, skip_steps=int(path.stem != "transformers"), gpu_num=8)
        for path in LOGS
    }
    lines = "".join(f"{name}\t{analysis.record.to_json()}\n" for name, analysis in records.items())
    check_golden("analysis_presets.tsv", lines)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_sample_line_is_recognised_as_its_own_preset_only(preset):
    # A preset tells how to read a trainer's log. ``sample`` is a line of such a log, ``signature``
    # the pattern by which such a line is recognized.
    sample = PRESETS[preset].sample
    recognized = [
        name for name, candidate in PRESETS.items() if re.search(candidate.signature, sample)
    ]
    assert recognized == [preset]


def test_explicit_options_override_the_preset():
    # A preset says how to read the log of a trainer; here it is recognized as Megatron's. Its
    # sample log has steps of 9 s, which is skipped, 1 s and 3 s: 2 s in the mean. With 1,024 tokens
    # a step on each of 8 devices they give tokens/s.
    analyzed = analyze_sample(
        "megatron", base_batch_size=1024, gpu_num=8, skip_steps=1, ips_unit="tokens/s"
    ).record
    assert (analyzed.FINAL_RESULT, analyzed.UNIT) == (8 * 1024 / 2, "tokens/s")
    # Mode 2 is steps/s.
    analyzed = analyze_sample("megatron", model_mode=2, skip_steps=1).record
    assert (analyzed.FINAL_RESULT, analyzed.UNIT) == (0.5, "steps/s")
    # The keyword reads another time of the log, the 11 ms of "forward"; mode 4 is its mean. The
    # lines also have "loss scale: 1.0", which the last assertion has read as the loss.
    analyzed = analyze_sample("megatron", keyword="forward:", model_mode=4).record
    assert (analyzed.FINAL_RESULT, analyzed.UNIT) == (0.011, "s/epoch")
    assert analyze_sample("megatron", keyword_loss="loss scale:").record.LOSS_RESULT == 1.0


def test_step_times_without_a_batch_become_steps_a_second():
    assert analyze_sample("nanogpt", skip_steps=1).record.UNIT == "steps/s"
    with_batch = analyze_sample("nanogpt", skip_steps=1, base_batch_size=12).record
    # The sample log has steps of 30 s, which is skipped, 100 ms and 300 ms: 5 steps/s. With 12
    # samples in a step these are 60 samples/s.
    assert (with_batch.FINAL_RESULT, with_batch.UNIT) == (60.0, "samples/s")


def test_preset_of_most_lines_is_taken():
    # A log with lines of two trainers; those of Megatron are more.
    record = analyze_sample("megatron", (GOLDEN / "logs/nanogpt.log").read_text())
    assert record.figures["notes"][0] == "preset megatron"


def test_log_of_batches_without_samples_has_no_speed():
    # A step of Megatron in 100 ms, whose batch has no samples: there is no rate of samples, so the
    # job counts as failed.
    line = "iteration 1/ 2 | elapsed time per iteration (ms): 100.0 | global batch size: 0 |\n"
    Path("train.log").write_text(line)
    analyzed = analyze("train.log", Options(preset="megatron")).record
    assert (analyzed.FINAL_RESULT, analyzed.JOB_FAIL_FLAG) == (0.0, 1)


def test_log_of_no_known_trainer_is_read_by_the_widest_keywords_or_refused_with_a_fix():
    # A log that no preset recognizes is searched for common keywords, such as "throughput:".
    # ``notes`` are sentences on how it was read; the first one names the preset, or says how to
    # proceed.
    Path("train.log").write_text("step 3 throughput: 320.5 samples/s loss: 2.1\n" * 2)
    analyzed = analyze("train.log", Options(preset="auto")).record
    assert (analyzed.FINAL_RESULT, analyzed.UNIT, analyzed.LOSS_RESULT) == (320.5, "samples/s", 2.1)
    # A known one comes first.
    assert analyze_sample("paddle").figures["notes"][0] == "preset paddle"
    Path("train.log").write_text("step 3 speedy 7\n")
    assert "keyword=TEXT" in analyze("train.log", Options(preset="auto")).figures["notes"][0]
