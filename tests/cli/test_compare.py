"""``trainmark compare``: arguments of both sides, exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.comparison_records import make_alternating_launches, make_series
from trainmark.record import record as records

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.record.record import Record

    Call = Callable[..., tuple[int, str, str]]

RATES = [100.0, 101.0, 99.0, 100.5, 99.5]


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take records as they are written: their figures are invented."""
    monkeypatch.setattr("trainmark.results.selection.check_record", lambda record, _: record)


@pytest.fixture(name="cli")
def compare(cli: Call) -> Call:
    """Call ``trainmark compare``."""
    return partial(cli, "compare")


def write_launches(name: str, launches: list[Record]) -> None:
    """Write the records of a series into ``name/r1``, ``name/r2``, …"""
    for number, launch in enumerate(launches, 1):
        folder = Path(name) / f"r{number}"
        folder.mkdir(parents=True)
        records.write_record(launch, folder)


def write_both_sides(factor: float = 1.0, **fields_of_b: Any) -> None:
    """Write five launches of each side: series A into the folder ``a``, series B into ``b c``.

    The space in a folder's name must not split it into two paths.

    Args:
        factor: rates of B divided by those of A.
        fields_of_b: other fields of ``make_series`` for series B.
    """
    # ``RATES``: five rates around 100. A launch starts each minute, those of B after those of A.
    write_launches("a", make_series("a", RATES))
    rates_of_b = [rate * factor for rate in RATES]
    write_launches("b c", make_series("b", rates_of_b, first_minute=10, **fields_of_b))


@pytest.mark.parametrize(
    ("factor", "code", "verdict"),
    # At 0.97, only a part of the interval is beyond the threshold of 3%.
    [(1.0, 0, "no_difference"), (0.9, 1, "slower"), (0.97, 3, "too_noisy"), (1.2, 0, "faster")],
)
def test_exit_code_follows_the_verdict(cli: Call, factor: float, code: int, verdict: str) -> None:
    # Five launches of each side, with rates around 100; those of B are ``factor`` times those of A.
    # ``b c`` is the name of a single folder.
    write_both_sides(factor)
    exit_code, out, err = cli("a", "b c", "--json")
    assert (exit_code, err) == (code, "")
    document = json.loads(out)
    assert (document["verdict"], document["exit_code"]) == (verdict, code)
    assert document["a"]["names"] == ["a1", "a2", "a3", "a4", "a5"]
    assert document["sentence"]["code"] == f"verdict.{verdict}"
    # The same on a page in both languages; the ratio of the sides is printed.
    for lang, head in (("en", "95% interval"), ("zh", "95% 区间")):
        exit_code, out, _ = cli("a", "b c", "--lang", lang)
        assert exit_code == code
        assert head in out
        assert f"{factor:.3f}" in out


def test_damaged_record_of_a_side_fails(cli: Call) -> None:
    write_both_sides()
    Path("a/r9").mkdir()
    # Beside the five launches of A, r1 to r5, a record that ends in the middle.
    Path("a/r9/record.json").write_text('{"suite": ')
    code, out, err = cli("a", "b c", "--json")
    document = json.loads(out)
    # The other launches are compared, but the exit code says that one was lost.
    assert (code, document["exit_code"], document["verdict"]) == (1, 1, "no_difference")
    assert "a/r9/record.json" in err


def test_quoted_paths_form_one_side(cli: Call) -> None:
    # ``RATES``: five rates. ``make_series`` makes a launch for each, with the names a1, a2, …, and
    # a minute apart; the series in "more" began at minute 20.
    write_launches("a", make_series("a", RATES[:3]))
    write_launches("more", make_series("m", RATES[3:], first_minute=20))
    write_launches("b", make_series("b", RATES, first_minute=10))
    _, out, _ = cli("a more", "b", "--json", "--figure", "p_core", "--threshold", "0.05")
    document = json.loads(out)
    assert document["a"]["names"] == ["a1", "a2", "a3", "m1", "m2"]
    assert [figure["name"] for figure in document["figures"]] == ["p_core"]
    assert document["threshold"] == 0.05


def test_other_work_exits_with_2_and_allowed_differences_are_listed(cli: Call) -> None:
    # Series B in the folder ``b c`` was compiled, series A in ``a`` was not: other work.
    write_both_sides(recipe={"compile": True})
    code, out, err = cli("a", "b c")
    assert (code, out) == (2, "")
    assert "compile differs: False and True" in err
    assert "--allow compile" in err
    # A difference may be allowed that does not exist (bs).
    code, out, _ = cli("a", "b c", "--allow", "compile", "--allow", "bs")
    assert code == 0
    assert "Allowed differences between the workloads:" in out
    assert "compile" in out


def test_excluded_launches_and_differences_are_listed(cli: Call) -> None:
    # Six rounds, each of one launch of A and one of B, all with the rate 100. ``a`` and ``b`` are
    # the lists of their records.
    a, b = make_alternating_launches([100.0] * 6, [100.0] * 6)
    b[2] = b[2].model_copy(update={"environment": b[2].environment | {"driver": "590.1"}})
    write_launches("a", a)
    write_launches("b", b[:5])  # one launch fewer than of A, and one with another driver
    code, out, _ = cli("a", "b")
    assert code == 0
    assert "A: a6 is excluded: the other side has no usable launch in the same round" in out
    assert "in pairs" in out
    assert "590.1" in out
    assert "torch" not in out  # which is the same in all launches
