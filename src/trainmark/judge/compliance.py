"""Check the launches of a result against the rules of the division that they claim.

The closed division allows changes of few settings, so that results are comparable; the open one
allows any change. Owns how records are checked; ``plan.rules`` has the rules of each division.
Whether the evidence matches is part of the trust of the records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainmark import cases
from trainmark.errors import RecordError
from trainmark.plan.recipes import format_fix_hp
from trainmark.plan.rules import read_rules
from trainmark.recipe import list_fields_with_rule
from trainmark.record.compared import format_measured_quality
from trainmark.record.trust import grade_reasons
from trainmark.record.work import describe_work, find_differences
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.plan.rules import Division, DivisionName
    from trainmark.record.record import Record
    from trainmark.spec import Case

# Reasons of a grade that other rules check: ``passed`` the first one, ``data`` the second one.
_CHECKED_BY_OTHER_RULES = ("trust_not_passed", "trust_generated_data")


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule.

    Args:
        rule: its name.
        kept: whether the records keep (obey) it.
        sentence: the condition, and what the records have.
        doubts: reasons to doubt the launches, each code once. The ``found`` of the sentence are
            their codes; a page shows their sentences instead. Only of the rule ``doubts``.
    """

    rule: str
    kept: bool
    sentence: Message
    doubts: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Compliance:
    """Whether the launches of a result keep the rules of the division that they claim.

    Args:
        case: name of the case.
        run_ids: of the launches.
        division: the division that they claim.
        rules: the result of each rule.
    """

    case: str
    run_ids: list[str]
    division: DivisionName
    rules: list[RuleResult]

    @property
    def compliant(self) -> bool:
        """Tell whether all rules are kept."""
        return all(rule.kept for rule in self.rules)


def check_rules(records: Sequence[Record]) -> Compliance:
    """Check the launches of one result against the division that they claim.

    A division is a set of requirements. The closed one allows changes of few settings, so that
    results are comparable; the open one allows any change. Launches claim the open division if any
    of them does.

    Args:
        records: the launches of the result. They were compared with their evidence, the raw events,
            when they were read; their ``trust`` tells whether they match it.

    Raises:
        RecordError: there is no record.
        UsageError: the case's ``rules.toml`` is malformed.
    """
    if not records:
        raise RecordError("no record to check", fix="choose at least one run")
    name = records[0].plan.case
    case = cases.load(name) if name in cases.list_names() else None  # None: not installed here
    claimed: DivisionName = "open" if any(x.plan.rules == "open" for x in records) else "closed"
    rules = read_rules(case)
    division = rules.open if claimed == "open" else rules.closed
    results = list(_check_launches(records, division))
    if claimed == "closed":
        results += _check_closed(records, case)
    return Compliance(name, [record.run_id for record in records], claimed, results)


def judge_violations(rule: str, violations: Iterable[str], **args: Any) -> RuleResult:
    """Return the result of a rule, which is kept if there are no violations.

    Args:
        violations: their texts; repeated ones are listed only once.
        args: arguments of the sentence.
    """
    distinct = sorted(set(violations))
    if distinct:
        sentence = message(f"rule_broken.{rule}", found=", ".join(distinct), **args)
    else:
        sentence = message(f"rule.{rule}", **args)
    return RuleResult(rule, kept=not distinct, sentence=sentence)


