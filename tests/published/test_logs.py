"""Logs: totals before step lines, what step lines alone say, and damaged ones."""

from __future__ import annotations

import gzip
import json

import pytest

from support.fakes import GOLDEN
from trainmark.published.audit import audit
from trainmark.published.audit.views import view_row


def format_perflog(event, time_ms=0, value=None, rank=0, **fields):
    """Return a line of an event in the form PerfLog.

    Args:
        event: its name, such as ``STEP_END``.
        time_ms: when it happened.
        value: what it reports, such as totals by name.
        rank: the rank that printed it.
        fields: other keys of the event, or replacements of those above.
    """
    metadata = {"file": "run.py", "lineno": 1, "time_ms": time_ms, "rank": rank}
    return (
        f"[PerfLog] {json.dumps({'event': event, 'value': value, 'metadata': metadata} | fields)}\n"
    )


def format_mllog(key, value=None, time_ms=0, **metadata):
    """Return a line of an event in MLPerf's form.

    Args:
        key: the name of the event, such as ``run_start``.
        value: what it reports; None: nothing.
        time_ms: when it happened.
        metadata: further facts, such as a count of samples or the status at a run's end.
    """
    event = {"key": key, "value": value, "time_ms": time_ms, "metadata": metadata}
    return f":::MLLOG {json.dumps(event)}\n"


def format_step(number):
    """Return the events of step ``number``: 32 samples in 1 s, and a loss that falls by 1."""
    done = {"loss": 2.0 - number, "num_trained_samples": 32 * (number + 1)}
    begin, end = 1000 * number, 1000 * (number + 1)
    return format_perflog("STEP_BEGIN", time_ms=begin) + format_perflog(
        "STEP_END", time_ms=end, value=done
    )


STEPS = "".join(map(format_step, range(3)))
TOTALS = {
    "e2e_time": 361.5, "train_time": 350.0, "throughput(ips)_raw": 1764.0,
    "throughput(ips)_no_eval": 1861.9, "throughput(ips)_pure_compute": 1942.6,
    "training_sequences_per_second": 1700.0, "final_acc": 0.915, "converged": True,
    "num_trained_samples": 640, "final_loss": 0.25,
}  # fmt: skip


def read_values(row):
    """Return the values of a row's figures by name."""
    return {name: figure.value for name, figure in row.figures.items()}


def test_totals_come_before_step_lines(import_text):
    # The figures are those of ``TOTALS``, not those of the three steps in ``STEPS``. ``TOTALS`` has
    # the numbers below, some with other keys: ``throughput(ips)_raw`` is read as ``p_whole``,
    # ``throughput(ips)_no_eval`` as ``p_train``, ``throughput(ips)_pure_compute`` as ``p_core``.
    (row,) = import_text(
        "start\n" + STEPS + format_perflog("FINISHED", time_ms=9000, value=TOTALS)
    ).rows
    assert read_values(row) == {
        "e2e_time": 361.5,
        "train_time": 350.0,
        "p_whole": 1764.0,
        "p_train": 1861.9,
        "p_core": 1942.6,
        "final_acc": 0.915,
        "final_loss": 0.25,
    }
    # The row is of the line of the totals, after "start" and two lines for each of three steps; its
    # quality is the one that is not a loss.
    assert (row.form, row.line, row.metric) == ("perflog", 8, "final_acc")
    assert row.raw.startswith('[PerfLog] {"event": "FINISHED"')
    assert row.cells["num_trained_samples"] == "640"
    assert row.notes == []


def test_losses_and_speeds_of_other_events_are_not_those_of_steps(import_text):
    evaluated = format_perflog("EVALUATE", time_ms=4000, value={"loss": 9.0})
    finished = format_perflog("FINISHED", time_ms=9000, value={"throughput": 7.0})
    # ``STEPS`` are 32 samples a second, with a last loss of 0.
    (row,) = import_text(STEPS + evaluated + finished).rows
    # Without a unit it is unknown what the throughput counts.
    assert read_values(row) == {"p_train": 32.0, "last_loss": 0.0}


