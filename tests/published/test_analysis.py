"""Analysis of real logs: which number is the value, formulas, units, failures."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from trainmark.errors import DataError, UsageError
from trainmark.published.analysis import Options, analyze, summarize
from trainmark.published.analysis.keywords import KeywordReader

LINES = "".join(f"noise\nstep {i}, ips: {i}.5 samples/s\n" for i in range(1, 9))


@pytest.mark.parametrize(
    ("keyword", "line", "expected"),
    [
        ("ips:", "ips:12.5", 12.5),
        ("ips:", "ips: 1,234,567.5, next", 1234567.5),
        ("ips:", "ips: 12.3samples/s,", 12.3),
        ("ips:", "ips: .5", 0.5),
        ("ips:", "ips: -3 ", -3.0),
        ("ips:", "ips: 6.8E+00 |", 6.8),
        ("'loss':", "{'loss': '0.1328', 'epoch': 1}", 0.1328),
        ("(ms):", "per iteration (ms): 99.5 |", 99.5),
        ("时间：", "耗时间：3.5秒", 3.5),
        ("ips:", "avg_ips: 5 ips: 7", 7.0),
        ("ips:", "avg_ips: 5", None),
        ("loss", "loss scale: 3, loss: 2.5", 2.5),
        ("loss", "loss2: 5", None),
        # What begins like a number but is none: times, dates, versions, lists and so on.
        *(
            ("t:", f"t: {text}", None)
            for text in (
                "0:39:29",
                "2024-01-02",
                "1.2.3",
                "1,23",
                "1,234,5",
                "12_000",
                "0x1F",
                "n/a",
                "info",
                "",
                "| 5",
                "--5",
                "nan",
                "1e999",
                "1.-5",
                "1e55:3",
                ".5e3:1",
            )
        ),
    ],
)
def test_number_after_the_keyword_is_the_value(keyword, line, expected):
    # The reader takes numbered lines, and keeps the number that follows the keyword in each.
    reader = KeywordReader(keyword=keyword)
    reader.read([(1, f"{line}\n")])
    assert list(reader.values) == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("options", "line", "expected"),
    [
        ({"position": 0}, "3.5 steps ips", 3.5),
        ({"position": -1}, "ips 7", 7.0),
        ({"position": 2}, "ips 7", None),
        ({"position": 1, "separator": ","}, "ips,8,9", 8.0),
        ({"position": 1, "separator": " | "}, "ips | 8.5ms | 9", 8.5),
        ({"position": 1, "character_range": "5:"}, "ips time=12.5", 12.5),
        ({"character_range": "3"}, "ips 12345", 123.0),
        ({"character_range": "1:3"}, "ips 12345", 23.0),
        ({"separator": ","}, "ips,12,13", 12.0),
    ],
)
def test_value_is_selected_by_position_separator_and_range(options, line, expected):
    # position: the word of the line; separator: between words; character_range:
    # characters of the word.
    # Words and characters are counted from 0, words below 0 from the end; "1:3" are the characters
    # 1 and 2, and "3" is the first three. Without a position, the value follows the keyword.
    reader = KeywordReader(keyword="ips", **options)
    reader.read([(1, f"{line}\n")])
    assert list(reader.values) == ([] if expected is None else [expected])


def test_unit_of_a_word_before_the_keyword_is_read():
    reader = KeywordReader(keyword="ips", position=0)
    reader.read([(1, "100 samples/s ips\n")])
    assert (list(reader.values), reader.unit) == ([100.0], "samples/s")


@pytest.mark.parametrize(
    ("key", "are_weights"),
    [
        ("step time", True),
        ("avg step time", False),  # a mean of many steps
        ("time", False),  # perhaps that of an epoch, because no number of a step is on the line
        ("step: 1 time", True),
        ("[1/9] time", True),
    ],
)
def test_only_the_time_of_a_step_is_the_weight_of_its_rate(key, are_weights):
    # In a mean, the rate of a step counts as much as the step takes time. Here rates of 100 and 50
    # samples/s, each with the seconds behind ``key``, which count (``are_weights``) or not.
    reader = KeywordReader(keyword="ips:")
    lines = [f"ips: {rate} samples/s {key}: {time} s\n" for rate, time in [(100, 3), (50, 4)]]
    reader.read(enumerate(lines, 1))
    assert list(reader.seconds) == ([3.0, 4.0] if are_weights else [])


@pytest.fixture
def log(tmp_path):
    """Return a function that writes a log and returns its path.

    Its arguments are the log's text or bytes, and its name.
    """

    def write(data, name="train.log"):
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)

    return write


def analyze_speed(path, **options):
    """Analyze with ``ips:`` as keyword in mode 1, the mean as it is."""
    return analyze(path, Options(**{"keyword": "ips:", "model_mode": 1} | options))


def test_speed_of_a_plain_log_is_its_mean(log):
    # ``LINES``: for each step from 1 to 8 a line "noise", then "step N, ips: N.5 samples/s".
    analysis = analyze_speed(log(LINES), skip_steps=2)  # 8 steps of 1.5 to 8.5 samples/s
    figures = analysis.figures
    assert analysis.record.FINAL_RESULT == 6.0  # the mean of 3.5 to 8.5: two are skipped
    assert (figures["values"], figures["values_skipped"], figures["p50"]) == (6, 2, 6.0)
    assert figures["p90"] == pytest.approx(np.percentile(np.arange(3.5, 9), 90))
    assert figures["first_value"] == "line 6: step 3, ips: 3.5 samples/s"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b"noise\n", b"\r 10%|#  |\r 20%|## |\n"),  # a progress bar
        lambda data: data.replace(b"ips:", b"\x1b[1;32mips\x1b[0m:\x1b[K"),  # colours
        lambda data: data.replace(b"noise", b"\xff\xfe\xc3"),  # not UTF-8
        lambda data: data.replace(b"noise", b"x" * 3_000_000),  # a very long line
        lambda data: data[:-1],  # without the end of the last line
        lambda data: data + b"step 9, ip",  # a line that was cut
        gzip.compress,
    ],
)
def test_terminal_codes_and_crash_output_change_no_value(log, spoil):
    # ``spoil`` changes the bytes of ``LINES``, a log with the eight speeds 1.5 to 8.5, before each
    # of which is a line "noise". Their mean is 5.0.
    analysis = analyze_speed(log(spoil(LINES.encode())))
    assert analysis.record.FINAL_RESULT == 5.0
    assert (analysis.figures["values"], analysis.figures["lines_malformed"]) == (8, 0)


def test_malformed_lines_are_counted_and_the_first_is_shown(log):
    # The last line has no end, so its number may have been cut: it is malformed too.
    analysis = analyze_speed(log("ips: 1\nips: -\nips: nan\nips: 3\nips: 55"))
    # The mean of 1 and 3; malformed are "-", "nan" and the line without an end.
    assert (analysis.record.FINAL_RESULT, analysis.figures["lines_malformed"]) == (2.0, 3)
    assert "first malformed value in line 2: ips: -" in summarize(analysis)


@pytest.mark.parametrize(
    ("closing_lines", "note"),
    [
        ("avg ips: 3\n", "1 value of a closing line, such as a total, is excluded"),
        ("avg ips: 3\ntotal ips: 6\n", "2 values of a closing line, such as a total, are excluded"),
    ],
)
def test_note_on_excluded_values_agrees_with_their_number(log, closing_lines, note):
    # ``log`` writes a log with this text and returns its path.
    analysis = analyze_speed(log("ips: 1\nips: 2\n" + closing_lines))
    assert note in analysis.figures["notes"]


def test_value_of_a_closing_line_counts_if_there_is_no_other(log):
    # A line with "avg" closes a log: its value sums up those before it, of which there are none
    # here. ``analyze_speed`` reads the number behind "ips:" as the speed.
    analysis = analyze_speed(log("Traceback\navg ips: 3\n"))
    assert analysis.record.FINAL_RESULT == 3.0
    assert analysis.figures["first_value"] == "line 2: avg ips: 3"


@pytest.mark.parametrize(
    ("data", "options", "why"),
    [
        ("Traceback\n", {}, "no value found after the keyword 'ips:'"),
        ("ips: x\n", {}, "values: 0, malformed lines: 1"),
        # The preset finds no key, so the word at the position is read from every line.
        (
            "step one\n",
            {"keyword": "", "preset": "auto", "position": 1},
            "no number found at position 1 of any line: values: 0, malformed lines: 1; "
            "set position",
        ),
        ("ips: 1\nips: 2\n", {"skip_steps": 2}, "skip_steps=2 skips all values"),
        ("avg ips: 3\n", {"skip_steps": 1}, "skip_steps=1 skips all values: values: 1"),
        (
            "ips: 1\nips: 2\n",
            {"keyword": "", "preset": "auto", "skip_steps": 2},
            "skip_steps=2 skips all values: values: 2",
        ),
        ("Traceback\n", {"keyword": "", "preset": "auto"}, "unknown log format"),
        # The program failed although it printed a speed.
        ("ips: 1\n", {"failed": True}, "the measured value was 1 steps/s"),
    ],
)
def test_failed_run_has_a_record_with_zero_and_the_flag(log, data, options, why):
    # ``analyze_speed`` looks for numbers behind the keyword "ips:", unless a preset, the known form
    # of a trainer's log, is to find them. ``skip_steps``: how many first values do not count.
    analysis = analyze_speed(log(data), ips_unit="steps/s", **options)
    assert (analysis.record.FINAL_RESULT, analysis.record.JOB_FAIL_FLAG) == (0.0, 1)
    assert why in summarize(analysis)
    # A line of its own, so that it is no part of the advice in the line before.
    assert summarize(analysis).splitlines()[-1] == "  FAILED"


@pytest.mark.parametrize(
    ("text", "options", "formula"),
    [
        # The speed of the whole job is not multiplied by devices, nor is a global batch size.
        (
            "{'train_runtime': 9.0, 'train_samples_per_second': 80.0, 'train_loss': 2.9}\n",
            {"preset": "transformers"},
            "result 80 samples/s (mode -1: mean of the speed of the whole job)",
        ),
        (
            "elapsed time per iteration (ms): 500.0 | global batch size:    16 |\n",
            {"preset": "megatron"},
            "result 32 samples/s (mode -2: global batch / mean)",
        ),
        # The batch size of one device, and the speed of one device.
        (
            "train_step_timing in s: 0.5\n",
            {"preset": "nemo", "base_batch_size": 2},
            "result 32 samples/s (mode -2: batch x devices / mean)",
        ),
        # The speed of one device counts no batch, so that the one in the log changes nothing.
        (
            "global batch size: 16 tokens/s/device: 10 loss: 3\n",
            {"preset": "plain"},
            "result 80 tokens/s (mode -1: devices x mean)",
        ),
        ("tps: 10\n", {"preset": "torchtitan"}, "result 80 tokens/s (mode -1: devices x mean)"),
    ],
)
def test_formula_is_the_one_that_was_applied(log, text, options, formula):
    analysis = analyze(log(text), Options(gpu_num=8, **options))
    assert formula in summarize(analysis)


@pytest.mark.parametrize(("skip_steps", "skipped"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_only_values_of_the_speed_count_as_skipped(log, skip_steps, skipped):
    """A preset that finds none of the log's two values does not count them as skipped."""
    # A preset is the known form of a trainer's log; "auto" finds the key "ips:" by itself, and
    # "megatron" finds no line of its own form.
    figures = analyze_speed(
        log("ips: 1\nips: 2\n"), keyword="", preset="auto", skip_steps=skip_steps
    ).figures
    assert figures["values"] + figures["values_skipped"] == 2
    assert figures["values_skipped"] == skipped
    figures = analyze_speed(
        log("ips: 1\nips: 2\n"), keyword="", preset="megatron", skip_steps=skip_steps
    ).figures
    assert (figures["values"], figures["values_skipped"]) == (0, 0)
    assert figures["notes"][0].startswith("no value found with preset megatron: values: 0")


