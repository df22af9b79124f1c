"""Documents inside a page: JSON that no reader of HTML takes for markup, and scripts."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup
from pydantic_core import to_json

from trainmark.errors import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record

# Of all records in a page together; beyond it, what is largest and least asked for is left out.
MOST_BYTES = 1_000_000
_LEFT_OUT_FIRST = ("steps", "telemetry", "ranks", "environment", "plan")
_AS_JSON = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def _inert(json: str) -> Markup:
    """Return JSON that means the same, without markup and without control characters."""
    return Markup(escaped(json.translate(_AS_JSON)))


def records_within(records: Sequence[Record]) -> tuple[list[Markup], list[str]]:
    """Return each record as JSON for a page, and the keys that are null there for their size."""
    most = MOST_BYTES // max(len(records), 1)
    found: list[Markup] = []
    left_out: dict[str, None] = {}
    for record in records:
        values = {name: to_json(value) for name, value in record}
        for name in _LEFT_OUT_FIRST:
            if sum(map(len, values.values())) <= most:
                break
            values[name], left_out[name] = b"null", None
        lines = ",\n".join(f'"{name}": {value.decode()}' for name, value in values.items())
        found.append(_inert("{\n" + lines + "\n}"))
    return found, [*left_out]


class Script(NamedTuple):
    """The content of a ``<script>`` element, and how the page's policy names it."""

    text: Markup
    hash: str


def script(source: str) -> Script:
    """Return a script of ours for a page, whose policy lets no other run.

    It must not hold the end tag: in a script there is no way to escape it.
    """
    assert "</script" not in source.lower()
    assert "<!--" not in source
    text = escaped(source)  # as all that is written
    digest = b64encode(sha256(text.encode()).digest()).decode()
    return Script(Markup(text), f"sha256-{digest}")  # a file of ours, checked above


def shipped(name: str) -> str:
    """Return the text of a file of the templates."""
    return files("trainmark.pages").joinpath("templates", name).read_text(encoding="utf-8")
