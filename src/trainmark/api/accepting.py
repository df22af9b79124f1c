"""Planning and measuring an acceptance: a test that finds the devices or nodes to exclude."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.acceptance import acceptance
from trainmark.acceptance import cluster as acceptance_cluster
from trainmark.acceptance.baseline import (
    compute_baselines_of_runs,
    read_baselines_of_acceptance,
)
from trainmark.acceptance.folder import refuse_unusable_folder
from trainmark.acceptance.node_session import Acceptance
from trainmark.api.pages import write_pages_safely
from trainmark.api.selecting import select
from trainmark.documents import write_atomically
from trainmark.errors import RecordError
from trainmark.launch.cluster import LOCAL
from trainmark.launch.run_dir import refuse_unwritable
from trainmark.pages.acceptance import build_acceptance_document
from trainmark.pages.page import HTML_PAGE
from trainmark.pages.rendering import to_html, to_markdown
from trainmark.pages.texts import LANGUAGES
from trainmark.record.record import is_acceptance_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from trainmark.acceptance.baseline import Baselines
    from trainmark.acceptance.request import AcceptRequest
    from trainmark.acceptance.result import AcceptanceResult
    from trainmark.acceptance.session import OpenedSession
    from trainmark.launch.processes import StopRequest
    from trainmark.plan.plan import Plan


def plan_acceptance(request: AcceptRequest) -> Acceptance | OpenedSession:
    """Check the options and return what an acceptance would measure; start nothing.

    An acceptance is a test that finds the devices or nodes to exclude. Nothing is written but
    generated data that is missing, which the checks need.

    Returns:
        Without a launcher, an ``Acceptance`` of the devices of this machine. With one, an
        ``OpenedSession``: a description of one job on the launcher's nodes, which is not started.

    Raises:
        UsageError, DataError, EnvironmentFault, RecordError: the options do not fit.
    """
    planned: Acceptance | OpenedSession
    # ``plans``: of the trainings that would be timed; baselines must be of the same work.
    if request.launcher in (None, LOCAL):
        planned, plans = acceptance.plan_acceptance(request, dry_run=True)
    else:
        planned, plans = acceptance_cluster.plan_session(request, dry_run=True)
    refuse_unusable_folder(planned.folder, request)
    # The job of a launcher may be shown on a machine that does not have the folder of the nodes.
    if isinstance(planned, Acceptance):
        refuse_unwritable(planned.folder)
    if request.baseline is not None:
        _read_baselines(request.baseline, plans)  # raises what a measurement would raise
    return planned


def prepare_acceptance(
    request: AcceptRequest, *, attach: Path | None = None
) -> AbstractContextManager[Acceptance | OpenedSession]:
    """Check everything for an acceptance, and make or open its folder.

    An acceptance is a test that finds the devices or nodes to exclude. The folder of one that was
    not finished is opened, so that it continues. Entering the context checks; its value is what
    ``measure_acceptance`` takes: an ``Acceptance`` of this machine's devices, or an
    ``OpenedSession`` of a launcher's nodes. The folder is locked until the end of the context.

    Args:
        attach: folder of an acceptance whose job was submitted; the request is then ignored.

    Raises:
        UsageError, DataError, EnvironmentFault, RecordError: nothing is started.
    """
    if attach is not None:
        return acceptance_cluster.attach_session(attach)
    # Baselines must be of the same work as the plans, which are known only in the calls below.
    read_baselines = None
    if request.baseline is not None:
        read_baselines = partial(_read_baselines, request.baseline)
    if request.launcher in (None, LOCAL):
        return acceptance.prepare_acceptance(request, read_baselines=read_baselines)
    return acceptance_cluster.prepare_session(request, read_baselines=read_baselines)


def _read_baselines(word: str, plans: Sequence[Plan]) -> Baselines:
    """Return the times with which an acceptance compares its measurements.

    Args:
        word: folder of an earlier acceptance, or a word that names runs, such as a run directory.
        plans: of the trainings that the acceptance measures; the baseline must be of their work.

    Raises:
        UsageError: the baseline is of other work, or has no times.
        RecordError: ``word`` names nothing that can be read.
    """
    if is_acceptance_folder(Path(word)):
        return read_baselines_of_acceptance(Path(word), plans)
    try:
        # ``rows=False``: the word must name records; figures that others published are refused.
        selection = select((word,), verify=True, rows=False)
    except RecordError as error:
        raise RecordError(
            error.what,
            where=f"--baseline {word}",
            rule="a baseline must be the folder of an earlier acceptance test, or runs of the same "
            "work",
            fix=error.fix,
        ) from None
    return compute_baselines_of_runs(selection.records, plans, word)


def measure_acceptance(
    prepared: Acceptance | OpenedSession,
    stop: StopRequest,
    *,
    show: Callable[[str], None],
    show_remark: Callable[[str], None],
) -> AcceptanceResult:
    """Measure and judge the devices or nodes of an acceptance; write its pages, return verdicts.

    Args:
        prepared: of the devices of this machine, or (``OpenedSession``) of a launcher's nodes.
        stop: the measurement ends as soon as it holds a signal.
        show: called with each line about the progress.
        show_remark: called if a page cannot be written.
    """
    if isinstance(prepared, Acceptance):
        result = acceptance.measure(prepared, stop, show=show)
    else:
        result = acceptance_cluster.measure_nodes(prepared, stop, show=show)
    folder = prepared.folder
    write_pages_safely(
        folder,
        _write_acceptance_pages,
        result,
        folder,
        show_remark=show_remark,
        advice=f"`trainmark accept --out {folder}` writes the pages without measuring again",
    )
    return result


def _write_acceptance_pages(result: AcceptanceResult, folder: Path) -> None:
    """Write the pages of an acceptance into its folder."""
    pages = [build_acceptance_document(result)]
    texts = {f"page.{lang}.md": to_markdown(pages, lang) for lang in LANGUAGES}
    texts[HTML_PAGE] = to_html(pages)
    for name, text in texts.items():
        with write_atomically(folder / name) as file:
            file.write(text.encode())
