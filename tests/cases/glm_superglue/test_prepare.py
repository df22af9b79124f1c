"""From a download to a data folder of glm_superglue."""

import json
import shutil
from dataclasses import replace

import pytest

from trainmark.cases.glm_superglue import data
from trainmark.cases.glm_superglue.case import CASE
from trainmark.cases.glm_superglue.data import generated
from trainmark.cases.glm_superglue.prepare import prepare as prepare_folder
from trainmark.errors import DataError

TINY = CASE.recipes["tiny"]
RECIPE = replace(TINY, data="real")


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """Return a download with 10 training passages: ReCoRD as unpacked, and a vocabulary."""
    monkeypatch.setattr(generated, "PASSAGES", {"train": 10, "val": 6})
    folder = tmp_path / "raw"
    folder.mkdir()
    generated.generate(folder, TINY)
    (folder / "ReCoRD").mkdir()
    for name in ("train.jsonl", "val.jsonl"):
        (folder / name).rename(folder / "ReCoRD" / name)
    return folder


def prepare(raw):
    """Prepare ``raw``; return the data folder and the lines of progress."""
    progress_lines = []
    prepare_folder(raw, raw.parent / "data", progress_lines.append)
    return raw.parent / "data", progress_lines


def test_a_download_becomes_a_folder_that_a_run_reads(raw):
    """The download has 10 generated training passages with a question each, no checkpoint.

    ``RECIPE`` is the tiny recipe for real data. The manifest lists what was written and counted.
    """
    folder, progress_lines = prepare(raw)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["counts"]["train"]["passages"] == 10
    assert manifest["counts"]["train"]["questions"] == 10
    assert set(manifest["files"]) == {"train.jsonl", "val.jsonl", "model/vocab.txt"}
    assert "train: 10 questions, 10 passages; NOT the published 100,730" in progress_lines
    assert "no checkpoint: this data only works with init=random" in progress_lines
    # The published numbers show at once whether a download is complete.
    words = len(generated.list_tokens())
    assert f"vocab.txt: {words} tokens; NOT bert-large-uncased's 30,522" in progress_lines
    assert data.check(folder, RECIPE).train_samples == 10
    # A second call does nothing.
    assert "already prepared" in prepare(raw)[1][-1]


def test_checkpoint_is_prepared_with_the_data(raw, one_thread):
    """``raw`` is a download, to which a checkpoint of the smallest model is added as ``blocklm``.

    The prepared folder can then start a run from it (``init="pretrained"``).
    """
    import torch

    from trainmark.cases.glm_superglue.case import GlmShape
    from trainmark.cases.glm_superglue.model import build_model

    shape = GlmShape(
        num_layers=1,
        hidden_size=64,
        num_heads=1,
        vocab_size=TINY.vocab_size,
        max_positions=TINY.seq_length,
    )
    checkpoint_folder = raw / "blocklm"
    # The original's layout: a folder named by the iteration, here 7, and a file that names it.
    (checkpoint_folder / "7").mkdir(parents=True)
    (checkpoint_folder / "latest_checkpointed_iteration.txt").write_text("7")
    weights = build_model(shape, seed=1).state_dict()
    torch.save({"module": weights}, checkpoint_folder / "7" / "mp_rank_00_model_states.pt")
    folder, _ = prepare(raw)
    recipe = replace(RECIPE, num_layers=1)
    facts = data.check(folder, replace(recipe, init="pretrained"))
    assert facts.quality_comparable  # it starts from a checkpoint, as the published runs do
    # The checkpoint is part of the id.
    assert facts.content_id != data.check(folder, replace(recipe, init="random")).content_id


def break_first_line(raw):
    """Replace the training lines by one without any field."""
    (raw / "ReCoRD" / "train.jsonl").write_text("{}\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: shutil.rmtree(raw / "model"), "no tokenizer.json and no vocab.txt"),
        (lambda raw: (raw / "ReCoRD" / "val.jsonl").unlink(), "no validation split"),
        (break_first_line, r"train\.jsonl, line 1: passage: missing; it is required"),
    ],
)
def test_folder_that_is_not_a_download_is_refused(raw, damage, message):
    """``damage`` removes or breaks a part of a valid download; nothing is then written.

    ``break_first_line`` replaces the training lines by a single one, without the key "passage".
    """
    damage(raw)
    with pytest.raises(DataError, match=message):
        prepare(raw)
    assert not (raw.parent / "data").exists()
