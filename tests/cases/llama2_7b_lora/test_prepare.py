"""Prepare: raw downloads in their published places become a data folder that passes its check."""

import dataclasses
import shutil

import pytest

from trainmark.cases.llama2_7b_lora import data
from trainmark.cases.llama2_7b_lora.case import CASE
from trainmark.cases.llama2_7b_lora.data import generating
from trainmark.cases.llama2_7b_lora.prepare import prepare
from trainmark.errors import DataError

TINY = CASE.recipes["tiny"]


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """Return a download: dialogues below ``corpus``, the model and MMLU at published places."""
    monkeypatch.setattr(generating, "DIALOGUES", {"train": 30, "val": 5})
    generated_folder, raw = tmp_path / "made", tmp_path / "raw"
    generated_folder.mkdir()
    generating.generate(generated_folder, TINY)
    (raw / "corpus").mkdir(parents=True)
    for name in ("train.jsonl", "val.jsonl"):
        (generated_folder / name).rename(raw / "corpus" / name)
    (generated_folder / "model").rename(raw / "model")
    (generated_folder / "mmlu").rename(raw / "mmlu")
    return raw


def test_a_raw_folder_becomes_a_data_folder(raw, tmp_path):
    progress_lines = []
    with (raw / "mmlu" / "dev" / "notes.csv").open("wb") as file:
        file.truncate(1 << 40)  # no file of a subject: it must not be copied
    prepare(raw, tmp_path / "out", progress_lines.append)
    facts = data.check(tmp_path / "out", TINY)
    assert (facts.layout, facts.eval_samples) == ("jsonl", 57 * generating.TEST_ROWS)
    # ``raw`` has 30 dialogues for training; the published data set samsum has 14,732.
    assert "train: 30 dialogues; NOT the published 14,732" in progress_lines
    assert progress_lines[-1] == f"done: {tmp_path / 'out'}"
    assert len(list((tmp_path / "out" / "mmlu").rglob("*.csv"))) == 114  # 57 subjects, dev and test
    prepare(raw, tmp_path / "out", progress_lines.append)
    assert "is already prepared" in progress_lines[-1]


def test_missing_parts_are_reported_with_the_recipes_they_exclude(raw, tmp_path):
    shutil.rmtree(raw / "mmlu")
    (raw / "model" / "model.safetensors").unlink()
    progress_lines = []
    prepare(raw, tmp_path / "out", progress_lines.append)
    assert progress_lines[0].startswith("no safetensors in the model folder: this data only works")
    assert progress_lines[1].startswith("no MMLU found: this data only works")
    data.check(tmp_path / "out", dataclasses.replace(TINY, init="random", mmlu_mode="off"))
    # MMLU has 57 subjects, each with a file of examples (dev) and of questions (test).
    with pytest.raises(DataError, match="missing files: 114 of 114"):
        data.check(tmp_path / "out", dataclasses.replace(TINY, init="random"))


def test_missing_source_leaves_no_folder(raw, tmp_path):
    out = tmp_path / "out"
    (raw / "model").rename(raw / "Llama-2-7b-hf")  # the name that the hub gives it
    with pytest.raises(DataError, match=r"model/config.json: cannot be read"):
        prepare(raw, out, print)
    shutil.rmtree(raw / "corpus")
    with pytest.raises(DataError, match="no data files") as caught:
        prepare(raw, out, print)
    assert caught.value.fix.startswith("samsum is distributed as corpus.7z")
    assert not out.exists()
