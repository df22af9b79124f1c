"""The rows that others published of a case, as a table, with their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages.document import (
    Facts,
    Paragraph,
    Section,
    Table,
    build_folded_section,
    build_table,
)
from trainmark.pages.texts import Phrase, count_in_words, describe_configuration, or_unknown, phrase

if TYPE_CHECKING:
    from trainmark.plan.reference import Reference, References
    from trainmark.record.record import Record


def build_reference_table(references: References) -> Table:
    """Return published rows: in Chinese as they were printed, in English translated.

    Args:
        references: the rows that others published of a case, with the headers of their columns.
    """
    headings = [phrase("head.configuration"), *references.columns]
    return build_table(headings, [_translate_published_row(row) for row in references.rows])


def _translate_published_row(row: Reference) -> list[Phrase]:
    """Return the cells of a published row, the configuration first.

    A cell shows the printed text in Chinese, and in English its translation: our name for the
    configuration and, for any other cell, the one in ``cells_en``. A cell that is not in
    ``cells_en`` is printed in English or is a number.
    """
    configuration = describe_configuration(row.device, nnodes=row.nnodes, nproc=row.nproc)
    # `reference.as_printed` is `printed` in Chinese and `ours` in English.
    translated_cells: list[Phrase] = [
        phrase("reference.as_printed", printed=row.configuration, ours=configuration)
    ]
    for name, cell in row.cells.items():
        english = row.cells_en.get(name, cell)
        translated_cells.append(phrase("reference.as_printed", printed=cell, ours=english))
    return translated_cells


def build_published_rows(record: Record) -> Section | None:
    """Return the published rows, a warning if a run does not compare with them, and their sources.

    None if the case has no published rows.
    """
    references = record.plan.about.references  # the published rows of the record's case
    if not references.rows:
        return None
    recipe = record.plan.recipe_name
    warning = None
    if record.plan.data.origin == "generated":  # published runs used the real data set
        warning = Paragraph(phrase("reference.other", recipe=recipe), "warn")
    elif not recipe.startswith(("standard", "published")):
        # Unlike published runs, other recipes such as `throughput-1x1` do not train to the target.
        warning = Paragraph(phrase("reference.unlike", recipe=recipe), "warn")
    return build_folded_section(
        "references",
        build_reference_table(references),
        warning,
        list_sources(references),
        gist=count_in_words("rows", len(references.rows)),
    )


def list_sources(references: References) -> Facts:
    """Return where published rows come from: facts of each source.

    The evidence level says how well the figures can be checked: from ``A``, measured with a record,
    to ``C``, published figures only, or ``unverified``, second-hand.
    """
    sources = {row.source.id: row.source for row in references.rows}  # each once
    items: list[tuple[Phrase, Phrase]] = []
    for source in sources.values():
        facts: dict[str, Phrase] = {
            "source": source.text,
            "url": source.url,
            "date": or_unknown(source.date),
            "evidence": phrase(f"evidence.{source.evidence}"),
            "remark": source.remark,
        }
        for name, value in facts.items():
            if value:  # a source may have no URL and no remark
                items.append((phrase(f"reference.{name}"), value))
    return Facts(tuple(items))
