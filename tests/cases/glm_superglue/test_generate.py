"""The generated passages of glm_superglue: what they say decides the answer, nothing else."""

import json
import re

import pytest

from trainmark.cases.glm_superglue import data
from trainmark.cases.glm_superglue.case import CASE
from trainmark.cases.glm_superglue.data import generated

TINY = CASE.recipes["tiny"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Generated data, less of it, for as long as this module's tests run."""
    place = tmp_path_factory.mktemp("generated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generated, "PASSAGES", {"train": 2_000, "val": 100})
        data.generate(place, TINY)
        yield place


def solve(text, query):
    """Return the name that the passage gives the gap, read as a person would."""
    said = re.escape(query).replace("@placeholder", r"(\w+ \w+)")
    turned = re.fullmatch(r"The (\w+) is @placeholder\.", query)
    found = re.findall(rf"(\w+ \w+) is the {turned[1]}\.", text) or re.findall(said, text)
    assert len(found) == 1
    return found[0]


def test_every_answer_follows_from_its_passage(folder):
    for name, count in generated.PASSAGES.items():
        raw = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        assert len(raw) == count
        for item in raw:
            text = item["passage"]["text"]
            for question in item["qas"]:
                (answer,) = question["answers"]
                assert solve(text, question["query"]) == answer["text"]
                assert text[answer["start"] : answer["end"] + 1] == answer["text"]
