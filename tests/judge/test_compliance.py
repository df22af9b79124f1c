"""Launches are checked against the rules of their case: each rule is broken alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.comparison_records import replace_plan_fields
from support.fakes import GOLDEN
from trainmark import __version__, cases
from trainmark.errors import RecordError, UsageError
from trainmark.judge.compliance import check_rules
from trainmark.plan import reference
from trainmark.plan.rules import RULES_FILE, read_rules
from trainmark.record.messages import render
from trainmark.record.record import Record
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOY = Record.model_validate_json((GOLDEN / "record_toy.json").read_text(encoding="utf-8"))


def make_launch_with_plan(*, recipe: dict[str, Any] | None = None, **changes: Any) -> Record:
    """Return a launch of toy that follows all rules, with changed plan fields.

    Args:
        recipe: other values of the recipe's fields.
        changes: other values of the plan's fields.
    """
    updates = {
        "suite_version": __version__,  # rules are those of the installed version
        "recipe": TOY.plan.recipe | (recipe or {}),
        **changes,
    }
    return replace_plan_fields(TOY, **updates)


def change_launch(**updates: Any) -> Record:
    """Return a launch of toy that follows all rules, with changed fields of its record."""
    return make_launch_with_plan().model_copy(update=updates)


OPEN = {"rules": "open", "extra": {"weight_decay": 0.1}}


def list_broken_rules(launches: list[Record]) -> set[str]:
    """Return the names of the broken rules."""
    return {result.rule for result in check_rules(launches).rules if not result.kept}


@pytest.mark.parametrize("changes", [{}, OPEN])
def test_five_sound_launches_comply(changes: dict[str, Any]) -> None:
    """``OPEN`` are fields of a plan that claims the open division; without them it is closed."""
    compliance = check_rules([make_launch_with_plan(**changes)] * 5)
    assert (compliance.division, compliance.compliant) == (changes.get("rules", "closed"), True)


@pytest.mark.parametrize(
    ("rule", "launch", "in_open"),
    [
        ("passed", change_launch(status="diverged"), True),
        ("same_work", make_launch_with_plan(recipe={"kernels": "own"}), True),
        ("seeds", make_launch_with_plan(recipe={"seed": 2}), False),
        ("target", change_launch(quality=TOY.quality.model_copy(update={"reached": False})), False),
        (
            "doubts",
            change_launch(
                trust=TOY.trust.model_copy(
                    update={"reasons": [message("evidence_altered", file="plan.json")]}
                )
            ),
            True,
        ),
        (
            "doubts",
            change_launch(
                trust=TOY.trust.model_copy(update={"reasons": [message("trust_simulated_device")]})
            ),
            True,
        ),
    ],
)
def test_one_launch_of_five_that_breaks_a_rule_is_found(
    rule: str, launch: Record, *, in_open: bool
) -> None:
    """Four launches follow all rules; the fifth is ``launch``, which breaks ``rule`` alone.

    ``TOY`` is the golden record of the case toy, from which all launches are made. ``OPEN`` are
    fields of a plan that claims the open division.
    """
    assert list_broken_rules([*[make_launch_with_plan()] * 4, launch]) == {rule}
    # ``in_open``: whether the open division has the rule too.
    open_launch = replace_plan_fields(launch, **OPEN)
    assert list_broken_rules([*[make_launch_with_plan(**OPEN)] * 4, open_launch]) == (
        {rule} if in_open else set()
    )


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("data", {"data": TOY.plan.data.model_copy(update={"train_samples": 4095})}),
        ("scope", {"recipe": {"max_epochs": 20}}),
        ("changes", {"extra": {"weight_decay": 0.1}}),
    ],
)
def test_all_launches_of_other_work_break_the_closed_rules(
    rule: str, changes: dict[str, Any]
) -> None:
    """``changes``: of the plan of ``TOY``, the golden record of toy, whose data has 4,096 samples.

    ``scope`` compares recipe fields that set how much is trained, such as ``max_epochs``, with the
    standard recipe (10 epochs). ``changes`` wants that ``extra`` is empty, where a plan lists
    changed fields that the closed division does not allow. Each row changes only one of both.

    ``OPEN`` are fields of a plan that claims the open division.
    """
    # Five launches, as many as the rules want.
    assert list_broken_rules([make_launch_with_plan(**changes)] * 5) == {rule}
    # Launches that claim the open division break none.
    assert list_broken_rules([make_launch_with_plan(**changes | OPEN)] * 5) == set()


def test_rounding_does_not_hide_that_a_target_was_missed() -> None:
    """The target of toy is 0.9; four launches reached it, and 0.89997 is not written as 0.9.

    ``TOY`` is the golden record of the case toy.
    """
    quality = TOY.quality
    missed = quality.model_copy(update={"value": 0.89997, "target": 0.9, "reached": False})
    reached = quality.model_copy(update={"value": 0.9375, "target": 0.9, "reached": True})
    launches = [*[change_launch(quality=reached)] * 4, change_launch(quality=missed)]
    (result,) = [result for result in check_rules(launches).rules if result.rule == "target"]
    values = result.sentence.args["values"]
    assert (result.kept, values) == (False, "0.9375, 0.9375, 0.9375, 0.9375, 0.89997")


def test_four_launches_are_too_few_and_no_launch_is_error() -> None:
    """The rules want five launches; each of these follows all other rules."""
    assert list_broken_rules([make_launch_with_plan()] * 4) == {"launches"}
    with pytest.raises(RecordError):
        check_rules([])


@pytest.mark.parametrize("name", cases.list_names())
def test_shipped_cases_have_rules_that_fit_published_rules(name: str) -> None:
    """A case has its rules in a file, ``RULES_FILE``, and facts of other benchmarks' rules.

    ``samples_per_pass``: the training rows of a data set by the published rules; None: they do not
    say.
    """
    assert (cases.get_folder(name) / RULES_FILE).is_file()
    rules, published = read_rules(cases.load(name)), reference.read_references(name)
    if published.samples_per_pass is not None:
        assert rules.closed.data["train_samples"] == [published.samples_per_pass]


GENERAL = read_rules(case=None)


@pytest.fixture
def make_outside_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str | None], str]:
    """Return a function that makes a case outside the package and returns its name."""

    def make(text: str | None) -> str:
        """Write the case with this text as its ``rules.toml``; None: without the file."""
        name = f"ruled_{tmp_path.name}"  # modules of a case are imported once
        folder = tmp_path / name
        folder.mkdir()
        (folder / "case.py").write_text(
            "from dataclasses import replace\n"
            "from trainmark.cases.toy.case import CASE as TOY\n"
            f'CASE = replace(TOY, name="{name}")\n'
        )
        if text is not None:
            (folder / "rules.toml").write_text(text)
        monkeypatch.setenv("TRAINMARK_CASE_PATH", str(tmp_path))
        return name

    return make


@pytest.mark.parametrize(("text", "launches"), [(None, 5), ("[closed]\nlaunches = 10\n", 10)])
def test_file_of_case_overrides_general_rules(
    make_outside_case: Any, text: str | None, launches: int
) -> None:
    """``GENERAL``: the rules of every case without a file of its own; they want five launches."""
    rules = read_rules(cases.load(make_outside_case(text)))
    assert rules.closed == GENERAL.closed.model_copy(update={"launches": launches})
    # A file without rules of the open division leaves them as they are.
    assert rules.open == GENERAL.open
    assert GENERAL.open.target == "any"  # there are such rules


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [("[closed", "cannot be read"), ("[closed]\nlaunches = 0", "closed.launches")],
)
def test_malformed_file_is_named(make_outside_case: Any, text: str, expected_text: str) -> None:
    """A file of rules that is no TOML, and one that wants no launches at all.

    ``make_outside_case`` makes a case with this text as its ``rules.toml``, and returns its name.
    """
    name = make_outside_case(text)
    with pytest.raises(UsageError, match=expected_text) as fault:
        read_rules(cases.load(name))
    assert fault.value.where == f"{name}/rules.toml"


def test_exit_code_is_1_if_a_rule_of_the_claimed_division_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    # ``cli`` runs a command and returns its exit code, output and errors. Each of the five launches
    # follows all rules of the closed division, which want five of them.
    folder = tmp_path / "result"
    for number in range(1, 6):
        run_dir = folder / f"r{number}"
        run_dir.mkdir(parents=True)
        (run_dir / "record.json").write_text(
            make_launch_with_plan().model_dump_json(), encoding="utf-8"
        )
    # The folders have records alone: without plan and events, no record is verified.
    code, out, _ = cli("audit", "--rules", folder)
    (fault,) = [line for line in out.splitlines() if "FAULT" in line]
    assert code == 1
    assert render(message("evidence_absent"), "en") in fault  # not its code
    # With their evidence taken for granted, the five launches comply.
    monkeypatch.setattr("trainmark.results.selection.check_record", lambda record, _: record)
    code, out, _ = cli("audit", "--rules", folder)
    assert code == 0
    assert "compliant with the rules of the closed division" in out
    # The mark of a rule that is kept is translated.
    assert "ok " in out
    assert "ok " not in cli("audit", "--rules", folder, "--lang", "zh")[1]
    # One of them alone is too few.
    code, out, _ = cli("audit", "--rules", folder / "r1")
    assert code == 1
    assert "at least 5 launches are required; actual number: 1" in out
    (document,) = json.loads(cli("audit", "--rules", folder / "r1", "--json")[1])
    assert (document["division"], document["compliant"]) == ("closed", False)
    assert [x["rule"] for x in document["rules"] if not x["kept"]] == ["launches"]
    assert cli("audit", "--rules", folder / "none")[0] == 2  # no such folder