def test_step_lines_alone_give_the_speed_of_their_intervals(import_text):
    # ``STEPS`` are three steps of 32 samples in 1 s each, with the losses 2, 1 and 0.
    (row,) = import_text(STEPS).rows
    assert read_values(row) == {"p_train": 32.0, "last_loss": 0.0}
    assert row.line == 0  # of the log as a whole


def test_case_key_gives_case_device_framework_and_ranks(import_text):
    # model:framework:device:nodes:ranks of a node:repeats. ``TOTALS`` are figures of any run.
    key = "distilbert:pytorch_1.8:A100:2:8:1"
    text = format_perflog("INIT_START", value={"case": key}) + format_perflog(
        "FINISHED", value=TOTALS
    )
    (row,) = import_text(text).rows
    assert (row.configuration, row.case, row.device) == (key, "distilbert_sst2", "A100")
    assert (row.framework, row.world_size) == ("pytorch_1.8", 16)


def test_totals_that_are_no_numbers_are_listed(import_text):
    # ``FINISHED`` is the event at the end of a run, with its totals: here a time of 1 s and one
    # that is a word.
    imported_rows = import_text(
        format_perflog("FINISHED", value={"e2e_time": "soon", "train_time": 1.0})
    )
    assert read_values(imported_rows.rows[0]) == {"train_time": 1.0}
    assert [(entry.kind, entry.raw) for entry in imported_rows.unread] == [("cell", "soon")]
    # NaN is a number without a value.
    (row,) = import_text(
        '[PerfLog] {"event": "FINISHED", "value": {"e2e_time": NaN}, "metadata": {}}'
    ).rows
    assert read_values(row) == {"e2e_time": None}


def test_mlperf_log_gives_times_and_quality(import_text):
    text = (
        format_mllog("submission_benchmark", value="bert")
        + format_mllog("submission_platform", value="4 nodes")
        + format_mllog("run_start", time_ms=1000)
        + format_mllog("tracked_stats", value={"throughput": 500.0, "loss": 1.5}, time_ms=2000)
        + format_mllog("tracked_stats", value={"throughput": 520.0}, time_ms=3000)
        + format_mllog("eval_accuracy", value=0.5, time_ms=4000)
        + format_mllog("eval_accuracy", value=0.72, time_ms=5000)
        + format_mllog("run_stop", time_ms=61000, status="success")
    )
    (row,) = import_text(text, "result_0.txt").rows
    assert read_values(row) == {
        "train_time": 60.0,
        "final_eval_accuracy": 0.72,
        "p_train": 510.0,  # the mean
        "last_loss": 1.5,
    }
    # The row is of the line of ``run_stop``.
    assert (row.form, row.model, row.metric, row.line) == (
        "mlperf",
        "bert",
        "final_eval_accuracy",
        8,
    )
    assert row.cells["submission_platform"] == "4 nodes"
    (row,) = import_text(text.replace("success", "aborted")).rows
    assert [note.code for note in row.notes] == ["run_not_successful"]


@pytest.mark.parametrize("count", [{"samples_count": 0}, {}])
def test_blocks_of_mlperf_logs_give_samples_over_their_seconds(import_text, count):
    text = format_mllog("block_start", time_ms=0, **count)
    text += format_mllog("block_stop", time_ms=8000, samples_count=100)
    text += format_mllog("block_start", time_ms=20000, samples_count=100)
    text += format_mllog("block_stop", time_ms=22000, samples_count=500)
    text += format_mllog("train_loss", value=2.5)
    # Counts are those of all samples so far: 100 samples in 8 s, and 500 - 100 in 2 s, so 500 in
    # 10 s. Without a count (``count``) at the begin of the first block, no speed is computed.
    (row,) = import_text(text).rows
    assert read_values(row) == {"last_loss": 2.5} | ({"p_train": 50.0} if count else {})


