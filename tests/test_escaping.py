"""No control character of a record, a log, an event or a command line reaches a terminal."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.document_texts import Reader, render_html, render_markdown
from support.fakes import GOLDEN
from trainmark.cli.app import main
from trainmark.errors import escape_controls
from trainmark.export.tables import render_csv
from trainmark.launch.series import SeriesEntry
from trainmark.pages.page import build_document
from trainmark.pages.results import build_series_table
from trainmark.pages.summary import list_first_lines
from trainmark.pages.terminal import show_page
from trainmark.record.record import Record, read_record

# A title, a C1 sequence, a return to overwrite the line, a right-to-left override, a half pair.
CONTROL_CHARACTERS = "\x1b]0;x\x07\x9b31m\rover\u202egnp\u2066\udc9b"
MARKUP = '<script>alert("x")</script><img>|`c`**d**'
ATTACK = MARKUP + CONTROL_CHARACTERS[:-1]  # text in UTF-8 holds no half pair
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plant_attack(value: Any, words: frozenset[str]) -> Any:
    """Return the JSON of a record with the attack in every string that is not in ``words``.

    ``ATTACK`` is markup of HTML and Markdown, and characters that control a terminal.
    ``words`` have a fixed meaning; a record with others would not be loaded.
    """
    if isinstance(value, dict):
        return {key: plant_attack(item, words) for key, item in value.items()}
    if isinstance(value, list):
        return [plant_attack(item, words) for item in value]
    return value + ATTACK if isinstance(value, str) and value not in words else value


def make_hostile_record() -> Record:
    """Return the golden record with the attack in every string that may be any text.

    ``GOLDEN`` is the folder of stored records; ``ATTACK`` is markup of HTML and Markdown, and
    characters that control a terminal.
    """
    document = json.loads((GOLDEN / "record_distilbert.json").read_text(encoding="utf-8"))
    good = Record(**document)
    codes = {message.code for message in (*good.findings, *good.trust.reasons)} | {
        message.code
        for entry in good.figures.values()
        for message in (entry.reason, entry.note)
        if message is not None
    }
    # Texts that stay as they are. Of some, such as files and hashes of the evidence, the schema
    # allows only certain values or one form; reference columns of other names are refused. By the
    # others the pages look something up: codes of messages, the case, and units, by which numbers
    # are scaled.
    words = (
        codes
        | {
            good.status,
            good.plan.case,
            "trainmark",
            good.plan.rules,
            good.plan.data.origin,
            good.plan.recipe["data"],
            good.plan.recipe["precision"],
        }
        | {entry.unit for entry in good.figures.values()}
    )
    words |= {good.trust.grade, good.plan.about.work_unit, *good.plan.about.references.columns}
    words |= {word for file in good.evidence for word in (file.name, file.sha256)}
    for row in good.plan.about.references.rows:
        words |= {row.kind, row.world, row.source.evidence}
    changed = plant_attack(document, frozenset(words))
    changed["status"] = "failed"
    changed["cause"] = {
        "kind": "error" + ATTACK,
        "rank": 0,
        "place": "train" + ATTACK,
        "type": "E" + ATTACK,
        "message": {"code": "exception", "args": {"text": ATTACK}},
        "traceback": f"Traceback\n  File x{ATTACK}\nE: {ATTACK}",
        "stacks": ["s" + ATTACK],
    }
    changed["labels"] = ["self-reported", ATTACK]
    changed["plan"]["extra"] = {"loss" + ATTACK: ATTACK}
    changed["spans"]["by_name_ns"]["span" + ATTACK] = 10**9
    return Record(**changed)


@pytest.fixture(scope="module")
def hostile_record() -> Record:
    """Return a record with markup and control characters in every string that may be any text."""
    return make_hostile_record()


@pytest.mark.parametrize(
    "show",
    [
        lambda record: show_page(build_document([record])),
        lambda record: show_page(build_document([record]), width=60),
        lambda record: show_page(build_document(repeat_record(record))),
        lambda record: "\n".join(list_first_lines([record])),
        lambda record: build_series_table(
            [
                SeriesEntry(
                    name=ATTACK,
                    state="failed",
                    reason=ATTACK,
                    run_dir=Path(CONTROL_CHARACTERS),
                    ended={1: (Path(CONTROL_CHARACTERS), record)},
                )
            ]
        ),
        lambda record: render_markdown([record]),
        lambda record: render_markdown(repeat_record(record), "zh"),
        lambda record: render_html([record]),
        lambda record: render_html([record], "zh"),
        lambda record: render_csv([record]),
    ],
    ids=[
        "table",
        "narrow",
        "repeats",
        "end of a run",
        "series",
        "md",
        "md-zh",
        "html",
        "html-zh",
        "csv",
    ],
)
def test_record_strings_contain_no_terminal_escapes_when_printed(hostile_record, show):
    # ``hostile_record`` has an attack in each of its texts: markup, and characters that control a
    # terminal, each of which ``_CONTROL`` matches. ``show`` makes of it the text of a page, table
    # or file; ``repeat_record`` gives two launches of it, which have a page of their own form.
    # ``ATTACK`` is that text, ``CONTROL_CHARACTERS`` the second part of it, which a path may have.
    output = show(hostile_record)
    assert _CONTROL.findall(output) == []
    # The attack is there, escaped; in some forms the backslash is doubled or a line is broken.
    assert r"\u001b]0;x" in output.replace("\\\\", "\\").replace("\n", "")


def test_markup_of_a_record_stays_text(hostile_record):
    # ``hostile_record`` has ``MARKUP``, which would add a script, an image and a column, in its
    # texts. ``Reader`` lists the tags and the texts of a page.
    reader = Reader(render_html([hostile_record]))
    assert reader.tags.count("script") == 1  # the page's own
    assert "img" not in reader.tags
    assert any(MARKUP in text for text in reader.texts)
    page_text = render_markdown([hostile_record])
    # Blocks of code may contain anything.
    outside = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", page_text)
    assert "<script" not in outside
    # All rows of a table have the same number of unescaped pipes. The pattern must find tables: the
    # page has more than three.
    tables = re.findall(r"(?m)(?:^\|.*\n)+", outside)
    assert len(tables) > 3
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def repeat_record(record: Record) -> list[Record]:
    """Return records of two launches of the same run, with the same content but the run's id."""
    return [record, record.model_copy(update={"run_id": "2"})]