def _check_closed(records: Sequence[Record], case: Case | None) -> Iterator[RuleResult]:
    """Yield the results of rules that only the closed division has.

    A run has the standard recipe, and changes only the hyper-parameters that the division allows
    (``fix_hp`` of a plan), nothing else (``extra``).

    Args:
        case: None: the case is not installed.
    """
    plans = [record.plan for record in records]
    other_changes: list[str] = []
    allowed_changes: dict[str, Any] = {}
    for plan in plans:
        other_changes += [f"{name}={value}" for name, value in plan.extra.items()]
        # The same in all launches; otherwise the rule ``same_work`` is broken.
        allowed_changes |= plan.fix_hp
    result = judge_violations("changes", other_changes)
    if result.kept and allowed_changes:
        sentence = message("rule.changes_allowed", fix_hp=format_fix_hp(allowed_changes))
        result = replace(result, sentence=sentence)
    yield result
    if case is None:  # its standard recipe is not known
        yield judge_violations("scope", [f"case={plans[0].case}"])
        return
    violations = []
    for plan in plans:
        standard = case.recipes.get(plan.compared_with)
        # Fields that set how much is trained and what is evaluated must be those of the standard.
        for name in list_fields_with_rule(case.recipe_type, "scope"):
            # None: the installed case no longer has the recipe with which the run was compared.
            if standard is None or plan.recipe.get(name) != getattr(standard, name):
                violations.append(f"{name}={plan.recipe.get(name)}")
    yield judge_violations("scope", violations)


def _check_launches(records: Sequence[Record], division: Division) -> Iterator[RuleResult]:
    """Yield the results of the rules about work, launches, seeds, target, data and trust."""
    first, *others = [describe_work(record) for record in records]
    differences = (key for other in others for key in find_differences(first, other))
    yield judge_violations("same_work", differences)
    yield judge_violations("passed", (record.run_id for record in records if not record.passed))
    num_launches = len(records)
    sentence = message("rule.launches", launches=num_launches, least=division.launches)
    yield RuleResult("launches", num_launches >= division.launches, sentence)
    if division.seeds != "any":
        seeds = [str(record.plan.recipe.get("seed")) for record in records]
        num_distinct = num_launches if division.seeds == "distinct" else 1  # 1: ``fixed``
        sentence = message(f"rule.seeds_{division.seeds}", seeds=", ".join(seeds))
        yield RuleResult("seeds", len(set(seeds)) == num_distinct, sentence)
    if division.target != "any":
        yield _check_target(records, division)
    yield _check_data(records, division)
    yield _check_doubts(records)


def _check_doubts(records: Sequence[Record]) -> RuleResult:
    """Return whether there is no reason to doubt a launch, apart from noise."""
    doubts: dict[str, Message] = {}  # by code, of each the first
    for record in records:
        for reason in record.trust.reasons:
            # Reasons that only make a figure noisy break no rule.
            is_noise = grade_reasons([reason]).grade != "do_not_quote"
            if not is_noise and reason.code not in _CHECKED_BY_OTHER_RULES:
                doubts.setdefault(reason.code, reason)
    result = judge_violations("doubts", doubts)
    return replace(result, doubts=tuple(doubts[code] for code in sorted(doubts)))


def _check_target(records: Sequence[Record], division: Division) -> RuleResult:
    """Return whether all launches do what the division demands of the quality.

    They reach the target, or at least measure the quality.
    """
    qualities = [record.quality for record in records]
    if division.target == "reached":
        is_kept = all(quality.reached for quality in qualities)
    else:
        is_kept = all(quality.value is not None for quality in qualities)
    values = [
        "–" if x.value is None else format_measured_quality(x.value, target=x.target)
        for x in qualities
    ]
    sentence = message(
        f"rule.target_{division.target}",
        metric=qualities[0].metric,
        target=qualities[0].target,
        values=", ".join(values),
    )
    return RuleResult("target", is_kept, sentence)


def _check_data(records: Sequence[Record], division: Division) -> RuleResult:
    """Return whether the facts of the data have the values that the division allows."""
    violations = []
    for record in records:
        for name, allowed_values in division.data.items():
            value = getattr(record.plan.data, name)
            if value not in allowed_values:
                violations.append(f"{name}={value}")
    conditions = [
        f"{name}={'|'.join(map(str, allowed))}" for name, allowed in division.data.items()
    ]
    return judge_violations("data", violations, asked=", ".join(conditions))