def test_names_of_profiles_are_in_the_record(log):
    # ``LINES`` is a log with speeds. Names of profiles are only handed on; no such file is read.
    profile_names = {"log_with_profiler": "prof.log", "profiler_path": "prof/"}
    record = json.loads(analyze_speed(log(LINES), **profile_names).record.to_json())
    assert {key: record[key] for key in profile_names} == profile_names
    # Without these options the record has no such keys.
    assert profile_names.keys().isdisjoint(json.loads(analyze_speed(log(LINES)).record.to_json()))


def test_damaged_or_missing_log_is_refused(log):
    # A compressed log, of any lines (``LINES``), whose last 40 bytes are missing.
    with pytest.raises(DataError, match="damaged gzip"):
        analyze_speed(log(gzip.compress(LINES.encode() * 100)[:-40], "cut.gz"))
    with pytest.raises(DataError, match="cannot read"):
        analyze_speed("no/such/log")


def test_loss_that_is_not_finite_fails_the_record(log):
    # Both lines have a speed, but the last loss is no number: the training diverged.
    analysis = analyze_speed(log("ips: 1 loss: 5.5\nips: 1 loss: nan\n"), keyword_loss="loss:")
    assert analysis.record.JOB_FAIL_FLAG == 1
    assert "LOSS_RESULT" not in json.loads(analysis.record.to_json())
    assert "diverged" in summarize(analysis)


