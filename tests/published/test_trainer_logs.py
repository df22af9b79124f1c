"""Logs of many trainers: the right speed, unit and loss of each, from tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import GOLDEN
from trainmark.errors import UsageError
from trainmark.published.analysis import Options, analyze, summarize
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.published.analysis import Analysis

LOGS = GOLDEN / "logs"


def read_table(name: str) -> dict[str, Any]:
    """Return a table of logs, or of texts in them, with the speeds that are to be read."""
    return read_toml(LOGS / name)


REPORTED = read_table("reported.toml")["log"]
TRAINERS = read_table("trainers.toml")["log"]
KEYS = read_table("keys.toml")


def analyze_text(folder: Path, text: str, **options: Any) -> Analysis:
    """Analyze a log with this text; the trainer is recognized unless the options name a preset."""
    path = folder / "train.log"
    path.write_bytes(text.encode())
    return analyze(str(path), Options(**{"preset": "auto"} | options))


def read_speed(analysis: Analysis) -> tuple[float | None, str]:
    """Return the speed and its unit; None: the log has no speed."""
    record = analysis.record
    return (None, "") if record.JOB_FAIL_FLAG else (record.FINAL_RESULT, record.UNIT)


@pytest.mark.parametrize("log", REPORTED, ids=[f"{x['file']}-{i}" for i, x in enumerate(REPORTED)])
def test_reported_log_has_the_expected_speed(log: dict[str, Any]) -> None:
    # ``REPORTED`` are entries of a table: a file with a log after a public bug report, ``options``
    # of the analysis, and the expected speed (``result``), ``unit`` and ``loss``, worked out by
    # hand. An entry has no result if its log has no speed; ``note`` is a part of the analysis'
    # notes, and only looked for if the entry has one.
    options = log.get("options", {"preset": "auto"})
    analysis = analyze(str(LOGS / "reported" / log["file"]), Options(**options))
    assert read_speed(analysis) == (log.get("result"), log.get("unit", ""))
    assert log.get("loss") == analysis.record.LOSS_RESULT
    assert log.get("note", "") in "\n".join(analysis.figures["notes"])


@pytest.mark.parametrize("log", TRAINERS, ids=[log["name"] for log in TRAINERS])
def test_log_of_a_trainer_has_its_speed(tmp_path: Path, log: dict[str, Any]) -> None:
    # ``TRAINERS`` are entries of a table: the text of a log as a trainer prints it, options of the
    # analysis, and the expected speed (``result``) and ``unit``; without a result the log has no
    # speed.
    analysis = analyze_text(tmp_path, log["text"], **log.get("options", {}))
    assert read_speed(analysis) == (log.get("result"), log.get("unit", ""))


@pytest.mark.parametrize("text", KEYS["rates"])
def test_key_with_a_rate_unit_gives_its_unit_and_number_of_devices(
    tmp_path: Path, text: str
) -> None:
    # ``KEYS["rates"]`` is a table of texts as logs print them, such as "tok/s/GPU: 100", with the
    # result and its unit, here [800.0, "tokens/s"].
    lines = "".join(f"step {i}, loss 2.{i}, {text}\n" for i in range(4))
    # The table has the expected result with 8 devices, by which a rate of one is multiplied; a
    # result of 0 says that the key is no speed.
    result, unit = KEYS["rates"][text]
    speed_and_unit = read_speed(analyze_text(tmp_path, lines, gpu_num=8))
    assert speed_and_unit == (result or None, unit)


@pytest.mark.parametrize("text", KEYS["step_times"]["texts"])
def test_key_of_a_step_time_gives_its_unit_and_number_of_steps(tmp_path: Path, text: str) -> None:
    # Each text of this table of ``KEYS`` says that a step takes 0.5 s, such as "step time: 500ms":
    # 2 steps/s.
    lines = "".join(f"iter {i}, loss 2.{i}, {text}\n" for i in range(4))
    assert read_speed(analyze_text(tmp_path, lines)) == (2.0, "steps/s")


BAR = " {percent}%|## | {done}/100 [00:{done:02d}<01:30,  1.50s/it, loss=2.3{more}]"


def draw_progress_bar(first: int, last: int, more: str = "") -> str:
    """Return states of a progress bar that takes a second for a step, drawn over each other.

    Args:
        first, last: steps done in the first state, and after the last one.
        more: further values in each state.
    """
    # ``BAR`` is the text of a state: percent, steps done of 100, as many seconds on its clock (in
    # ``done`` too), and a loss. The rate that it prints, 1.50s/it, contradicts its clock.
    states = (BAR.format(percent=i, done=i, more=more) for i in range(first, last))
    return "".join(f"\r{state}" for state in states) + "\n"


def test_progress_bar_is_read_by_its_counter_and_clock(tmp_path: Path) -> None:
    # Each state of the bar counts one more step and one more second. The rate that it prints, 1.5 s
    # for a step, is not used.
    assert read_speed(analyze_text(tmp_path, draw_progress_bar(first=0, last=50))) == (
        1.0,
        "steps/s",
    )


def test_each_state_of_a_progress_bar_has_its_values(tmp_path: Path) -> None:
    # Line 1 is "starting"; line 2 has 50 states of the bar, one over the other, each with tok/s.
    analysis = analyze_text(
        tmp_path, "starting\n" + draw_progress_bar(first=0, last=50, more=", tok/s=12345")
    )
    assert read_speed(analysis) == (12345.0, "tokens/s")
    assert analysis.figures["values"] == 50
    assert str(analysis.figures["first_value"]).startswith("line 2: ")  # all states are one line


def test_progress_bar_after_a_resume_does_not_count_the_steps_before(tmp_path: Path) -> None:
    # Steps done and seconds since the start: the first state has none; 800 steps were done before
    # the resume and 10 in the first second, then 10 steps are done each 10 s.
    text = "Resuming training from step 800\n" + "".join(
        f"\r 90%|## | {done}/900 [00:{clock:02d}<01:30, 0.10s/it]"
        for done, clock in [(0, 0), (810, 1), (820, 11), (830, 21)]
    )
    analysis = analyze_text(tmp_path, text + "\n")
    assert read_speed(analysis) == (1.0, "steps/s")  # 20 steps from second 1 to second 21
    assert "according to line 1, the run was resumed" in summarize(analysis)


def test_closing_line_after_a_resume_is_no_speed(tmp_path: Path) -> None:
    # The last line that the trainer of transformers prints; after a resume it is not used, and
    # there is no speed: (None, "").
    # The line at the end divides all samples, also those before the resume, by its own time.
    end = "{'train_runtime': 10.0, 'train_samples_per_second': 180.8, 'epoch': 1.0}\n"
    assert read_speed(analyze_text(tmp_path, end)) == (180.8, "samples/s")
    resumed = "Continuing training from checkpoint, will skip to saved global_step\n" + end
    for preset in ("auto", "transformers"):
        analysis = analyze_text(tmp_path, resumed, preset=preset)
        assert read_speed(analysis) == (None, "")
        assert "resumed from a checkpoint (line 1)" in analysis.figures["notes"][0]


def test_printed_settings_about_resuming_and_evaluation_change_nothing(tmp_path: Path) -> None:
    # Words that elsewhere say that a run resumed or evaluated.
    settings = "resume_from_checkpoint: None\nresume: False\neval_interval: 10\nval_loss: off\n"
    steps = "".join(f"step {i} step_time_ms: {500 if i == 1 else 100}\n" for i in range(1, 6))
    analysis = analyze_text(tmp_path, settings + steps)
    assert read_speed(analysis) == (5.556, "steps/s")  # 5 steps in 0.9 s, the slow one with them
    assert not any("resumed" in note for note in analysis.figures["notes"])


def test_slow_values_are_named_with_the_median(tmp_path: Path) -> None:
    # Nine steps of 100 ms, but for the first one with 900 ms. ``result_of_median`` is the speed
    # that the median of the values gives.
    steps = "".join(f"step {i} step_time_ms: {900 if i == 1 else 100}\n" for i in range(1, 10))
    analysis = analyze_text(tmp_path, steps)
    assert analysis.figures["result_of_median"] == 10.0  # steps/s, at 100 ms
    assert any(
        note.startswith("1 of 9 values are more than twice") for note in analysis.figures["notes"]
    )
    # Without a slow value there is no such note.
    even = "".join(f"step {i} step_time_ms: {100 + i}\n" for i in range(1, 10))
    notes = analyze_text(tmp_path, even).figures["notes"]
    assert not any("twice the median" in note for note in notes)


def test_values_after_a_checkpoint_are_excluded_only_if_slower(tmp_path: Path) -> None:
    # Steps of 100 ms are 10 steps/s; the three slow steps are excluded (``values_left_out``) or
    # not.
    def format_steps(slow_ms: int) -> str:
        """Return nine steps; each third one takes ``slow_ms``, after a checkpoint."""
        lines = []
        for step in range(9):
            if step % 3 == 2:
                lines.append("saving checkpoint\n")
            lines.append(f"step {step} step_time_ms: {slow_ms if step % 3 == 2 else 100}\n")
        return "".join(lines)

    analysis = analyze_text(tmp_path, format_steps(700))
    assert (read_speed(analysis), analysis.figures["values_left_out"]) == ((10.0, "steps/s"), 3)
    analysis = analyze_text(tmp_path, format_steps(109))  # not much slower: 9 steps in 0.927 s
    assert (read_speed(analysis), analysis.figures["values_left_out"]) == ((9.709, "steps/s"), 0)


def test_mean_of_all_values_is_weighted_like_the_mean_of_those_that_count(tmp_path: Path) -> None:
    # Three steps of 64 samples with 40 samples/s, which take 1.6 s each. The fourth one follows an
    # evaluation and is slower, so its value does not count (``values_left_out``).
    line = "step {step} samples/s: {rate} global batch size: 64\n"
    text = "".join(line.format(step=step, rate=40) for step in range(3))
    text += "evaluation done\n" + line.format(step=3, rate=10)
    analysis = analyze_text(tmp_path, text)
    assert (read_speed(analysis), analysis.figures["values_left_out"]) == ((40.0, "samples/s"), 1)
    # Four times 64 samples, in 3 x 1.6 s and 6.4 s.
    note = "with all values included, the result would be 22.857 samples/s"
    assert note in analysis.figures["notes"]


def test_new_run_in_a_log_closes_the_one_before(tmp_path: Path) -> None:
    # Five lines of a run, then eight in which the steps begin anew at 1: another run, whose speed
    # is the result.
    died = "".join(f"step: {i} tokens/s: 1000\n" for i in range(1, 6))
    second = "".join(f"step: {i} tokens/s: 2000\n" for i in range(1, 9))
    analysis = analyze_text(tmp_path, died + second)
    assert read_speed(analysis) == (2000.0, "tokens/s")
    (note,) = (note for note in analysis.figures["notes"] if note.startswith("run 1 of 2"))
    assert "lines 1 to 5: aborted at step 5" in note


@pytest.mark.parametrize(
    "counters", ["step {0}/500 global_step {1}", "global_step {1} step {0}/500"]
)
def test_planned_step_of_one_counter_does_not_end_another(tmp_path: Path, counters: str) -> None:
    """A run that stopped at step 5 of 500 is aborted, although ``global_step`` is above 500."""

    def format_steps(first: int) -> str:
        return "".join(
            f"{counters.format(step, 5000 + step)} tokens/s: 1000\n"
            for step in range(first, first + 5)
        )

    # A second run begins at step 1 again. The first one stopped at step 5 of 500, or, below, came
    # from step 496 to its planned end, step 500.
    analysis = analyze_text(tmp_path, format_steps(1) + format_steps(1))
    (note,) = (note for note in analysis.figures["notes"] if note.startswith("run 1 of 2"))
    assert "aborted at step" in note
    analysis = analyze_text(tmp_path, format_steps(496) + format_steps(1))
    (note,) = (note for note in analysis.figures["notes"] if note.startswith("run 1 of 2"))
    assert "complete" in note


@pytest.mark.parametrize(
    "text",
    [
        # Steps that are counted anew in each epoch, which stands in the line,
        "".join(
            f"epoch: {epoch} step: {step} tokens/s: 5\n" for epoch in range(3) for step in range(4)
        ),
        # in a line of its own,
        "".join(
            f"Epoch {epoch}\n" + "step 1 tokens/s: 5\nstep 2 tokens/s: 5\n" for epoch in range(3)
        ),
        # or nowhere: the steps of all epochs end at the same number, by which they are recognized.
        "".join(f"step {i}/3 tokens/s: 5\n" for _ in range(3) for i in range(1, 4)),
        "".join(f"step {i} tokens/s: 5\n" for _ in range(3) for i in range(4)),
    ],
)
def test_steps_of_epochs_are_one_run(tmp_path: Path, text: str) -> None:
    analysis = analyze_text(tmp_path, text)
    assert analysis.figures["values"] == text.count("tokens/s")
    assert not any(note.startswith("run 1") for note in analysis.figures["notes"])


def test_lower_epoch_begins_a_run_even_if_lines_between_print_no_epoch(tmp_path: Path) -> None:
    run = (
        "epoch: 1 tokens/s: {rate}\ntokens/s: {rate}\nepoch: 2 tokens/s: {rate}\ntokens/s: {rate}\n"
    )
    # The second run begins in line 5, where the epoch falls from 2 to 1; its speed is the result.
    analysis = analyze_text(tmp_path, run.format(rate=5) + run.format(rate=8))
    assert (read_speed(analysis), analysis.figures["values"]) == ((8.0, "tokens/s"), 4)
    assert any(note.startswith("run 1 of 2, lines 1 to 4") for note in analysis.figures["notes"])


def test_run_without_steps_does_not_end_at_the_step_of_the_run_before(tmp_path: Path) -> None:
    # The epoch falls in the second line and again in the third: three runs, a line each. Only the
    # first one prints a step.
    text = "epoch: 3 step: 7 tokens/s: 5\nepoch: 2 tokens/s: 6\nepoch: 1 tokens/s: 8\n"
    notes = analyze_text(tmp_path, text).figures["notes"]
    assert any("run 1 of 3, lines 1 to 1: aborted at step 7" in note for note in notes)
    assert any("run 2 of 3, lines 2 to 2: aborted at line 2" in note for note in notes)


def test_run_stays_complete_if_lines_without_a_step_follow_its_last_step(tmp_path: Path) -> None:
    # Two epochs of ten planned steps and a line with the final loss. Then another run begins at
    # epoch 0.
    epochs = [
        "".join(f"epoch: {epoch} step {step}/10 tokens/s: 5\n" for step in range(1, 11))
        for epoch in (0, 1)
    ]
    analysis = analyze_text(tmp_path, "".join([*epochs, "final loss: 1.0\n", epochs[0]]))
    assert any(
        note.startswith("run 1 of 2, lines 1 to 21: complete") for note in analysis.figures["notes"]
    )


@pytest.mark.parametrize(
    "key", ["time per epoch", "samples per epoch", "max epoch", "steps left in epoch"]
)
def test_number_about_epochs_is_not_taken_for_that_of_the_epoch(tmp_path: Path, key: str) -> None:
    # The number behind ``key`` falls from line to line. If it were the number of the epoch, another
    # run would begin in each line.
    text = "".join(f"step {i} tokens/s: 100 {key}: {12.5 - i}\n" for i in range(5))
    assert analyze_text(tmp_path, text).figures["values"] == 5
    # Nor is it the epoch in lines without a value: the steps begin anew in epoch 2, not in a run.
    text = "".join(
        f"Epoch {epoch}\n{key}: {9 - epoch}\nstep 1 tokens/s: 5\nstep 2 tokens/s: 5\n"
        for epoch in range(1, 3)
    )
    assert analyze_text(tmp_path, text).figures["values"] == 4


def test_first_epoch_of_a_line_counts(tmp_path: Path) -> None:
    # Each line also has the epoch of the best loss; if that one counted, the steps that begin anew
    # in epoch 2 would be those of another run.
    text = "".join(
        f"epoch: {epoch} step {step} tokens/s: 5 best epoch: 0\n"
        for epoch in (1, 2)
        for step in (1, 2)
    )
    assert analyze_text(tmp_path, text).figures["values"] == 4


def test_words_in_capitals_are_read(tmp_path: Path) -> None:
    # The steps begin anew in the second epoch, which belongs to the same run.
    text = "".join(
        f"EPOCH {epoch}\nSTEP {step} LOSS: 2.5 TOKENS/S: 100\n"
        for epoch in (1, 2)
        for step in (1, 2)
    )
    analysis = analyze_text(tmp_path, text)
    assert (analysis.record.LOSS_RESULT, analysis.figures["values"]) == (2.5, 4)


def test_epochs_of_a_known_trainer_are_one_run(tmp_path: Path) -> None:
    # Lines as nanoGPT prints them, of three epochs of three steps; no line names the epoch, and the
    # steps begin anew in each.
    text = "".join(f"iter {i}: loss 2.5, time {5 + i}.00ms\n" for _ in range(3) for i in range(3))
    analysis = analyze_text(tmp_path, text)
    # Step times of 5, 6 and 7 ms, three times: 1 / 0.006 s. All 9 values are those of one run.
    assert (read_speed(analysis), analysis.figures["values"]) == ((166.667, "steps/s"), 9)


def test_training_loss_is_read_not_the_validation_loss(tmp_path: Path) -> None:
    text = "step 1 load_balancing_loss: 0.01 train_loss: 2.5 val_loss: 3.5 tokens/s: 5\n"
    assert analyze_text(tmp_path, text).record.LOSS_RESULT == 2.5


def test_ranks_that_print_out_of_order_are_one_run(tmp_path: Path) -> None:
    # Step and rank of each line.
    order = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (2, 2), (3, 1), (4, 0), (3, 2), (4, 1)]
    text = "".join(f"[rank{rank}] step: {step} tokens/s: {step * 10}\n" for step, rank in order)
    # The values of rank 0 count: 10, 20, 30 and 40.
    analysis = analyze_text(tmp_path, text)
    assert (read_speed(analysis), analysis.figures["values"]) == ((25.0, "tokens/s"), 4)


def test_total_of_a_job_counts_unless_the_devices_are_given(tmp_path: Path) -> None:
    line = "avg_batch_cost: 0.5 sec, ips_total: 88000 tokens/s, ips: 11000 tokens/s\n"
    record = analyze_text(tmp_path, line * 2).record
    # 88,000 of all and 11,000 of each: eight devices; "mp": several.
    assert (record.FINAL_RESULT, record.gpu_num, record.run_mode) == (88000.0, 8, "mp")
    record = analyze_text(tmp_path, line * 2, gpu_num=4).record
    assert (record.FINAL_RESULT, record.gpu_num) == (44000.0, 4)  # 11,000 of each


def test_rates_are_averaged_by_the_work_of_each_value(tmp_path: Path) -> None:
    lines = "".join(
        f"step {i} samples/s: {rate} global batch size: 64\n" for i, rate in enumerate((10, 40))
    )
    # Each line has its rate and its work: 64 samples in 6.4 s, and 64 in 1.6 s.
    analysis = analyze_text(tmp_path, lines)
    assert (read_speed(analysis), analysis.figures["mean_by"]) == ((16.0, "samples/s"), "work")
    # A counter of all tokens so far gives the work of a step as its rise since the step before.
    counted = "".join(
        f"step {i} tokens/s: {rate} consumed tokens: {64 * (i + 1)}\n"
        for i, rate in enumerate((7, 10, 40))
    )
    # The first step has no step before it, so its work is unknown and it is skipped.
    analysis = analyze_text(tmp_path, counted, skip_steps=1)
    assert (read_speed(analysis), analysis.figures["mean_by"]) == ((16.0, "tokens/s"), "work")
    # If no line gives its work, the result is the mean of the values.
    analysis = analyze_text(tmp_path, "step 1 tokens/s: 10\nstep 2 tokens/s: 40\n")
    assert (read_speed(analysis), analysis.figures["mean_by"]) == ((25.0, "tokens/s"), "value")


def test_named_preset_is_used_even_if_another_recognizes_more_lines(tmp_path: Path) -> None:
    # A preset tells how to read the lines of one trainer: here one line of torchtitan, with 100
    # tokens/s (tps), and nine of nanoGPT. Without lines of the named preset, no speed is read.
    torchtitan = "step: 1  loss: 2.5  tps: 100  mfu: 1%\n"
    nanogpt = "".join(f"iter {i}: loss 2.5, time 100.00ms, mfu 1%\n" for i in range(9))
    analysis = analyze_text(tmp_path, nanogpt + torchtitan, preset="torchtitan")
    assert read_speed(analysis) == (100.0, "tokens/s")
    analysis = analyze_text(tmp_path, nanogpt, preset="torchtitan")
    assert read_speed(analysis) == (None, "")
    assert analysis.figures["notes"][0].startswith("no value found with preset torchtitan")


def test_malformed_lines_of_other_presets_do_not_count_for_the_named_one(tmp_path: Path) -> None:
    # The second line lacks its time, so it is malformed in the form of nanoGPT; torchtitan's preset
    # does not read such lines. The only value, 100 ms, is skipped by ``skip_steps``.
    nanogpt = "iter 1: loss 2.5, time 100.00ms, mfu 1%\niter 2: loss 2.5, time: -, mfu 1%\n"
    for preset, num_malformed in [("nanogpt", 1), ("torchtitan", 0)]:
        figures = analyze_text(tmp_path, nanogpt, preset=preset, skip_steps=1).figures
        assert (figures["values"], figures["lines_malformed"]) == (0, num_malformed)


def test_log_without_a_speed_shows_its_repeated_numeric_keys(tmp_path: Path) -> None:
    # A key stands before its number, with or without a colon. The user may choose one as the speed.
    text = "".join(f"epoch {i} loss: 2.{i} gnorm: 1.5 seed 7\n" for i in range(5))
    (note, *_) = analyze_text(tmp_path, text).figures["notes"]
    keys = "epoch (5 times, last 4), loss (5 times, last 2.4), gnorm (5 times, last 1.5), seed (5 "
    assert keys in note
    assert "keyword=TEXT" in note


def test_speed_of_one_node_is_not_taken_as_that_of_a_device(tmp_path: Path) -> None:
    analysis = analyze_text(tmp_path, "step 1 tokens/s/node: 100\n", gpu_num=16)
    assert read_speed(analysis) == (100.0, "tokens/s")
    # The number of nodes is not known, so nothing is multiplied.
    assert any("of one node" in note for note in analysis.figures["notes"])


def test_byte_order_mark_and_other_separators_split_no_line(tmp_path: Path) -> None:
    # The text has three lines, which end with "\r\n". U+FEFF is the mark; U+2028, \x0b and \x85 in
    # the second line are separators at which some programs break lines. ``skip_steps`` skips the 5.
    text = "\ufeffips: 5 samples/s\r\nnote\u2028a\x0bb\x85c\r\nips: 7 samples/s\r\n"
    analysis = analyze_text(tmp_path, text, preset=None, keyword="ips:", skip_steps=1)
    assert read_speed(analysis) == (7.0, "samples/s")
    assert analysis.figures["first_value"] == "line 3: ips: 7 samples/s"


def test_steps_per_value_needs_values_that_are_times(tmp_path: Path) -> None:
    text = "step 1 tokens/s: 100\n"
    with pytest.raises(UsageError, match="steps_per_value"):
        analyze_text(tmp_path, text, steps_per_value=10)
    # 10 steps in 5 s.
    analysis = analyze_text(tmp_path, "step 10 time 5 s\n", steps_per_value=10)
    assert read_speed(analysis) == (2.0, "steps/s")


def test_events_and_steps_of_one_log_give_the_wall_time_of_the_events(tmp_path: Path) -> None:
    events = (LOGS / "reported/mllog_two_attempts.txt").read_text()
    steps = "step: 1  loss: 2.5  tps: 100  mfu: 1%\n"
    # The events are a log in MLPerf's form, whose successful run took 600 s for 262,144 samples, so
    # 436.907 samples/s. The step line is one of torchtitan with 100 tokens/s (tps); such lines
    # count only if their preset is named.
    assert read_speed(analyze_text(tmp_path, steps + events)) == (436.907, "samples/s")
    assert read_speed(analyze_text(tmp_path, steps + events, preset="torchtitan")) == (
        100.0,
        "tokens/s",
    )


def test_event_log_of_a_failed_run_is_flagged(tmp_path: Path) -> None:
    # A log of MLPerf's form with two runs. The first one is aborted; the second one succeeded, with
    # 262,144 samples in 600 s, which are 436.907 samples/s. Here the log says that it failed too.
    text = (LOGS / "reported/mllog_two_attempts.txt").read_text()
    analysis = analyze_text(tmp_path, text.replace('"status": "success"', '"status": "aborted"'))
    assert analysis.record.JOB_FAIL_FLAG == 1
    assert analysis.figures["result"] == 436.907  # measured all the same
    analysis = analyze_text(tmp_path, "no events\n", preset="mllog")
    assert "no :::MLLOG lines" in analysis.figures["notes"][0]


def test_total_of_a_perflog_counts_and_not_its_steps(tmp_path: Path) -> None:
    # A run that this program exported in the form PerfLog: events of steps, and totals at the end.
    text = (GOLDEN / "export_perflog.txt").read_text()
    for preset in ("auto", "perflog"):
        analysis = analyze_text(tmp_path, text, preset=preset)
        record = analysis.record
        # The values of the export's last line.
        assert (record.FINAL_RESULT, record.UNIT, record.LOSS_RESULT) == (384.0, "samples/s", 0.125)
        # The total at the end counts, the one without evaluations, not the speed by the samples and
        # times of the steps.
        assert analysis.figures["read_from"] == "throughput(ips)_no_eval"


@pytest.mark.parametrize(
    ("text", "options", "unit", "loss"),
    [
        # The record is as the public tool writes it. Without a speed it has no unit; the loss is
        # the one of the log, or 0 if the log has none.
        ("loss: 2.5\n", {"keyword": "ips:", "keyword_loss": "loss:", "ips_unit": "x/s"}, "", 2.5),
        ("Traceback\n", {"keyword": "ips:", "keyword_loss": "loss:"}, "", 0.0),
        # A job that failed although its log has a speed keeps the unit of this speed.
        ("ips: 5 loss: 2.5\n", {"keyword": "ips:", "keyword_loss": "loss:", "failed": True,
                                "ips_unit": "samples/s"}, "samples/s", 2.5),
        ("ips: 5\n", {"keyword": "ips:", "failed": True, "model_mode": 1}, "steps/s", 0.0),
    ],
)  # fmt: skip
def test_record_of_a_failed_log_has_unit_and_loss_of_the_public_tool(
    tmp_path: Path, text: str, options: dict[str, Any], unit: str, loss: float
) -> None:
    record = json.loads(analyze_text(tmp_path, text, preset=None, **options).record.to_json())
    assert (record["FINAL_RESULT"], record["JOB_FAIL_FLAG"]) == (0.0, 1)
    assert (record["UNIT"], record["LOSS_RESULT"]) == (unit, loss)


@pytest.mark.parametrize(
    # ``earlier_steps``: those before a resume, which the counter includes, but not the clock.
    ("earlier_steps", "num_lines", "first_line"),
    [
        (0, 1, 1),  # the speed of a single line is its counter divided by its clock
        (0, 5, 2),  # that of several lines is the rise between them, from the second line on
        (200, 5, 2),
    ],
)
def test_counter_with_a_clock_gives_steps_per_second(
    tmp_path: Path, earlier_steps: int, num_lines: int, first_line: int
) -> None:
    # LLaMA-Factory's counter of steps and its clock: ten steps every 5 s.
    lines = [
        f'{{"current_steps": {earlier_steps + 10 * n}, "elapsed_time": "0:00:{5 * n:02d}"}}\n'
        for n in range(1, num_lines + 1)
    ]
    analysis = analyze_text(tmp_path, "".join(lines))
    assert read_speed(analysis) == (2.0, "steps/s")
    # With earlier steps, the counter divided by the clock falls from 42 to 10. A note would say so
    # of a trainer that prints this mean; this one prints the counter, so nothing misleads.
    assert "falls" not in summarize(analysis)
    assert analysis.figures["first_value"] == f"line {first_line}: {lines[first_line - 1].strip()}"
