"""``trainmark report``: pages and tables out of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainmark.cli.output import say, write_text
from trainmark.cli.show import Reader, find_runs, newest_run

NAME = "report"
EXAMPLES = """\
  trainmark report                                      the newest run, Markdown
  trainmark report runs/RUN --lang zh
  trainmark report runs/A runs/B --format html -o page.html
  trainmark report runs/* --format csv -o results.csv
  trainmark report runs/RUN --format index              one JSON line for speed, one for memory
  trainmark report runs/PLAN --scaling -o scaling.html  1x1 -> 1xN -> MxN of the same work
"""


def command(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run directories or records.")] = None,
    form: Annotated[
        Literal["md", "html", "json", "csv", "index"] | None,
        typer.Option("--format", help="Form of the output; default: by -o's ending, else md."),
    ] = None,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of a page.")] = "en",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; default, and for -: stdout."),
    ] = None,
    scaling: Annotated[bool, typer.Option("--scaling", help="Compare world sizes.")] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not hold records against their evidence.")
    ] = False,
) -> None:
    """Print the result page of one or several runs, or their figures as data."""
    from trainmark.report.export import to_csv, to_index, to_json
    from trainmark.report.page import html_page, markdown_page
    from trainmark.report.scaling import scaling_text

    ending = output.suffix[1:] if output else ""
    wanted = form or (ending if ending in ("html", "json", "csv") else "md")
    launches = [found for run in runs or [newest_run()] for found in find_runs(run)]
    reader = Reader(verify=not no_verify)
    records = [reader.read(path) for found in launches for path in found]
    page = {"md": markdown_page, "html": html_page}.get(wanted)
    data = {"json": to_json, "index": to_index, "csv": to_csv}
    if scaling:
        text = scaling_text(records, wanted, lang)
    else:
        text = page(records, lang) if page else data[wanted](records)
    if output is None or str(output) == "-":
        say(text, newline=False)
    else:
        write_text(output, text)
        say(str(output), err=True)
    reader.end()
