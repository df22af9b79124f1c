"""From a download to a data folder of glm_superglue."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from trainmark.cases.glm_superglue import data
from trainmark.cases.glm_superglue.case import CASE
from trainmark.cases.glm_superglue.data import generated, passages
from trainmark.cases.glm_superglue.prepare import prepare as prepare_folder
from trainmark.errors import DataError

TINY = CASE.recipes["tiny"]
RECIPE = replace(TINY, data="real")


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """A download: ReCoRD as its archive unpacks, and a vocabulary."""
    monkeypatch.setattr(generated, "PASSAGES", {"train": 10, "val": 6})
    folder = tmp_path / "raw"
    folder.mkdir()
    generated.generate(folder, TINY)
    (folder / "ReCoRD").mkdir()
    for name in ("train.jsonl", "val.jsonl"):
        (folder / name).rename(folder / "ReCoRD" / name)
    return folder


def prepare(raw):
    said = []
    prepare_folder(raw, raw.parent / "data", said.append)
    return raw.parent / "data", said


def test_a_download_becomes_a_folder_that_a_run_reads(raw, monkeypatch):
    folder, said = prepare(raw)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["counts"]["train"]["passages"] == 10
    assert manifest["counts"]["train"]["questions"] == 10
    names = {name for name in manifest["files"] if not name.startswith("tokens/")}
    assert names == {"train.jsonl", "val.jsonl", "model/vocab.txt"}
    assert any("NOT the published ReCoRD, which has 100,730 questions" in line for line in said)
    assert "no checkpoint: only init=random will run on this data" in said
    words = len(generated.vocabulary())
    assert (
        f"vocab.txt: {words} tokens; NOT the vocabulary of bert-large-uncased, which has 30,522"
        in said
    )
    monkeypatch.setattr(passages, "tokenise", None)  # prepared: nothing left to tokenise
    assert data.check(folder, RECIPE).train_samples == 10


def test_calling_again_keeps_what_is_sound_and_mends_what_is_not(raw):
    folder, _ = prepare(raw)
    assert "already prepared" in prepare(raw)[1][-1]
    before = (folder / "val.jsonl").read_bytes()
    (folder / "val.jsonl").write_bytes(before[:-2])
    said = prepare(raw)[1]
    assert "writing val.jsonl" in said
    assert "kept train.jsonl: finished before, its sha256 fits" in said
    assert (folder / "val.jsonl").read_bytes() == before


@pytest.mark.parametrize("layout", ["original", "safetensors"])
def test_a_checkpoint_comes_along_as_safetensors(raw, layout, one_thread):
    import torch
    from safetensors.torch import load_file, save_file

    from trainmark.cases.glm_superglue.model import GlmShape, build_model

    shape = GlmShape(
        num_layers=1,
        hidden_size=64,
        num_heads=1,
        vocab_size=TINY.vocab_size,
        max_positions=TINY.seq_length,
    )
    weights = build_model(shape, seed=1).state_dict()
    place = raw / "blocklm"
    place.mkdir()
    if layout == "original":
        (place / "7").mkdir()
        (place / "latest_checkpointed_iteration.txt").write_text("7")
        torch.save({"module": weights}, place / "7" / "mp_rank_00_model_states.pt")
    else:
        save_file({name: weight.clone() for name, weight in weights.items()},
                  place / "model.safetensors")  # fmt: skip
    folder, said = prepare(raw)
    found = load_file(folder / "model" / "model.safetensors")
    names = dict(build_model(shape, seed=2).named_parameters())
    assert found.keys() == names.keys()
    assert all(torch.equal(found[name], weights[name]) for name in names)
    writing = [line for line in said if line.startswith(("writing", "tokenising"))]
    assert writing[0] == "writing model/model.safetensors"  # refused before minutes of tokenising
    recipe = replace(RECIPE, num_layers=1)
    facts = data.check(folder, replace(recipe, init="pretrained"))
    assert facts.quality_comparable
    assert facts.content_id != data.check(folder, replace(recipe, init="random")).content_id


def sparse(raw):
    for name in ("train.jsonl", "val.jsonl"):
        (raw / "ReCoRD" / name).unlink()
    for name in ("train_sparse.hdf5", "eval_sparse.hdf5"):
        (raw / name).write_bytes(b"x")


def another_vocabulary(raw):
    shutil.copytree(raw / "model", raw / "more")


def broken(raw):
    (raw / "ReCoRD" / "train.jsonl").write_text("{}\n")


def pipe(raw):
    (raw / "ReCoRD" / "val.jsonl").unlink()
    os.mkfifo(raw / "ReCoRD" / "val.jsonl")


def no_checkpoint(raw):
    (raw / "blocklm" / "7").mkdir(parents=True)
    (raw / "blocklm" / "latest_checkpointed_iteration.txt").write_text("7")
    (raw / "blocklm" / "7" / "mp_rank_00_model_states.pt").write_bytes(b"noise")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (sparse, "train_sparse.hdf5: not readable as HDF5"),
        (lambda raw: shutil.rmtree(raw / "model"), "no vocabulary"),
        (another_vocabulary, "2 vocabularies: model, more"),
        (lambda raw: (raw / "ReCoRD" / "val.jsonl").unlink(), "no validation split beside train"),
        (broken, "train.jsonl, line 1: no key passage"),
        (pipe, "val.jsonl: cannot be read: not a regular file"),
        (no_checkpoint, "mp_rank_00_model_states.pt: not readable as weights alone"),
    ],
)
def test_what_is_no_download_is_refused_and_leaves_no_folder(raw, damage, message):
    damage(raw)
    with pytest.raises(DataError, match=message):
        prepare(raw)
    assert not (raw.parent / "data").exists()
    if damage is not broken:  # found while tokenising: what is done is kept for the next call
        assert [item.name for item in raw.parent.iterdir()] == ["raw"]
