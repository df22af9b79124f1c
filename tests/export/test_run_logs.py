"""Logs in the forms of other systems: golden files, read back by us and by the public parser."""

import json

import pytest

from support.comparison_records import replace_plan_fields
from support.exported_runs import list_complaints, write_two_ranks
from support.fakes import check_golden, launch_event, make_event, write_events
from trainmark.errors import RecordError
from trainmark.events.schema import name_node_file
from trainmark.export.run_logs import render_mlperf_log, render_perflog
from trainmark.export.tables import render_csv
from trainmark.plan.plan import Resumed
from trainmark.protocols import Progress
from trainmark.published.importers import files as importers
from trainmark.record.work import describe_work, find_differences

FORMS = {"perflog": (render_perflog, "[PerfLog] "), "mlperf": (render_mlperf_log, ":::MLLOG ")}


@pytest.fixture
def run(tmp_path):
    """Return the record of a run of two ranks and its folder."""
    return write_two_ranks(tmp_path / "run")


def read_log_events(form, run):
    """Return the events of a run's log.

    Each line of a log begins with a marker of its form, and has an event as JSON behind it.
    ``FORMS`` has the function that renders a log and the marker, by form.

    Args:
        form: ``perflog`` or ``mlperf``.
        run: the record and its folder.
    """
    render_log, marker = FORMS[form]
    lines = render_log(*run).splitlines()
    assert all(line.startswith(marker) for line in lines)
    return [json.loads(line.removeprefix(marker)) for line in lines]


@pytest.mark.parametrize("form", FORMS)
def test_log_of_a_run_matches_its_golden_file(form, run):
    """``run``: a record and its folder; ``FORMS``: by form, what renders its log, and a marker."""
    check_golden(f"export_{form}.txt", FORMS[form][0](*run))


def test_a_resumed_run_is_other_work_and_has_no_mlperf_log(run):
    """``run`` is the record and the folder of a run that began anew.

    What is compared is the work that a record describes: of a resumed run, also the progress after
    which it began. Its numbers here are any. An MLPerf log must cover a training from its start.
    """
    record, folder = run
    progress = Progress(steps=20, epoch=0, steps_of_epoch=20, samples=640)
    resumed = Resumed(runs=["first"], checkpoint="none", progress=progress)
    resumed_record = replace_plan_fields(record, resumed=resumed)
    assert find_differences(describe_work(record), describe_work(resumed_record)) == [
        "resumed_after"
    ]
    with pytest.raises(RecordError, match="was resumed from a checkpoint"):
        render_mlperf_log(resumed_record, folder)
    # A PerfLog can still be written.
    assert render_perflog(resumed_record, folder) == render_perflog(record, folder)


def test_importer_reads_the_same_figures_from_exported_files(run, tmp_path):
    """A run is exported in three forms, and each file is imported as a row of figures."""
    record, folder = run
    (tmp_path / "perflog.log").write_text(render_perflog(record, folder), encoding="ascii")
    (tmp_path / "mlperf.log").write_text(render_mlperf_log(record, folder), encoding="ascii")
    (tmp_path / "table.csv").write_text(render_csv([record]), encoding="utf-8")
    for name in ("perflog.log", "mlperf.log", "table.csv"):
        imported = importers.read_files([tmp_path / name])
        assert imported.unread == []
        (row,) = imported.rows
        # Only figures that the record has too.
        known_figures = {
            figure: entry for figure, entry in row.figures.items() if figure in record.figures
        }
        # Figures that must come back exactly.
        same = {"p_whole", "p_train", "p_core", "e2e_time", "train_time", "final_loss"}
        if name == "mlperf.log":  # its lines hold only times and losses
            assert known_figures["p_train"].value == record.figure("p_train")
            same = set()
        assert same <= known_figures.keys()
        for figure in same:
            entry = record.figures[figure]
            assert (known_figures[figure].value, known_figures[figure].unit) == (
                entry.value,
                entry.unit,
            )
        assert row.case == record.plan.case


@pytest.mark.parametrize("num_events", [5, 7])
def test_interrupted_run_has_no_totals_and_is_aborted(num_events, tmp_path):
    """Each rank has only its first events: 5 end after the first window, 7 in the second epoch."""
    run = write_two_ranks(tmp_path / "run", ends_after=num_events)
    record, _ = run
    assert not record.passed
    assert "FINISHED" not in {item["event"] for item in read_log_events("perflog", run)}
    # MLPerf's last event says so; the samples until then are counted.
    *_, last = read_log_events("mlperf", run)
    assert (last["key"], last["metadata"]["status"]) == ("run_stop", "aborted")
    assert last["metadata"]["samples_count"] == record.counts.samples


