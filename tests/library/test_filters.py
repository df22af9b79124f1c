"""The filter language agrees with plain Python over random records, and with its documentation."""

from __future__ import annotations

import math
import operator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_bodies import document, write
from trainmark.errors import UsageError
from trainmark.library.store.database import Database
from trainmark.library.store.index import Index
from trainmark.library.store.query import listing

COMPARE = {
    "=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt,
    "<=": operator.le,
}  # fmt: skip
LABELS = ("odd", "Odd", "even", "100%", "a_b", "ä", "Ä", "o'd")
CASES = ("toy", "Toy", "gpt", "é", "É", "x%y", "x_y", "\\")
NUMBERS = (0.0, -1.5, 1.0, 464.5, 1e150, 5e-324)
TORCHES = ("2.11.0", "2.13.0+cpu", "2.13.0+CPU", None)
CORES = (2, 128, None)
STARTED = ("2026-10-31T23:59:59+00:00", "2026-11-01T00:00:00+00:00", "2026-11-02T08:00:00+00:00")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Index random records once; return it with what each run has."""
    folder = tmp_path_factory.mktemp("many")
    runs = {}
    for number in range(120):
        run = {
            "case": CASES[number * 7 % len(CASES)],
            "started": STARTED[number % 3],
            "label": [label for at, label in enumerate(LABELS) if number >> at % 7 & 1],
            "p_core": None if number % 5 == 0 else NUMBERS[number % len(NUMBERS)],
            "steady": (True, False, None)[number % 3],
            "nproc": number % 4 + 1,
            "env.torch": TORCHES[number % 4],
            "env.cpu_cores": CORES[number % 3],
        }
        made = document(
            f"r{number}", plan__case=run["case"], started=run["started"], labels=run["label"],
            steps__steady=run["steady"], plan__nproc=run["nproc"],
            environment__packages={"torch": run["env.torch"]} if run["env.torch"] else {},
            environment__cpu_cores=run["env.cpu_cores"], figures={"p_core": run["p_core"]},
        )  # fmt: skip
        write(folder / f"r{number}", made)
        runs[f"r{number}"] = run
    index = Index(Database(str(folder)))
    index.refresh()
    return index.database, runs


def lower(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def met(value: Any, sign: str, given_: str) -> bool:
    """Tell whether one value meets a condition, as docs/results.md says."""
    if isinstance(value, list):
        alike = [met(item, "=" if sign == "!=" else sign, given_) for item in value]
        return not any(alike) if sign == "!=" else any(alike)
    if value is None:
        return False
    if isinstance(value, bool):
        return COMPARE[sign](value, given_ == "true")
    if sign == "~":
        return lower(given_) in lower(value)
    return COMPARE[sign](value, given_ if isinstance(value, str) else float(given_))


WORDS = st.one_of(
    st.tuples(st.just("case"), st.sampled_from(("=", "!=", "~")),
              st.sampled_from((*CASES, "T", "%", "_", "É"))),
    st.tuples(st.just("label"), st.sampled_from(("=", "!=", "~")),
              st.sampled_from((*LABELS, "D", "%", "_"))),
    st.tuples(st.sampled_from(("p_core", "nproc")), st.sampled_from(tuple(COMPARE)),
              st.sampled_from((*map(repr, NUMBERS), "2", "2.5"))),
    st.tuples(st.just("steady"), st.sampled_from(("=", "!=")), st.sampled_from(("true", "false"))),
    st.tuples(st.just("env.torch"), st.sampled_from(("=", "!=", "~")),
              st.sampled_from(("2.13.0+cpu", "2.13", "+CPU", "9"))),
    st.tuples(st.just("env.cpu_cores"), st.sampled_from(tuple(COMPARE)),
              st.sampled_from(("2", "128.0", "64"))),
    st.tuples(st.just("started"), st.sampled_from(tuple(COMPARE)), st.sampled_from(STARTED)),
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(WORDS, min_size=1, max_size=4), seed=st.sampled_from(("p_core", "-p_core")))
def test_filters_agree_with_plain_python(many, words, seed):
    database, runs = many
    expected = {
        name for name, run in runs.items()
        if all(met(run[key], sign, value) for key, sign, value in words)
    }  # fmt: skip
    found = listing(
        database, ["".join(word) for word in words], columns=["run_id", "p_core"], sort=seed
    )
    assert {name for name, _ in found.rows} == expected
    assert found.total == len(expected)
    values = [value for _, value in found.rows]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=seed.startswith("-"))
    assert values[len(known) :] == [None] * (len(values) - len(known))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(word=st.text(min_size=1, max_size=40))
def test_any_word_is_a_filter_or_refused(many, word):
    database, _ = many
    for key in ("", "case", "p_core", "env.torch", "label", "started", "steady"):
        try:
            found = listing(database, [key + word], columns=["run_id"])
        except UsageError:
            continue
        assert found.total <= 120


def test_a_series_of_any_length_is_reduced_to_the_means_of_its_stretches(tmp_path):
    steps = 1000
    made = document("a")
    made["steps"] |= {
        "time_ns": [10**9 + at for at in range(steps)],
        "loss": [None if at < 500 else float(at) for at in range(steps)],
        "samples": [1] * steps,
    }
    write(tmp_path / "a", made)
    write(tmp_path / "b", document("b", steps__time_ns=[], steps__loss=[], steps__samples=[]))
    index = Index(Database(str(tmp_path)))
    index.refresh()
    found = listing(index.database, columns=["run_id", "step_times", "losses"], sort="run_id")
    (_, times, losses), last = found.rows
    assert last == ["b", [], []]
    assert (len(times), len(losses)) == (32, 32)
    assert math.isclose(times[0], 1.0 + 15e-9, rel_tol=1e-6)  # of steps 0 to 30
    assert losses[:15] == [None] * 15
    assert losses[16] == sum(range(500, 531)) / 31
    assert losses[31] == sum(range(968, 1000)) / 32


def test_dates_have_zones(many):
    database, runs = many
    late = sum(run["started"] >= "2026-11-01" for run in runs.values())
    assert listing(database, ["since=2026-11-01"]).total == late
    assert listing(database, ["since=2026-11-01T02:00+02:00"]).total == late
    assert listing(database, ["since=2026-11-01T00:00:01"]).total < late
    assert datetime.fromisoformat(STARTED[1]) == datetime(2026, 11, 1, tzinfo=UTC)
