"""``trainmark schema``: the JSON Schema of ``record.json``."""

from __future__ import annotations

import typer

NAME = "schema"
EXAMPLES = """\
  trainmark schema > record.schema.json
"""


def command() -> None:
    """Print the JSON Schema of record.json."""
    from trainmark.results.record import dumps_schema

    typer.echo(dumps_schema(), nl=False)
