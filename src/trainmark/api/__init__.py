"""The functions of Trainmark for Python: run, load and compare results; commands call them too.

Errors are those of ``trainmark.errors``. A launch that started and failed has a record, which is
returned like any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.acceptance.request import AcceptRequest
from trainmark.api.accepting import measure_acceptance, prepare_acceptance
from trainmark.api.following import follow_runs, select_followers
from trainmark.api.records import Records
from trainmark.api.running import launch_run, plan_entries, plan_run, run_entries
from trainmark.api.selecting import select, warn
from trainmark.export import tables
from trainmark.extras import import_extra
from trainmark.judge.comparison import THRESHOLD
from trainmark.judge.comparison import compare as compare_results
from trainmark.judge.compliance import check_rules
from trainmark.launch.processes import note_stop_signals
from trainmark.plan.plan_file import is_plan_file
from trainmark.plan.request import RunRequest
from trainmark.published.audit import audit
from trainmark.published.audit.views import view_record, view_row
from trainmark.record.record import Record
from trainmark.results.bundle import pack, verify

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    import pandas as pd
    import pyarrow as pa
    from typing_extensions import Unpack

    from trainmark.acceptance.result import AcceptanceResult
    from trainmark.export.followers.following import Following
    from trainmark.judge.comparison import Comparison
    from trainmark.plan.request import RunFields
    from trainmark.published.audit import Finding
    from trainmark.results.selection import Selection

    Compared = Record | Sequence[Record] | Sequence[str | Path] | str | Path

__all__ = [
    "Records",
    "accept",
    "audit_results",
    "check_rules",
    "compare",
    "follow",
    "frame",
    "load",
    "pack",
    "run",
    "table",
    "verify",
]


def run(
    case: str,
    overrides: Mapping[str, str | float | bool | None] | None = None,
    *,
    quiet: bool = True,
    **fields: Unpack[RunFields],
) -> Records:
    """Run a case, or the missing launches of a plan file; return the record of each launch.

    The ranks are separate processes, so that a script needs no ``__main__`` guard. A stop signal
    (Ctrl-C) ends the ranks; after the record is written, the signal is delivered again, which
    raises KeyboardInterrupt for Ctrl-C.

    Args:
        case: a case's name, alias or key, or a plan file.
        overrides: recipe fields to change, such as ``{"bs": 96, "precision": "bf16"}``.
        quiet: show no progress on standard error.
        fields: further fields of ``plan.request.RunRequest``: recipe, data, nproc, repeat, out …

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
    """
    request = RunRequest.build(case=case, overrides=overrides or None, **fields)
    # The programs to which the run is handed. With a plan file, this is called only so that a wrong
    # word fails before planning: the programs are selected again for the launches of its entries.
    followers = select_followers(request.follow)
    if is_plan_file(case):
        _, planned_entries = plan_entries(request, show_remark=warn)
        entries = run_entries(planned_entries, quiet=quiet, show_remark=warn, deliver=True)
        results = Records()
        for entry in entries:
            # "skipped": this machine cannot run it. "left": a stop signal came before its last
            # launch. ``contradiction``: which of its records do not match their events.
            if entry.state in ("skipped", "left") or entry.contradiction:
                warn(f"{entry.name}: {entry.contradiction or entry.reason}")
            results.extend(entry.records)
            results.places.extend(entry.folders)
        return results
    plan, settings = plan_run(request, show_remark=warn)
    with note_stop_signals(deliver=True) as stop:
        return launch_run(plan, settings, stop, quiet=quiet, show_remark=warn, follow=followers)


def follow(*runs: str | Path, to: str | Sequence[str]) -> list[Following]:
    """Hand runs to other programs until they have ended; return how much each program received.

    Args:
        runs: folders of runs, or folders of several runs; they may be under way or have ended.
        to: such as ``tensorboard`` or ``["wandb", "mlflow=http://host:5000"]``.

    Raises:
        UsageError, EnvironmentFault: an unknown backend, or one that is not installed.
        RecordError: a folder that has no run.
    """
    targets = select_followers([to] if isinstance(to, str) else to, where="to")
    return list(follow_runs(runs, targets))


def accept(
    case: str | None = None,
    overrides: Mapping[str, str | float | bool | None] | None = None,
    **fields: Any,
) -> AcceptanceResult:
    """Find the devices of this machine that should be excluded; with a launcher, the nodes.

    A stop signal (Ctrl-C) ends the measurement; after the result is written, it is delivered again.

    Args:
        case: the case to train; None: the default case.
        overrides: recipe fields to change.
        fields: further fields of ``acceptance.request.AcceptRequest``: nproc, phases, rounds, out …

    Returns:
        The verdict on each device or node.

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
    """
    request = AcceptRequest.build(case=case, overrides=overrides or None, **fields)
    with prepare_acceptance(request) as prepared, note_stop_signals(deliver=True) as stop:
        return measure_acceptance(prepared, stop, show=lambda _: None, show_remark=warn)


def load(*words: str | Path, verify: bool = True) -> Records:
    """Return the records that ``words`` name; without words, of the newest run under ``./runs``.

    Args:
        words: run directories, ``record.json`` files, folders of runs, bundles.
        verify: whether to compare records with their events; ``record.trust`` has the result.

    Raises:
        RecordError: a word names nothing that can be read.
    """
    # No rows: published figures, which have no record.
    selection = select(words, verify=verify, rows=False)
    for path in selection.refuted:
        warn(f"{path}: the record does not match its raw events")
    return Records(selection.records, selection.places)


def compare(
    a: Compared,
    b: Compared,
    *,
    figures: Sequence[str] | None = None,
    threshold: float = THRESHOLD,
    allow: Collection[str] = (),
) -> Comparison:
    """Compare the launches ``b`` with the launches ``a``, figure by figure.

    Args:
        a: the reference: one or several records, or words as ``load`` takes them, such as run
            directories.
        b: what is compared with it, in the same form.
        figures: names of figures in a record; None: the throughputs that both sides have.
        threshold: a fraction. A figure counts as different if the whole 95% interval of its ratio
            b / a is more than this away from 1.
        allow: keys of the work in which the sides may differ, such as ``bs``.

    Raises:
        UsageError: the work differs, with the key and both values; or an unknown figure.
        RecordError: a word names nothing that can be read.
    """
    if isinstance(figures, str):  # a single name
        figures = [figures]
    if isinstance(allow, str):
        allow = [allow]
    return compare_results(
        _load_side(a), _load_side(b), figures=figures, threshold=threshold, allow=allow
    )


def _load_side(side: Compared) -> list[Record]:
    """Return the records of one side of a comparison."""
    items = [side] if isinstance(side, Record | str | Path) else side
    records: list[Record] = []
    for item in items:
        if isinstance(item, Record):
            records.append(item)
        else:
            # ``rows=False``: published figures, which have no record, are refused.
            records += select([item], rows=False).records
    return records


def audit_results(*words: str | Path) -> list[Finding]:
    """Return the findings of the audit in records and published figures, errors first.

    Args:
        words: as for ``load``; also files and folders of published figures, and ``reference:CASE``,
            the published figures that are shipped with a case.

    Raises:
        RecordError: a word names nothing that can be read.
    """
    return audit_selection(select(words))


def audit_selection(selection: Selection) -> list[Finding]:
    """Return the findings of the audit in selected records and rows, errors first."""
    records = zip(selection.records, selection.places, strict=True)
    subjects = [view_record(record, place) for record, place in records]
    subjects += [view_row(row) for row in selection.rows]
    return audit(subjects)


def table(records: Sequence[Record], *, steps: bool = False) -> pa.Table:
    """Return a table with a row for each record, or for each step.

    Rows of records have the columns of the CSV export. A row of a step has ``run_id``, ``step``
    from 0, ``measured`` (after the warm-up), ``time_s`` of the slowest rank, ``loss`` as the mean
    over the samples of all ranks, and ``samples`` over all ranks.
    """
    columns, rows = (
        tables.build_steps_table(records) if steps else tables.build_record_table(records)
    )
    return tables.convert_to_arrow(columns, rows)


def frame(records: Sequence[Record], *, steps: bool = False) -> pd.DataFrame:
    """Return a pandas data frame with a row for each record, or for each step.

    The columns are those of ``table``, the same function for Arrow.

    Args:
        steps: whether each row is a step instead of a record.

    Raises:
        EnvironmentFault: pandas is not installed.
    """
    import_extra("pandas", where="trainmark.frame")  # called for its error if it is missing
    return table(records, steps=steps).to_pandas()