def write_hostile(folder: Path, record: Record) -> Path:
    """Write the record with the attack into a folder; return its file."""
    path = folder / "record.json"
    path.write_text(record.model_dump_json(), encoding="utf-8")
    return path


@pytest.fixture
def call(monkeypatch, capfd, tmp_path):
    """Return what calls the program here: exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    # The record has no files of events, against which it would be checked.
    monkeypatch.setattr("trainmark.results.selection.check_record", lambda record, _: record)

    def run(*words: str) -> tuple[int, str, str]:
        """Call the program's entry point in this process, with ``words`` as its command line."""
        monkeypatch.setattr(sys, "argv", ["trainmark", *words])
        code = 0
        try:
            main()
        except SystemExit as ending:
            code = int(ending.code or 0)
        return code, *capfd.readouterr()

    return run


@pytest.mark.parametrize(
    "words",
    [
        ["report"],
        ["report", "--format", "md"],
        ["export", "--to", "json"],
        ["export", "--to", "csv"],
        ["report", "--format", "html", "--lang", "zh"],
    ],
)
def test_no_command_prints_escape_sequences_of_a_record(call, hostile_record, tmp_path, words):
    # ``hostile_record`` has sequences that control a terminal in its texts; ``_CONTROL`` matches
    # each character of them.
    path = write_hostile(tmp_path, hostile_record)
    code, out, err = call(*words, str(path))
    assert code == 0
    assert _CONTROL.findall(out + err) == []
    if words[-1] == "json":  # which keeps them, escaped by JSON's own rule
        assert json.loads(out)[0]["cause"] == read_record(path).model_dump(mode="json")["cause"]


@given(st.text(st.characters(exclude_categories=())))  # surrogates too
def test_escaping_leaves_no_control_character_and_plain_text_as_it_is(text):
    escaped = escape_controls(text)
    assert _CONTROL.findall(escaped) == []
    assert escape_controls(escaped) == escaped
    # Two characters that are escaped too, but are not in ``_CONTROL``: a mark of direction and one
    # of byte order.
    plain = _CONTROL.sub("", text).replace("\u061c", "").replace("\ufeff", "")
    assert escape_controls(plain) == plain
