"""The records of the launches of one or several runs, as a list with tables and pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.pages.page import build_documents
from trainmark.pages.pictures import to_notebook_html
from trainmark.pages.rendering import render_template, to_html, to_markdown
from trainmark.pages.repeats import build_summary
from trainmark.pages.results import build_launch_table
from trainmark.pages.terminal import show
from trainmark.record.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from trainmark.pages.repeats import RepeatSummary


class Records(list[Record]):
    """A list of records, one for each launch.

    Args:
        records: the records.
        places: the run directory or file of each record.
    """

    def __init__(self, records: Iterable[Record] = (), places: Iterable[Path | str] = ()) -> None:
        super().__init__(records)
        self.places = [Path(place) for place in places]

    def __repr__(self) -> str:
        return show([build_launch_table(self)], width=10_000)  # so wide that no row folds

    def _repr_html_(self) -> str:
        """Return the page of a single record, or a table of several; notebooks call this."""
        if len(self) == 1:
            return _render_record(self[0])
        return render_template(
            "table.html.j2", "en", table=build_launch_table(self), heading="launches"
        )

    def summary(self) -> RepeatSummary:
        """Return mean, 95% interval and CV of every figure over launches of the same work.

        Raises:
            RecordError: no record, or work that differs.
        """
        return build_summary(self)

    def page(self, lang: Literal["en", "zh"] = "en", *, html: bool = False) -> str:
        """Return the result page as text, in Markdown or HTML.

        Args:
            lang: the language of the Markdown. HTML has both languages; it shows this one first.
            html: whether to return HTML instead of Markdown.
        """
        documents = build_documents(self)
        return to_html(documents, lang) if html else to_markdown(documents, lang)


def _render_record(record: Record) -> str:
    """Return the HTML that a notebook shows for a record: the first screen of its page."""
    return to_notebook_html(build_documents([record])[0])


# Notebooks call this method. It is set here because ``record`` must not import ``pages``.
Record._repr_html_ = _render_record  # type: ignore[attr-defined]