def test_gzip_log_and_truncated_gzip_log_are_read(import_text):
    # ``STEPS`` are events of three steps, ``TOTALS`` the figures of the event at a run's end. The
    # second file lacks its last 20 bytes and is listed as unreadable.
    packed = gzip.compress((STEPS + format_perflog("FINISHED", value=TOTALS)).encode())
    assert len(import_text(packed, "log.gz").rows) == 1
    assert [entry.reason.code for entry in import_text(packed[:-20], "log.gz").unread] == [
        "file_unreadable"
    ]


def test_each_run_in_a_log_is_a_row(import_text):
    # A run begins with the start of rank 0; the others belong to it. ``STEPS`` are steps 0 to 2, of
    # 32 samples in 1 s each, with two lines for each step; ``TOTALS`` are totals of a run with an
    # ``e2e_time`` of 361.5 s. The second run has no totals, but a fourth step: step 3. The loss
    # of step n is 2 - n, so its last loss is -1.
    start = format_perflog("INIT_START") + format_perflog("INIT_START", rank=1)
    text = start + STEPS + format_perflog("FINISHED", value=TOTALS) + start + STEPS + format_step(3)
    first, second = import_text(text).rows
    assert read_values(first)["e2e_time"] == 361.5
    assert read_values(second) == {"p_train": 32.0, "last_loss": -1.0}
    # The line of its totals, after two lines of starts and six of steps; without totals, the line
    # at which the run begins.
    assert (first.line, second.line) == (9, 10)

    def run(start_ms, speed):  # a run of 5 s in MLPerf's form
        return (
            format_mllog("run_start", time_ms=start_ms)
            + format_mllog("tracked_stats", value={"throughput": speed}, time_ms=start_ms)
            + format_mllog("run_stop", time_ms=start_ms + 5000, status="success")
        )

    other = format_mllog("run_start", time_ms=7, rank=1)
    rows = import_text(run(start_ms=0, speed=10.0) + other + run(start_ms=60_000, speed=20.0)).rows
    assert [(row.figure("p_train"), row.figure("train_time")) for row in rows] == [
        (10.0, 5.0),
        (20.0, 5.0),
    ]


def test_malformed_events_are_listed_once_with_their_number(import_text):
    # Three lines that begin as an event but are no JSON, then the totals of a run (``TOTALS``).
    imported_rows = import_text(
        "[PerfLog] {broken\n" * 3 + format_perflog("FINISHED", value=TOTALS)
    )
    assert len(imported_rows.rows) == 1
    assert [
        (entry.line, entry.reason.code, entry.reason.args) for entry in imported_rows.unread
    ] == [(1, "events_malformed", {"count": 3})]  # at the line of the first


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("nothing here\n", "log_without_events"),
        ("", "log_without_events"),
        (format_perflog("INIT_START"), "table_without_results"),
        (format_mllog("run_stop", time_ms=5), "table_without_results"),
    ],
)
def test_logs_without_figures_are_listed(import_text, text, code):
    # The ``code`` says that no line of the log is an event, or that its events have no figure: the
    # third log has only the start of a run, the fourth only its end.
    imported_rows = import_text(text)
    assert (imported_rows.rows, [entry.reason.code for entry in imported_rows.unread]) == (
        [],
        [code],
    )


TWO_ATTEMPTS = (GOLDEN / "logs/reported/mllog_two_attempts.txt").read_text(encoding="utf-8")
OURS = (GOLDEN / "export_mlperf.txt").read_text(encoding="utf-8")


def list_notes(row):
    """Return the codes of what is noted about a row, such as that its run was aborted."""
    return [note.code for note in row.notes]


