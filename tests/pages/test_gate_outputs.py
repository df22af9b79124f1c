"""Output of a gate for machines: valid, escaped, and without CI commands."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from trainmark.judge.comparison.gate import Judgement
from trainmark.pages.judgements import to_json_documents, to_junit
from trainmark.spec import message

HOSTILE = "a\x00\x1b]0;x\x07\ufffe\r\n::stop-commands::x\n##[error]<&\"'>,:%0A |`![x](y)"
# Attributes of a test suite in the schema that Jenkins' xUnit plugin checks reports by:
# https://github.com/jenkinsci/xunit-plugin, junit-10.xsd (2026-11-22).
SUITE_ATTRIBUTES = {"name", "tests", "failures", "errors", "skipped", "time"}


def make_judgements(word: str = "p_train") -> list[Judgement]:
    """Return a judgement of each kind; ``word`` is every name in it.

    The first two fields of a judgement are the work and its figure; the figure "work" says that
    other work was done, so that no figure was judged. The others have the same arguments
    whatever their kind, as only the texts matter: 90 samples/s where 100 were expected, the change
    with the ends of its interval (``low``, ``high``), and the changes from which a figure counts as
    worse or better. Shares are of 1.
    """
    args: dict[str, Any] = {
        "figure": word,
        "value": 90.0,
        "unit": "samples/s",
        "expected": 100.0,
        "change": -0.1,
        "low": -0.11,
        "high": -0.09,
        "worse_by": 0.03,
        "better_by": 0.1,
        "launches": 5,
    }
    other = {"key": word, "known": "96", "found": "8", "others": 0, "entry": word}
    return [
        Judgement(word, word, "regressed", message("gate_regressed", **args)),
        Judgement(word, word, "improved", message("gate_improved", **args)),
        Judgement(word, word, "noisy", message("gate_noisy", **args)),
        Judgement(word, "work", "other_work", message("gate_other_work", **other)),
        Judgement(word, word, "passed", message("gate_passed", **args)),
    ]


@pytest.mark.parametrize("word", ["p_train", HOSTILE])
def test_junit_has_one_test_case_per_judgement(word: str) -> None:
    # ``HOSTILE`` has control characters, markup and commands that CI systems obey in logs; with it
    # as a name the document must still be XML of the same form. ``SUITE_ATTRIBUTES``: those that
    # the schema of Jenkins' plugin for such reports allows.
    suite = ET.fromstring(to_junit(make_judgements(word)))
    assert suite.tag == "testsuite"
    assert set(suite.attrib) <= SUITE_ATTRIBUTES
    counts = [suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")]
    # A regression fails; other work is an error; noise is skipped; the other two passed.
    assert counts == ["5", "1", "1", "1"]
    tags = [[part.tag for part in case] for case in suite]
    assert tags == [["failure"], [], ["skipped"], ["error"], []]
    for case in suite:
        assert set(case.attrib) == {"name", "classname", "time"}
        assert all(set(part.attrib) == {"message", "type"} for part in case)
    if word == "p_train":  # in the hostile word, parts are replaced
        assert suite[0][0].attrib["type"] == "regressed"
        # The value of the figure in ``make_judgements``; 100 samples/s were expected.
        assert "90" in suite[0][0].attrib["message"]


def test_documents_have_code_numbers_and_sentence() -> None:
    documents = to_json_documents(make_judgements())
    # Regressed, improved, noisy, other work, passed: 1 is a regression, 3 a figure that varies too
    # much to be judged, and 2 work that cannot be compared.
    assert [document["exit_code"] for document in documents] == [1, 0, 3, 2, 0]
    # The first judgement: 90 samples/s where 100 were expected, a change of -0.1.
    assert documents[0]["message"]["code"] == "gate_regressed"
    assert documents[0]["message"]["args"]["change"] == -0.1
    assert "100: 10.0% worse (" in documents[0]["sentence"]
