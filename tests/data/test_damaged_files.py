"""Whatever somebody did to a record or an event file: read as it stands, or refused in words."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import GOLDEN, S, event, launch_event, rank_events, write_events, write_run
from trainmark.data import json_documents
from trainmark.errors import RecordError, UsageError
from trainmark.pages.exports.documents import to_json
from trainmark.pages.exports.index import to_index
from trainmark.pages.exports.tables import to_csv
from trainmark.pages.page import html_page, markdown_page
from trainmark.pages.terminal import Screen, run_table
from trainmark.plan.plan import Plan
from trainmark.record import building, record

# What no true file holds, or holds elsewhere.
STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 7, 2**31, 2**62, 2**63, 2**64, 10**400, -(2**63), 0.5, -0.5, 1e300,
    1e-300, 5e-324, "", "x", "a\nb|<i>", "\x1b[2J", "{x}", "%s", "\u202e", "1", "nan", [], [[]], {},
    [None], ["x"], [1, 2], {"x": 1}, {"": None}, [{}], [[[[[]]]]],
]  # fmt: skip
SAID = {"code": "exception", "args": {"text": "m"}}
SEEDS = st.integers(0, 2**32 - 1)


def damage(document: Any, chance: random.Random) -> None:
    """Change, remove or repeat one value at a random place below ``document``."""
    here = document
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return
        key = chance.choice(keys)
        deeper = isinstance(here[key], dict | list) and here[key] and chance.random() < 0.8
        if not deeper:
            break
        here = here[key]
    what = chance.random()
    if what < 0.2:
        del here[key]
    elif what < 0.3 and isinstance(here, list):
        here.append(here[key])
    elif what < 0.4 and isinstance(here, dict):
        here[chance.choice(["surprise", "name", "t_ns"])] = chance.choice(STRANGE)
    elif what < 0.5 and isinstance(here[key], int | float):
        here[key] = chance.choice([here[key] * 10, -here[key], here[key] + 1, float(here[key])])
    else:
        here[key] = chance.choice(STRANGE)


def damage_bytes(content: bytes, chance: random.Random) -> bytes:
    """Change, drop or insert a few bytes at a random place, or cut the rest away."""
    place = chance.randrange(len(content))
    what = chance.random()
    if what < 0.2:
        return content[:place]
    inserted = bytes(
        chance.choice(b'"{}[],:-0189eE.\\x\n\xff\x00') for _ in range(chance.choice([0, 1, 3]))
    )
    return content[:place] + inserted + content[place + chance.randrange(4) :]


def look(found: record.Record) -> None:
    """Show and export a record in every form."""
    for lang in ("en", "zh"):
        assert run_table(found, screen=Screen(), lang=lang)
        assert markdown_page([found], lang)
    assert html_page([found], "en")
    assert to_csv([found])
    assert to_json([found])
    if found.plan.about.mission is not None:
        with suppress(UsageError):  # a mission that is none of the form's
            assert to_index([found])


def read_and_look(path: Path) -> None:
    """Read a record and show it; a record that is refused is refused as such."""
    try:
        found = record.read(path)
    except RecordError:
        return
    look(found)


@pytest.mark.parametrize("name", ["record_toy.json", "record_distilbert.json"])
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_a_record_with_any_value_changed_is_shown_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int
) -> None:
    chance = random.Random(seed)
    document = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        damage(document, chance)
    path = tmp_path_factory.mktemp("r") / "record.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    read_and_look(path)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_a_record_with_any_bytes_changed_is_shown_or_refused(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    path = tmp_path_factory.mktemp("r") / "record.json"
    path.write_bytes(damage_bytes((GOLDEN / "record_distilbert.json").read_bytes(), chance))
    read_and_look(path)


def launchers() -> list[list[dict[str, Any]]]:
    """Return what launchers say: of a run that passed, of one that failed, of one stopped."""
    report = {"kind": "error", "type": "ValueError", "message": SAID, "place": "train",
              "traceback": "t", "time_s": 1.0}  # fmt: skip
    failures = [
        {"rank": 0, "exit_code": 1, "time_s": 1e9, "report": report},
        {"rank": 1, "exit_code": -9, "time_s": 1e9, "report": None},
    ]
    return [
        [launch_event(), event("agent_exit", 13 * S, exit_code=0, failures=[],
                               others_cpu_share=0.25), event("finished", 13 * S)],
        [launch_event(), event("oom_kills", 12 * S, count=1),
         event("agent_exit", 13 * S, exit_code=1, failures=failures)],
        [launch_event(), event("stop", 5 * S, reason="timeout", timeout_s=3.0, stacks=["s"])],
    ]  # fmt: skip


def build_and_look(run_dir: Path) -> None:
    """Build, write and read the record of a run; only what is no run directory is refused."""
    try:
        built = building.build(run_dir)
    except RecordError:
        return
    record.write(built, run_dir)
    assert record.read(run_dir) == built
    look(built)


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_events_with_anything_changed_give_a_record_that_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    run_dir = tmp_path_factory.mktemp("run")
    error = event("error", 9 * S, kind="oom", type="E", message=SAID, place="train", traceback="t")
    ranks = [rank_events(), chance.choice([rank_events(), [*rank_events()[:6], error]])]
    write_run(run_dir, chance.choice(launchers()), *ranks)
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    (run_dir / "plan.json").write_text(json.dumps(plan | {"nproc": 2}), encoding="utf-8")
    for _ in range(chance.choice([1, 1, 2, 5])):
        path = chance.choice(sorted(run_dir.iterdir()))
        if chance.random() < 0.2:
            path.write_bytes(damage_bytes(path.read_bytes() or b"\n", chance))
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        place = chance.randrange(len(lines) or 1)
        try:
            changed = json.loads(lines[place])
        except (ValueError, IndexError):
            continue
        if not isinstance(changed, dict):
            continue
        damage(changed, chance)
        lines[place] = json.dumps(changed)
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    build_and_look(run_dir)


@pytest.mark.parametrize(
    "document",
    [
        {"a": 1, "b": [{"a": -2.5e-7, "e999": "1e999"}]},
        {"a:": {"a": "x:y"}, "quote": 'a "b": 1, "b": 2', "back": "\\"},
        {"long": 0.00012345678901234567, "most": 2**64 - 1, "least": -(2**63), "far": 1e300},
        [[], {}, "", None, True, 2e043, "ä:中"],
    ],
)
def test_a_document_without_traps_is_read_as_it_is(document: Any) -> None:
    assert json_documents.parse(json.dumps(document).encode()) == document


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b'{"a": 1, "a": 2}', "'a' is given twice"),
        (b'[{"b": [{"a": 1, "c": ":", "a": 2}]}]', "'a' is given twice"),
        (b'{"a\\u0022:": 1, "a\\u0022:": 2}', "is given twice"),
        (b'{"a": [-1E+0999]}', "beyond the range"),
        (b'{"a": NaN}', "NaN|expected value"),
        (b'{"a": Infinity}', "expected"),
        (b'{"a": 1e999}', "beyond the range"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "out of range|beyond 64 bits"),
        (b'{"a": 18446744073709551616}', "beyond 64 bits"),
        (b'{"a":18446744073709551616}', "beyond 64 bits"),
        (b"[" * 100_000 + b"]" * 100_000, "recursion limit"),
        (b'{"a": "\xff"}', "unicode|utf-8"),
        (b'{"a": "\\ud800"}', "hex escape|surrogate"),
    ],
)
def test_a_document_with_a_trap_in_it_is_refused(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        json_documents.parse(content)
    (tmp_path / "record.json").write_bytes(content)
    with pytest.raises(RecordError, match="not a record of this schema"):
        record.read(tmp_path)


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "record.json")
    with pytest.raises(RecordError, match="not a regular file"):
        record.read(tmp_path)
    with pytest.raises(RecordError, match="not a regular file"):
        record.read(Path("/dev/zero"))
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(json_documents.MAX_BYTES + 1)
    with pytest.raises(RecordError, match="larger than 256 MiB"):
        record.read(large)
    link = tmp_path / "link"
    link.symlink_to(GOLDEN / "record_toy.json")
    assert record.read(link).case_key == "toy:pytorch_2.13:cpu:1:1:1"


def passed_run(run_dir: Path) -> Path:
    """Write a run that passed."""
    launcher = [launch_event(), event("agent_exit", 13 * S, exit_code=0, failures=[])]
    write_run(run_dir, launcher, rank_events())
    (run_dir / "plan.json").write_bytes((GOLDEN / "plan_toy.json").read_bytes())
    return run_dir


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "lunch"},
        {"step_ns": [1, 2]},
        {"step_ns": [-1] * 13},
        {"samples": [10**13] * 13},
        {"samples": [1.5] * 13},
        {"loss": ["low"] * 13},
        {"end_ns": 0},
        {"tokens": None},
        {"t_ns": 2**63},
        {"parts_ns": [1]},
    ],
)
def test_a_window_of_a_wrong_shape_is_a_counted_fault(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    run_dir = passed_run(tmp_path / "run")
    assert building.build(run_dir).status == "passed"
    path = run_dir / "events.rank0.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    place = max(n for n, item in enumerate(events) if item["event"] == "window")
    events[place] |= changes
    write_events(path, events)
    built = building.build(run_dir)
    assert built.ranks[0].malformed_lines == 1
    assert built.cause is not None
    assert (built.status, built.cause.kind, built.cause.rank) == ("failed", "events_incomplete", 0)


def test_a_launchers_event_of_a_wrong_shape_fails_the_run_too(tmp_path: Path) -> None:
    run_dir = passed_run(tmp_path / "run")
    with (run_dir / "events.launcher.jsonl").open("a") as file:
        file.write('{"event":"stop","t_ns":1,"reason":"boredom"}\n')
    built = building.build(run_dir)
    assert built.cause is not None
    assert (built.status, built.cause.kind) == ("failed", "events_incomplete")


@pytest.mark.parametrize("place", ["{a.__class__}", "{a[0]}", "{a!r}", "{a:>999999999}", "{a:{b}}"])
def test_a_records_own_sentences_reach_nothing_but_their_arguments(place: str) -> None:
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    plan["about"]["messages"] = {"toy.said": {"en": "{a:.1%} of {b}", "zh": "x"}}
    assert Plan.model_validate(plan).about.messages["toy.said"].zh == "x"
    plan["about"]["messages"]["toy.said"]["zh"] = place
    with pytest.raises(ValueError, match="not a plain place"):
        Plan.model_validate(plan)