def test_run_followed_by_another_run_is_aborted(import_text):
    # ``TWO_ATTEMPTS`` is a log of 15 lines in MLPerf's form: six lines of a run that was stopped in
    # its first block (a stretch of training between two counts of samples), and nine lines of a
    # second run that passed, with 262,144 samples in a block of 600 s and 0.3 s outside of it, and
    # with an accuracy of 0.58.
    imported_rows = import_text(TWO_ATTEMPTS, "result_0.txt")
    (row,) = imported_rows.rows
    assert read_values(row) == pytest.approx(
        {"train_time": 600.3, "final_eval_accuracy": 0.58, "p_train": 262144 / 600}
    )
    assert row.line == 15  # the end of the second attempt
    # The first attempt has neither an end nor a speed.
    assert [(entry.line, entry.kind, entry.reason.code) for entry in imported_rows.unread] == [
        (1, "row", "run_aborted")
    ]


def test_aborted_run_with_a_speed_is_a_row_that_failed(import_text):
    # The first run has three steps of 32 samples in 1 s (``STEPS``), but no end before another run
    # begins. The second one has one such step. No run follows it, so it does not count as aborted.
    start = format_perflog("INIT_START") + format_perflog("INIT_START", rank=1)
    first, second = import_text(start + STEPS + start + format_step(0)).rows
    assert (read_values(first)["p_train"], list_notes(first), first.line) == (
        32.0,
        ["run_aborted"],
        1,
    )
    assert first.failure.code == "run_aborted"
    assert (read_values(second)["p_train"], second.notes) == (32.0, [])
    # ``TWO_ATTEMPTS`` is a log of two runs, of which the first stopped in its block. Here the end
    # of that block is added behind its six lines: 51,200 samples in the 100 s from 61,200 ms on.
    lines = TWO_ATTEMPTS.splitlines(keepends=True)
    block = format_mllog("block_stop", time_ms=161_200, samples_count=51_200)
    first, second = import_text("".join([*lines[:6], block, *lines[6:]])).rows
    assert (first.figure("p_train"), list_notes(first)) == (pytest.approx(512.0), ["run_aborted"])
    assert second.figure("p_train") == pytest.approx(436.907, abs=1e-3)  # 262,144 in 600 s


def test_run_that_died_while_it_started_is_aborted(import_text):
    # A run of 10 s, from its ``run_start`` at 100 s to its ``run_stop`` at 110 s. Before it,
    # another process printed its ``init_start`` and nothing else.
    died = format_mllog("init_start", time_ms=0)
    finished = (
        format_mllog("init_start", time_ms=90_000)
        + format_mllog("run_start", time_ms=100_000)
        + format_mllog("tracked_stats", value={"throughput": 5.0}, time_ms=101_000)
        + format_mllog("run_stop", time_ms=110_000, status="success")
    )
    imported_rows = import_text(died + finished)
    assert [row.figure("train_time") for row in imported_rows.rows] == [10.0]
    assert [entry.reason.code for entry in imported_rows.unread] == ["run_aborted"]


def test_processes_that_print_the_same_start_are_one_run(import_text):
    # Two processes print each start, less than a second apart: no run is aborted by the second one.
    starts = format_mllog("init_start", time_ms=0) + format_mllog("init_start", time_ms=900)
    starts += format_mllog("run_start", time_ms=5000) + format_mllog("run_start", time_ms=5001)
    # The run takes 4 s from the first ``run_start``, at 5 s, to its end, at 9 s.
    end = format_mllog("block_start", time_ms=6000, samples_count=0)
    end += format_mllog("block_stop", time_ms=8000, samples_count=100) + format_mllog(
        "run_stop", time_ms=9000
    )
    (row,) = import_text(starts + end).rows
    assert row.figure("p_train") == 50.0  # 100 samples in 2 s
    assert row.figure("train_time") == 4.0


def change_events(text, change):
    """Return a log of MLPerf's form with each event changed by ``change``.

    Args:
        text: of the log, with an event in each line.
        change: gets an event as a dictionary and changes it in place.
    """
    lines = []
    for line in text.splitlines():
        event = json.loads(line.removeprefix(":::MLLOG "))
        change(event)
        lines.append(f":::MLLOG {json.dumps(event)}\n")
    return "".join(lines)


