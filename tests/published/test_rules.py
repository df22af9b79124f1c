"""Every rule finds its planted errors, and nothing in correct rows that differ in one value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.fakes import GOLDEN
from trainmark.published.audit import RULES, audit, subject, views
from trainmark.record.record import Record
from trainmark.record.work import Row
from trainmark.toml_file import read_toml

PLANTED = Path(__file__).parent / "planted"
# A file has [[plant]]: rows or records that are sound, and the `change` that breaks the rule. A
# record is given by what differs from a golden one, by its path.
PLANTS = {
    f"{path.stem}-{number}": (path.stem, plant)
    for path in sorted(PLANTED.glob("*.toml"))
    for number, plant in enumerate(read_toml(path)["plant"])
}


def set_value(document: Any, path: str, value: Any) -> None:
    """Set the value at a dotted path in nested dictionaries and lists.

    A part of the path that is a number is a place in a list.
    """
    *parts, last = path.split(".")
    for part in parts:
        document = document[int(part) if isinstance(document, list) else part]
    document[int(last) if isinstance(document, list) else last] = value


def make_reading(value: Any) -> dict[str, Any]:
    """Return the reading of a figure that is given as a number or as its printed text.

    Of a text such as "13.9/40.0" or "21.5%", the first number is the value.
    """
    number = float(value.split("/")[0].rstrip("%")) if isinstance(value, str) else value
    return {"value": number, "unit": "", "raw": str(value)}


def make_row(fields: dict[str, Any], number: int) -> Row:
    """Return a row from its fields in a file of planted errors; ``number`` gives its line."""
    # The table begins in line 9 and its first row (``number`` 0) is in line 10.
    common = {"file": "page.md", "line": 10 + number, "table": 9, "form": "flagperf", "raw": ""}
    figures = {name: make_reading(value) for name, value in fields.pop("figures").items()}
    return Row(**common | {"configuration": f"row {number}"} | fields, figures=figures)


def make_record(fields: dict[str, Any]) -> Record:
    """Return a golden record with the values of ``fields`` at their dotted paths.

    Args:
        fields: the key ``golden`` is the file to change instead; it is taken out of the mapping.
    """
    golden = GOLDEN / fields.pop("golden", "record_toy.json")
    document = json.loads(golden.read_text(encoding="utf-8"))
    for path, value in fields.items():
        set_value(document, path, value)
    return Record.model_validate(document)


def make_subjects(plant: dict[str, Any], *, changed: bool) -> list[subject.AuditSubject]:
    """Return the rows and records of a plant as the audit sees them.

    Args:
        plant: correct rows or records, and a ``change`` that makes one of them wrong.
        changed: whether the change is applied.
    """
    # A copy, as the functions below take parts out.
    planted = json.loads(json.dumps({name: plant.get(name, []) for name in ("rows", "records")}))
    changes = plant["change"] if changed else {}
    for path, value in changes.items():
        if path.startswith("records."):  # their keys are paths themselves
            _, number, key = path.split(".", 2)
            planted["records"][int(number)][key] = value
        else:
            set_value(planted, path, value)
    records = [make_record(entry) for entry in planted["records"]]
    subjects = [views.view_record(entry, f"runs/{number}") for number, entry in enumerate(records)]
    return subjects + [
        views.view_row(make_row(entry, number)) for number, entry in enumerate(planted["rows"])
    ]


def test_every_rule_has_a_planted_error() -> None:
    # ``PLANTS`` has by name a rule of the audit and rows or records of which one breaks it;
    # ``RULES`` are all rules.
    assert {rule for rule, _ in PLANTS.values()} == set(RULES)


@pytest.mark.parametrize("name", PLANTS)
def test_planted_error_is_found(name: str) -> None:
    # A plant is correct rows or records, and a change to them that breaks the rule.
    rule, plant = PLANTS[name]
    findings = [
        finding for finding in audit(make_subjects(plant, changed=True)) if finding.rule == rule
    ]
    assert [(finding.message.code, finding.severity) for finding in findings] == [
        (plant["code"], plant.get("severity", RULES[rule].severity))
    ]
    (finding,) = findings
    if "line" in plant:
        assert finding.subject.line == plant["line"]
    # ``arithmetic``: the values with which the message shows how it was computed.
    for argument, value in plant["arithmetic"].items():
        printed_value = finding.message.args[argument]
        expected = value if isinstance(value, str) else pytest.approx(value)
        assert printed_value == expected, argument


@pytest.mark.parametrize("name", PLANTS)
def test_correct_value_beside_the_planted_error_has_no_finding(name: str) -> None:
    # A plant is correct rows or records, and a change to them that breaks a rule, which is not made
    # here.
    assert audit(make_subjects(PLANTS[name][1], changed=False)) == []