@pytest.mark.parametrize(
    ("mode", "result"),
    [
        (-2, 128.0),  # batch x devices / mean
        (-1, 1.0),  # devices x mean
        (0, 128.0),  # as -2, in samples/s
        (1, 0.25),  # mean, in steps/s
        (2, 4.0),  # 1 / mean
        (3, 8.0),  # batch x devices x mean
        (4, 0.25),  # mean, in s/epoch
    ],
)
def test_every_mode_is_its_formula(log, mode, result):
    # The modes are those of the public tool. The mean is of one value, which is a speed or a time;
    # a step has 8 samples on each of 4 devices.
    options = {"model_mode": mode, "base_batch_size": 8, "gpu_num": 4}
    assert result == analyze_speed(log("ips: 0.25\n"), **options).record.FINAL_RESULT
    assert result == analyze_speed(log("ips: 250\n"), time_unit="ms", **options).record.FINAL_RESULT
    # A value of 0 is no speed in any mode.
    assert analyze_speed(log("ips: 0\n"), **options).record.JOB_FAIL_FLAG == 1


@pytest.mark.parametrize(("index", "result"), [(2, 8.5), (6, 8.5), (3, 5.0)])
def test_values_that_are_no_speed_give_the_largest_or_the_mean(log, index, result):
    # ``LINES`` is a log with the eight values 1.5 to 8.5. ``index`` is the public tool's number of
    # a kind of figure; 1 is a speed. Of memory (2) and batch sizes (6) the largest value is the
    # result, of a profile (3) the mean.
    record = analyze_speed(log(LINES), index=index, ips_unit="MB", model_mode=None).record
    assert (record.FINAL_RESULT, record.UNIT, record.index) == (result, "MB", index)


