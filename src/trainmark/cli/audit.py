"""``trainmark audit``: find errors and doubts in results; check the rules of a division."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmark.cli.options import Json, Lang
from trainmark.cli.output import (
    choose_exit_code,
    fail_if_damaged,
    format_count,
    print_faults,
    print_json,
    print_lines,
    print_text,
)
from trainmark.errors import EXIT_FAILED, EXIT_PASSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.work import Row
    from trainmark.results.selection import Selection


EXAMPLES = """\
  trainmark audit                           check the newest run under ./runs
  trainmark audit runs/A runs/B --json
  trainmark audit runs/RUN --rules          check the run against the rules of its division
  trainmark list audit-rules                print what is checked
"""

_AUDITED = "Runs, records or folders; pages, tables or logs of other projects."

_SKIPPED_RULES = "rules about data and FLOPs do not apply"

_MAX_SHOWN_MODELS = 5  # names of unknown models


def audit(
    results: Annotated[list[str] | None, typer.Argument(help=_AUDITED)] = None,
    rules: Annotated[
        bool,
        typer.Option(
            "--rules", help="Check the runs against the rules of the division that they claim."
        ),
    ] = False,
    lang: Lang = "en",
    as_json: Json = False,
) -> None:
    """Find errors and suspicious values in results.

    The exit code is 1 if there is an error, a broken rule or a record that cannot be read. The exit
    code is 2 if no result can be read.
    """
    from trainmark.api import audit_selection
    from trainmark.results.selection import select_results

    # Only runs claim a division, so that published rows are refused with --rules.
    selection = select_results(results or [], rows=not rules)
    if rules:
        raise typer.Exit(_check_division_rules(selection, lang, as_json=as_json))
    findings = audit_selection(selection)
    num_results = len(selection.records) + len(selection.rows)
    documents = [finding.as_dict(lang) for finding in findings]
    if as_json:
        print_json({"findings": documents, "audited": num_results})
    else:
        for document in documents:
            _print_finding(document)
    summary = (
        f"{format_count(num_results, 'result')} audited, {format_count(len(findings), 'finding')}"
    )
    if selection.unread:
        summary += f"; {format_count(len(selection.unread), 'item')} skipped"
    print_text(summary, err=True)
    _print_uncheckable_logs(selection.rows, lang)
    _print_unknown_models(selection.rows)
    fail_if_damaged(selection)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _print_finding(document: dict[str, Any]) -> None:
    """Print the place of a finding, and below it its message.

    Args:
        document: as ``Finding.as_dict`` returns it. ``configuration`` is the label of the row that
            the finding is about, or the key of the launch's case.
    """
    place = document["file"]
    if document["line"]:  # 0: the finding is about a record, which has no lines
        place += f":{document['line']}"
    print_lines([f"{document['severity']} {document['rule']} {place} {document['configuration']}"])
    print_lines([document["message"]], before="  ")


def _check_division_rules(selection: Selection, lang: str, *, as_json: bool) -> int:
    """Print how results comply with the rules of their division; return the exit code.

    Records that cannot be read are printed too, and make the exit code 1.
    """
    from trainmark.judge.compliance import check_rules
    from trainmark.pages.judgements import (
        describe_compliance,
        list_compliance_rules,
        to_compliance_document,
    )
    from trainmark.record.work import group_by_work

    print_faults(selection.skipped)
    compliances = [check_rules(group) for group in group_by_work(selection.records)]
    if as_json:
        print_json([to_compliance_document(compliance, lang) for compliance in compliances])
    else:
        for compliance in compliances:
            print_lines([describe_compliance(compliance, lang)])
            # A mark says whether the rule is obeyed, the sentence what it demands.
            for mark, sentence in list_compliance_rules(compliance, lang):
                print_lines([sentence], before=f"  {mark} ")
    all_comply = all(compliance.compliant for compliance in compliances)
    return choose_exit_code(EXIT_PASSED if all_comply else EXIT_FAILED, [selection])


def _print_uncheckable_logs(rows: Sequence[Row], lang: str) -> None:
    """Print to standard error which rows are of logs that lack what a check needs."""
    from trainmark.record.messages import render

    for row in rows:
        for note in row.notes:
            if note.code == "log_not_checkable":
                print_text(f"{row.file}:{row.line} {render(note, lang)}", err=True)


def _print_unknown_models(rows: Sequence[Row]) -> None:
    """Print the models to which the rules about data and FLOPs cannot be applied."""
    from trainmark.published.audit.workloads import count_unknown_models

    unknown_models = count_unknown_models(rows)
    rows_by_name = unknown_models.counts
    if unknown_models.num_unnamed:
        print_text(
            f"{format_count(unknown_models.num_unnamed, 'row')} without a model name: "
            f"{_SKIPPED_RULES}; add a column `model`",
            err=True,
        )
    if rows_by_name:
        names = ", ".join(list(rows_by_name)[:_MAX_SHOWN_MODELS])
        if len(rows_by_name) > _MAX_SHOWN_MODELS:
            names += f" and {len(rows_by_name) - _MAX_SHOWN_MODELS} more"
        print_text(
            f"{format_count(sum(rows_by_name.values()), 'row')} with unknown models "
            f"({names}): {_SKIPPED_RULES}; include the size in the name (`qwen3_8b`), or add a "
            "column `parameters`",
            err=True,
        )
