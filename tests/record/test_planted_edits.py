"""Records held against themselves, with edits that were written before the checks."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from fakes import GOLDEN
from planted_records import EDITS, Edit, apply
from trainmark.record.record import Record
from trainmark.record.verify import check_itself


@pytest.mark.parametrize("name", sorted({edit.record for edit in EDITS}))
def test_an_honest_record_agrees_with_itself(name: str) -> None:
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert check_itself(Record.model_validate_json(text)) == []


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.record}-{edit.path}")
def test_an_edited_record_is_found(edit: Edit) -> None:
    document = json.loads((GOLDEN / f"{edit.record}.json").read_text(encoding="utf-8"))
    try:
        record = Record.model_validate_json(json.dumps(apply(document, edit)))
    except ValidationError:
        return  # refused when it is loaded
    assert check_itself(record)


@pytest.mark.parametrize(
    ("path", "value"),
    [("quality.best_possible", -1), ("spans.rank", 99), ("spans.by_name_ns", {})],
)
def test_a_record_whose_values_cannot_be_computed_is_found(path: str, value: object) -> None:
    document = json.loads((GOLDEN / "record_toy.json").read_text(encoding="utf-8"))
    edited = apply(document, Edit("record_toy", path, lambda _: value))
    assert check_itself(Record.model_validate_json(json.dumps(edited)))