@pytest.mark.parametrize(
    ("options", "expected_error"),
    [
        ({"model_mode": 0}, "base_batch_size"),
        ({"index": 4}, "index 4"),
        ({"mission_name": "语义"}, "语义表示"),
        ({"preset": "megatronn"}, "did you mean megatron"),
        ({"keyword": ""}, "keyword"),
        ({"range": "1:2:3"}, "range"),
    ],
)
def test_options_that_do_not_fit_are_refused(log, options, expected_error):
    # ``LINES`` is a log with speeds behind "ips:". The options: a mode that needs the size of a
    # batch, a number of no kind of figure, a task and a preset that are not known, no keyword at
    # all, and three ends of a range of characters.
    with pytest.raises(UsageError, match=expected_error):
        analyze_speed(log(LINES), **options)


def test_unit_does_not_rename_what_the_log_counts(log):
    # ``log`` writes a log with this text and returns its path. ``ips_unit`` is the unit that the
    # user gives; ``UNIT`` is the one that the result gets.
    # Mode -1: the values are speeds of a device, in any unit. A mode or a unit that is None is not
    # given, so the log decides.
    with pytest.raises(UsageError, match="unit in the log is samples/s"):
        analyze_speed(log("ips: 5 samples/sec\n"), ips_unit="tokens/s", model_mode=-1)
    # Values per minute, which a preset converts to values per second, and a keyword does not: 600,
    # 601 and 602 samples/min, with a mean of 601, which are 10.017 samples/s.
    minutes = log("".join(f"step {n} loss 2 speed: {600 + n} samples/min\n" for n in range(3)))
    of_preset = {"keyword": "", "preset": "auto", "model_mode": -1}
    converted = analyze_speed(minutes, **of_preset).record
    assert converted.UNIT == "samples/s"
    assert f"{converted.FINAL_RESULT:.3f}" == "10.017"
    of_keyword = {"keyword": "speed:", "model_mode": -1}
    for unit in (None, "samples/min"):
        kept = analyze_speed(minutes, **of_keyword, ips_unit=unit).record
        assert (kept.FINAL_RESULT, kept.UNIT) == (601, "samples/min")
    for options, unit in ((of_keyword, "samples/s"), (of_preset, "samples/min")):
        with pytest.raises(UsageError, match="does not match the log"):
            analyze_speed(minutes, **options, ips_unit=unit)
    # If the log names no unit, that of the option counts.
    with_unit = analyze_speed(log("ips: 5\n"), ips_unit="tokens/s", model_mode=None)
    assert with_unit.record.UNIT == "tokens/s"
    analysis = analyze_speed(log("ips: 5\n"), model_mode=-1)
    assert analysis.record.UNIT == ""
    assert "result 5 (no unit: set ips_unit)" in summarize(analysis)