def test_a_record_without_its_events_is_refused(run, tmp_path):
    """``run`` is a record and its folder; a log is rendered from the events in a folder."""
    with pytest.raises(RecordError, match="no events in this folder"):
        render_perflog(run[0], tmp_path)


def test_log_of_several_nodes_has_the_times_of_the_first_nodes_clock(run):
    """If a node has written events of its own, the log names its file and its time.

    ``run`` is a record and its folder; the launcher of that run began at 10**18 ns since 1970.
    ``name_node_file(0)`` is the name of the file with the events of node 0.

    ``read_log_events`` returns the events of a log; the first of them is the begin of the run.
    """
    _, folder = run
    # The node began 5 s after the launcher of the golden run, by the wall clock.
    node = launch_event(0, unix_ns=10**18 + 5 * 10**9, node=0)
    write_events(folder / name_node_file(0), [node, make_event("finished", 12 * 10**9)])
    first = read_log_events("perflog", run)[0]
    assert first["metadata"]["file"] == name_node_file(0)
    assert first["metadata"]["time_ms"] == 10**12 + 5_000  # the node's begin, in ms


def test_public_checker_misses_only_the_keys_of_a_submission(run, tmp_path):
    """MLPerf's own checker of logs, with the rules of two versions of MLPerf."""
    path = tmp_path / "result_0.txt"
    path.write_text(render_mlperf_log(*run), encoding="utf-8")
    # The log has init_stop, which ends the start-up. But the checker rejects it: how long a
    # start-up may take depends on the division, without which no time is short enough.
    submission = {
        "submission_org",
        "submission_platform",
        "submission_division",
        "cache_clear",
        "init_stop",
    }
    # Facts of the system that only the later rules ask for.
    disclosure = {
        "lowest_numerical_precision_in_linear",
        "lowest_numerical_precision_in_attn",
        "lowest_numerical_precision_in_comm",
        "tensor_parallelism",
        "pipeline_parallelism",
        "context_parallelism",
        "expert_parallelism",
        "config_filename",
    }
    # The missing keys; no other complaints.
    assert list_complaints(path, "6.1.0") == (submission | disclosure, [])
    assert list_complaints(path, "5.1.0") == (submission, [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda line: b"garbage\n",
        lambda line: b'{"event":"window","t_ns":1}\n',  # without the fields of a window
        lambda line: line.replace(b'"t_ns"', b'"time"'),  # without its time
        lambda line: line[:20] + b"\xff\n",  # not UTF-8
    ],
)
@pytest.mark.parametrize("name", ["events.launcher.jsonl", "events.rank0.jsonl"])
def test_damaged_event_is_one_error_with_its_line(form, damage, name, run):
    """A line of a run, replaced by ``damage``, cannot be rendered into a log of either form.

    ``run`` is a record and its folder. ``FORMS`` has for each form of log the function that renders
    it, and the marker of its lines, which is not needed here.
    """
    record, folder = run
    path = folder / name
    lines = path.read_bytes().splitlines(keepends=True)
    number = 1 if name == "events.launcher.jsonl" else 3  # a line that both logs need
    lines[number - 1] = damage(lines[number - 1])
    path.write_bytes(b"".join(lines))
    render_log, _ = FORMS[form]
    with pytest.raises(RecordError) as fault:
        render_log(record, folder)
    assert fault.value.where == f"{path}:{number}"


@pytest.mark.parametrize("form", FORMS)
def test_steps_that_the_record_does_not_have_are_an_error_with_their_line(form, run):
    """A ``window`` is an event with the steps of a rank: more of them than the record counts.

    ``run`` is a record and its folder. ``FORMS`` has for each form of log the function that renders
    it, and the marker of its lines, which is not needed here.
    """
    record, folder = run
    path = folder / "events.rank0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    windows = [number for number, line in enumerate(lines, 1) if b'"window"' in line]
    # The windows once more, so the first line too many is the first copy.
    path.write_bytes(b"".join([*lines, *(lines[number - 1] for number in windows)]))
    render_log, _ = FORMS[form]
    with pytest.raises(RecordError) as fault:
        render_log(record, folder)
    assert fault.value.where == f"{path}:{len(lines) + 1}"
