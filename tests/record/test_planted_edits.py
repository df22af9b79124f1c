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
