"""``trainmark schema``: the JSON Schema of ``record.json``."""

from __future__ import annotations

from trainmark.cli.output import say

NAME = "schema"
EXAMPLES = """\
  trainmark schema > record.schema.json
"""


def command() -> None:
    """Print the JSON Schema of record.json."""
    from trainmark.record.record import dumps_schema

    say(dumps_schema(), newline=False)