def double_samples(event):
    """State twice as many samples; an event that counts none states 0."""
    event["metadata"]["samples_count"] = 2 * event["metadata"].get("samples_count", 0)


def double_samples_of_blocks(event):
    """State twice as many samples at the end of each block of steps."""
    if event["key"] == "block_stop":
        double_samples(event)


def double_batch(event):
    """State a global batch of twice the size."""
    if event["key"] == "global_batch_size":
        event["value"] *= 2


def halve_times(event):
    """Halve the time of an event since the begin of the log, which is at 10**12 ms."""
    event["time_ms"] = 10**12 + (event["time_ms"] - 10**12) // 2


def shorten_blocks(event):
    """End each block of steps a minute earlier."""
    if event["key"] == "block_stop":
        event["time_ms"] -= 60_000


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        # All counts of samples are twice what the steps took.
        (double_samples, ["log_samples_above_steps"]),
        # Only those at the ends of blocks: the next event's count is lower.
        (double_samples_of_blocks, ["log_samples_fall", "log_samples_above_steps"]),
        # Steps of twice the batch would have taken more samples, and the batches of the devices do
        # not add up to it.
        (double_batch, ["log_samples_below_steps", "log_batch_and_devices"]),
        # The ends of blocks are a minute earlier, before their starts.
        (shorten_blocks, ["log_time_falls"]),
        (halve_times, []),  # the log states its times once, so nothing contradicts them
        (lambda _: None, []),
    ],
)
def test_contradictions_of_an_event_log_are_found(import_text, change, codes):
    # ``OURS`` is a run exported in MLPerf's form; ``change`` falsifies each of its events. Notes on
    # facts that the log states once, which cannot be checked, are no contradictions.
    (row,) = import_text(change_events(OURS, change), "result_0.txt").rows
    assert [code for code in list_notes(row) if code != "log_not_checkable"] == codes
    assert {finding.message.code for finding in audit([view_row(row)])} == set(codes)


def test_second_end_of_a_run_is_found_and_the_first_one_counts(import_text):
    # ``OURS`` is a run that this program exported in MLPerf's form, with 36 lines. The last one is
    # ``run_stop``, 4 s after ``run_start``, at 1000000010000 ms (``time_ms``). It is repeated in
    # line 37, with a time that is 80 s later.
    stop = OURS.splitlines(keepends=True)[-1]
    late = stop.replace("1000000010000", "1000000090000")
    (row,) = import_text(OURS + late, "result_0.txt").rows
    (note,) = (note for note in row.notes if note.code == "log_ends_twice")
    assert note.args == {"count": 2, "line": 36, "other": 37}
    assert row.figure("train_time") == 4.0


def test_speeds_that_a_log_states_twice_are_compared(import_text):
    # A block of 100 samples/s; a stated speed may differ by a few percent, not by a factor of two.
    text = format_mllog("block_start", time_ms=0, samples_count=0)
    text += format_mllog("block_stop", time_ms=8000, samples_count=800)
    (row,) = import_text(
        text + format_mllog("tracked_stats", value={"throughput": 104.0}, time_ms=8000)
    ).rows
    assert list_notes(row) == []
    (row,) = import_text(
        text + format_mllog("tracked_stats", value={"throughput": 208.0}, time_ms=8000)
    ).rows
    assert list_notes(row) == ["log_speeds_differ"]


def test_facts_stated_once_are_reported_as_unchecked(import_text):
    (row,) = import_text(TWO_ATTEMPTS, "result_0.txt").rows
    # ``TWO_ATTEMPTS``, a log of two runs in MLPerf's form of which one succeeded, states each of
    # these facts once.
    (note,) = row.notes
    assert (note.code, note.args) == ("log_not_checkable", {"what": "samples, batch, times"})
    # A run that this program exported (``OURS``) states samples and batch twice, so that they can
    # be checked.
    (row,) = import_text(OURS, "result_0.txt").rows
    assert [note.args["what"] for note in row.notes] == ["times"]
