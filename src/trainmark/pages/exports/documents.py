"""Records as JSON, whole, and the statistics over launches."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic_core import to_jsonable_python

from trainmark.pages.summary import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record


def to_json(records: Sequence[Record]) -> str:
    """Return the whole records as a JSON array, one record a line."""
    lines = ",\n".join(record.model_dump_json() for record in records)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def repeats_json(records: Sequence[Record]) -> str:
    """Return the statistics over launches of the same work as JSON; figures by name.

    Raises:
        RecordError: the launches are not of the same work.
    """
    found = summary(records)
    document = {
        "run_ids": [record.run_id for record in records],
        "passed": found.passed,
        "descriptive": found.descriptive,
        **asdict(found),
        "trust": to_jsonable_python(found.trust),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
