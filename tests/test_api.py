"""Trainmark from Python, without a launch: frames, tables, what is loaded and compared."""

from __future__ import annotations

import errno
import resource
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import trainmark
from support.fakes import GOLDEN
from trainmark import api
from trainmark.acceptance import cluster as acceptance_cluster
from trainmark.api import accepting, running
from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.export.tables import render_csv
from trainmark.launch import local
from trainmark.launch.cluster import Cluster
from trainmark.launch.processes import StopRequest, note_stop_signals
from trainmark.pages.page import write_pages
from trainmark.plan.request import RunFields, RunRequest
from trainmark.record.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


TOY = Record.model_validate_json((GOLDEN / "record_toy.json").read_text(encoding="utf-8"))
BERT = Record.model_validate_json((GOLDEN / "record_distilbert.json").read_text(encoding="utf-8"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder with two records, without the raw events that they were computed from.

    ``TOY``, in ``a``, is a record of the case ``toy``, ``BERT``, in ``b``, of ``distilbert_sst2``.
    """
    for name, record in (("a", TOY), ("b", BERT)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
    return tmp_path


def test_table_has_one_row_per_record_with_the_csv_columns() -> None:
    # ``TOY`` and ``BERT`` are records of the cases ``toy`` and ``distilbert_sst2``.
    rows_table = trainmark.table([TOY, BERT])
    assert rows_table.schema.names == render_csv([TOY, BERT]).splitlines()[0].split(",")
    assert rows_table.column("case").to_pylist() == ["toy", "distilbert_sst2"]
    assert rows_table.schema.field("samples").type == pa.int64()
    # The same as a frame of pandas.
    frame = trainmark.frame([TOY, BERT])
    assert list(frame.columns) == rows_table.schema.names
    assert frame.loc[0, "p_train_samples_per_s"] == TOY.figure("p_train")
    assert frame["quality_reached"].tolist() == [True, BERT.quality.reached]


def test_missing_pandas_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # its import fails
    # The error says to install ``trainmark[prepare]``, the extra that has pandas. ``TOY`` is a
    # record.
    with pytest.raises(EnvironmentFault, match=r"pandas.*\s.*trainmark\[prepare\]"):
        trainmark.frame([TOY])


def test_records_have_their_paths_pages_and_summary(runs: Path) -> None:
    # ``runs`` has the records of the cases ``toy`` (a) and ``distilbert_sst2`` (b). They lack their
    # raw events, so they are not verified against them.
    loaded = trainmark.load(runs, verify=False)
    assert loaded.places == [runs / "a", runs / "b"]
    assert [record.plan.case for record in loaded] == ["toy", "distilbert_sst2"]
    toy = api.Records(loaded[:1], loaded.places[:1])
    assert toy.page("zh").startswith("# 示例分类")  # the Chinese title of the toy case
    assert toy.page(html=True).startswith("<!DOCTYPE html>")
    assert len(toy.summary().records) == 1
    with pytest.raises(RecordError):  # two cases have no common summary
        loaded.summary()


def test_a_record_that_its_evidence_contradicts_is_loaded_with_a_warning(runs: Path) -> None:
    # ``a`` of ``runs`` has a record alone. Without any file of the run beside it, it could not be
    # checked. This file is one, and it differs from that of the run, so it contradicts the record.
    (runs / "a" / "plan.json").write_text("{}")
    with pytest.warns(UserWarning, match="does not match its raw events"):
        (record,) = trainmark.load(runs / "a")
    assert record.trust.grade == "do_not_quote"


def test_load_refuses_what_has_no_record(runs: Path) -> None:
    with pytest.raises(RecordError):  # the folder does not exist
        trainmark.load(runs / "none")
    # Figures that others published for a case; they are compared with, but have no record.
    with pytest.raises(RecordError, match="these are published rows, not a record"):
        trainmark.load("reference:distilbert_sst2")


def test_compare_takes_records_or_paths_as_sides(runs: Path) -> None:
    # Another run: step times that are a copy of those of ``TOY`` would be refused, so each is 0.1%
    # longer or shorter in turn. ``TOY`` is also the record in ``a`` of ``runs``.
    times = [int(time * (1 + 1e-3 * (-1) ** n)) for n, time in enumerate(TOY.steps.time_ns)]
    steps = TOY.steps.model_copy(update={"time_ns": times})
    other = TOY.model_copy(update={"run_id": "other", "steps": steps})
    by_record = trainmark.compare([TOY], [other], figures=["p_train"])
    assert by_record.figures[0].ratio == 1  # the figures of both records are the same
    single_records = trainmark.compare(TOY, other, figures=["p_train"])  # each a list of one
    assert single_records.figures[0] == by_record.figures[0]
    by_path = trainmark.compare(runs / "a", [other], figures=["p_train"])
    assert by_path.figures[0].a == by_record.figures[0].a
    # A text may stand for a list of one: ``figures``, and ``allow``, keys that may differ.
    by_path_in_list = trainmark.compare([str(runs / "a")], [other], figures="p_train", allow="bs")
    assert by_path_in_list.figures[0] == by_path.figures[0]
    with pytest.raises(UsageError):  # two cases are never compared
        trainmark.compare(str(runs / "a"), str(runs / "b"))


def test_damaged_record_of_a_side_is_excluded_with_a_warning(runs: Path) -> None:
    # A side of two records: ``r1``, that of the toy case (``a`` of ``runs``), and ``r2``, damaged.
    # ``TOY`` is the former.
    damaged = runs / "toys" / "r2"
    damaged.mkdir(parents=True)
    (damaged / "record.json").write_text('{"suite": ')
    (runs / "a").rename(runs / "toys" / "r1")
    # Step times that are not a copy of the others, which would be refused.
    times = [int(time * (1 + 1e-3 * (-1) ** n)) for n, time in enumerate(TOY.steps.time_ns)]
    steps = TOY.steps.model_copy(update={"time_ns": times})
    other = TOY.model_copy(update={"run_id": "other", "steps": steps})
    with pytest.warns(UserWarning, match="r2/record.json"):
        comparison = trainmark.compare(runs / "toys", [other], figures=["p_train"])
    assert comparison.figures[0].launches == (1, 1)  # of each side; without ``r2``


def test_plan_file_runs_each_launch_and_refuses_options_of_a_single_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []  # folders

    def launch_once(plan: Any, *_: Any, **__: Any) -> Record:
        """Note a launch, but start nothing; return ``TOY``, a record, as the launch's."""
        started.append(plan.run_dir)
        return TOY.model_copy(update={"plan": plan, "run_id": plan.run_id})

    monkeypatch.setattr(running, "launch_once", launch_once)
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "two.yaml"
    file.write_text(
        "device: cpu\nruns:\n- {name: a, case: toy}\n- {name: b, case: toy, repeat: 2}\n",
        encoding="utf-8",
    )
    # Three launches: one of the run ``a``, and two of ``b``, which is repeated.
    runs = trainmark.run(str(file), out=tmp_path / "out")
    assert list(map(str, runs.places)) == started
    assert [record.plan.repeat_index for record in runs] == [1, 1, 2]
    # An option that only makes sense for a single run.
    with pytest.raises(UsageError, match="nproc cannot be used with a plan file"):
        trainmark.run(str(file), nproc=2)


def test_wrong_field_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown recipe field 'batch'"):
        trainmark.run("toy", {"batch": 96}, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def default_sigint() -> Iterator[None]:
    """Let Ctrl-C interrupt, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_sigint")
def test_noted_stop_signal_is_delivered_again_after_the_block_on_request() -> None:
    def note_sigint() -> None:
        with note_stop_signals(deliver=True) as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.signal_name == "SIGINT"

    # Within the block the signal is only noted; after it, Python's own handler gets it.
    with pytest.raises(KeyboardInterrupt):
        note_sigint()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def limited_address_space() -> Iterator[None]:
    """Limit the address space of this process to less than charts need, as ``ulimit -v``."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    # Less than ``_MIN_ADDRESS_SPACE_BYTES`` of ``trainmark.pages.page``, but much more than the
    # rest of the process needs.
    resource.setrlimit(resource.RLIMIT_AS, (90 * 1024**3, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("limited_address_space")
def test_limited_address_space_skips_the_page_and_keeps_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "launch", lambda *_: TOY)  # a launch that has this record
    plan = TOY.plan.model_copy(update={"run_dir": str(tmp_path)})
    messages: list[object] = []
    # ``TOY`` is a record of the toy case. "toy" is the run's name while it is under way;
    # ``Cluster()``: no options of a cluster; ``show_remark`` gets what the user is told.
    record = running.launch_once(
        plan, Cluster(), "toy", StopRequest(), quiet=True, show_remark=messages.append
    )
    assert record == TOY
    assert [str(text).partition(":")[0] for text in messages] == ["page.html was not written"]
    # The pages without drawings are there.
    assert {path.name for path in tmp_path.iterdir()} == {"page.en.md", "page.zh.md"}


def test_failed_write_of_the_page_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # as a write does, without a file

    monkeypatch.setattr(local, "launch", lambda *_: TOY)  # a launch that has this record
    monkeypatch.setattr(running, "write_pages", raise_disk_full)
    plan = TOY.plan.model_copy(update={"run_dir": str(tmp_path)})
    # ``Cluster()``: no options of a cluster; ``show_remark`` gets what the user is told.
    remarks: list[object] = []
    running.launch_once(
        plan, Cluster(), "toy", StopRequest(), quiet=True, show_remark=remarks.append
    )
    (remark,) = map(str, remarks)
    assert remark.startswith(f"{tmp_path}: ")
    assert "No space left on device" in remark
    assert f"`trainmark report {tmp_path} -o page.html`" in remark


def test_acceptance_whose_page_cannot_be_written_keeps_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    result = object()  # stands for the verdicts, which only the pages would read
    monkeypatch.setattr(acceptance_cluster, "measure_nodes", lambda *_, **__: result)
    monkeypatch.setattr(accepting, "build_acceptance_document", raise_disk_full)
    remarks: list[str] = []
    # Of the session that is to be measured, only the folder is read: nodes and pages are replaced.
    prepared: Any = SimpleNamespace(folder=tmp_path)
    measured = accepting.measure_acceptance(
        prepared, StopRequest(), show=lambda _: None, show_remark=remarks.append
    )
    assert measured is result
    (remark,) = remarks
    assert remark.startswith(f"{tmp_path}: ")
    assert f"`trainmark accept --out {tmp_path}`" in remark  # what writes the pages later


def test_error_without_a_text_is_reported_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_without_text(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(local, "launch", lambda *_: TOY)  # a launch that has this record
    monkeypatch.setattr(running, "write_pages", raise_without_text)
    plan = TOY.plan.model_copy(update={"run_dir": str(tmp_path)})
    # ``Cluster()``: no options of a cluster; ``show_remark`` gets what the user is told.
    remarks: list[object] = []
    running.launch_once(
        plan, Cluster(), "toy", StopRequest(), quiet=True, show_remark=remarks.append
    )
    assert [str(remark).partition(";")[0] for remark in remarks] == ["MemoryError"]


def test_missing_vl_convert_is_one_error_after_the_markdown_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It draws the charts of page.html. The pages in Markdown, which have none, are written first.
    # ``TOY`` is a record, of which the pages are.
    monkeypatch.setitem(sys.modules, "vl_convert", None)  # its import fails
    with pytest.raises(EnvironmentFault, match="vl_convert is not installed"):
        write_pages([TOY], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"page.en.md", "page.zh.md"}


def test_page_larger_than_a_file_may_be_is_not_truncated(tmp_path: Path) -> None:
    # The pages of ``TOY``, a record, in Markdown and in HTML, which is much larger.
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**15, limit[1]))  # above the pages in Markdown
    try:
        with pytest.raises(OSError, match="File too large"):
            write_pages([TOY], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    # There is no part of page.html.
    assert {path.name for path in tmp_path.iterdir()} == {"page.en.md", "page.zh.md"}


def test_the_typed_fields_of_run_are_those_of_a_request() -> None:
    fields = RunRequest.model_fields.keys() - {"case", "overrides"}
    assert RunFields.__annotations__.keys() == fields


def test_launches_after_a_timeout_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of 4 launches of a run, the first one takes longer than it may. ``TOY`` is a record, which
    # each launch gets here; ``Cluster()``: no options of a cluster.
    late = TOY.model_copy(update={"status": "timed_out"})
    monkeypatch.setattr(running, "launch_once", lambda *_, **__: late)
    plan = TOY.plan.model_copy(update={"run_dir": str(tmp_path / "run"), "repeat_count": 4})
    messages: list[object] = []
    records = running.launch_run(
        plan, Cluster(), StopRequest(), quiet=True, show_remark=messages.append
    )
    assert (records, records.places) == ([late], [tmp_path / "run" / "r1"])
    assert str(messages[0]) == "the remaining launches (3) are skipped: they would also time out"


def test_records_are_shown_as_a_table_in_a_terminal_and_in_a_notebook() -> None:
    # ``TOY`` is a record.
    head, rule, row = repr(api.Records([TOY])).splitlines()  # ``rule``: the line below the head
    assert "run" in head
    assert TOY.run_id in row
    # The rule is as wide as the table, not as the width for which the table is laid out.
    assert len(rule) == max(len(head), len(row))
    assert "<table>" in api.Records([TOY, TOY])._repr_html_()


def test_a_notebook_shows_a_record_as_the_first_screen_of_its_page() -> None:
    # ``TOY`` is a record of the toy case on one rank of a CPU that is called "Fake CPU".
    html = TOY._repr_html_()  # type: ignore[attr-defined]
    assert "<h3>Toy classification, 610 parameters · Fake CPU, 1 rank · fp32</h3>" in html
    assert "Training speed" in html
    assert "<svg " in html
    assert "var(--" not in html  # a notebook has no style sheet of ours
    assert "<style" not in html
    assert api.Records([TOY])._repr_html_() == html  # a list of one record is shown alike
