"""Preparing raw SST-2: archives, interruption, damage; no torch."""

import io
import json
import stat
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from trainmark.cases.distilbert_sst2 import data
from trainmark.cases.distilbert_sst2.case import CASE
from trainmark.cases.distilbert_sst2.data import generated
from trainmark.cases.distilbert_sst2.data.model_files import read_config
from trainmark.cases.distilbert_sst2.data.weights import expected_shapes
from trainmark.cases.distilbert_sst2.prepare import prepare as prepare_folder
from trainmark.errors import DataError, EnvironmentFault

RECIPE = replace(CASE.recipes["tiny"], data="real", init="pretrained")
OUTPUTS = [
    "dataset/eval_dataset.npz", "dataset/train_dataset.npz", "model/config.json",
    "model/model.safetensors", "model/tokenizer_config.json", "model/vocab.txt",
]  # fmt: skip


def tsv(split, rows):
    sentences, labels, _ = generated.sentences(split, rows=rows, seed=1)
    lines = [f"{text}\t{label}\n" for text, label in zip(sentences, labels, strict=True)]
    return "sentence\tlabel\n" + "".join(lines)


@pytest.fixture
def raw(tmp_path):
    """A raw folder as people download it: SST-2.zip beside a model folder."""
    folder = tmp_path / "raw"
    folder.mkdir()
    with zipfile.ZipFile(folder / "SST-2.zip", "w") as archive:
        archive.writestr("SST-2/train.tsv", tsv("train", 30))
        archive.writestr("SST-2/dev.tsv", tsv("validation", 7))
        archive.writestr("SST-2/test.tsv", "index\tsentence\n0\tgood\n")
    model = folder / "distilbert-base-uncased"
    generated.write_model_folder(model)
    shapes = expected_shapes(read_config(model))
    save_file({k: np.zeros(s, np.float32) for k, s in shapes.items()}, model / "model.safetensors")
    return folder


def prepare(raw, target):
    said = []
    prepare_folder(raw, target, said.append)
    return said


def snapshot(folder):
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes())
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_a_raw_folder_becomes_the_npz_form_and_says_what_it_is_not(raw, tmp_path):
    said = prepare(raw, tmp_path / "data")
    assert sorted(snapshot(tmp_path / "data")) == ["dataset/eval_dataset.npz",
        "dataset/train_dataset.npz", "manifest.json", *OUTPUTS[2:]]  # fmt: skip
    loaded = data.load(tmp_path / "data", RECIPE)
    train, validation = (int(x.lengths.max()) for x in (loaded.train, loaded.validation))
    assert [line for line in said if "rows" in line] == [
        f"train: 30 rows, longest {train} tokens; NOT the published SST-2, which has 67,349",
        f"validation: 7 rows, longest {validation} tokens; NOT the published SST-2, which has 872",
    ]
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_bytes())
    assert manifest["complete"]
    assert sorted(manifest["files"]) == OUTPUTS
    assert manifest["counts"]["train"] == {"rows": 30, "longest": train, "truncated": 0}
    assert "SST-2.zip" in [item["name"] for item in manifest["sources"]]
    facts = data.check(tmp_path / "data", RECIPE)
    assert (facts.layout, facts.train_samples, facts.eval_samples) == ("npz", 30, 7)
    with np.load(tmp_path / "data" / "dataset" / "train_dataset.npz") as arrays:
        assert set(arrays) == {"idx", "sentence", "label", "input_ids", "attention_mask"}
        assert arrays["input_ids"].shape == (30, 64)  # the tiny model has 64 positions
        assert arrays["sentence"].dtype.kind == "U"
    assert not (tmp_path / ".data.partial").exists()


def test_a_second_call_changes_nothing(raw, tmp_path):
    prepare(raw, tmp_path / "data")
    before = snapshot(tmp_path / "data")
    assert prepare(raw, tmp_path / "data") == [
        f"{tmp_path / 'data'} is already prepared: 6 files checked by sha256"
    ]
    assert snapshot(tmp_path / "data") == before


def test_archives_of_all_kinds_give_the_same_files(raw, tmp_path):
    prepare(raw, tmp_path / "data")
    wanted = {k: v[1] for k, v in snapshot(tmp_path / "data").items() if k != "manifest.json"}
    for suffix in ("tar", "tar.gz", "tgz", "zip"):
        (raw / "unpacked").mkdir(exist_ok=True)
        file = tmp_path / f"everything.{suffix}"
        with zipfile.ZipFile(raw / "SST-2.zip") as inner:
            inner.extractall(raw / "unpacked")
        members = [p for p in sorted(raw.rglob("*")) if p.is_file() and p.suffix != ".zip"]
        if suffix == "zip":
            with zipfile.ZipFile(file, "w") as archive:
                for member in members:
                    archive.write(member, member.relative_to(raw))
        else:
            with tarfile.open(file, "w" if suffix == "tar" else "w:gz") as archive:
                for member in members:
                    archive.add(member, member.relative_to(raw))
        target = tmp_path / f"from-{suffix}"
        prepare(file, target)
        found = {k: v[1] for k, v in snapshot(target).items() if k != "manifest.json"}
        assert found == wanted


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("at", range(6))
def test_an_interrupted_call_goes_on_where_it_stopped(raw, tmp_path, at):
    prepare(raw, tmp_path / "whole")
    written = [0]

    def say(line):
        if line.startswith("writing"):
            if written[0] == at:
                raise Killed
            written[0] += 1

    with pytest.raises(Killed):
        prepare_folder(raw, tmp_path / "data", say)
    assert not (tmp_path / "data").exists()
    said = prepare(raw, tmp_path / "data")
    assert sum(line.startswith("kept") for line in said) == at
    assert sum(line.startswith("writing") for line in said) == 6 - at
    contents = [
        {k: v[1] for k, v in snapshot(tmp_path / name).items()} for name in ("whole", "data")
    ]
    assert contents[0] == contents[1]


def test_a_file_cut_short_in_the_unfinished_folder_is_written_again(raw, tmp_path):
    def say(line):
        if line == "writing model/config.json":
            raise Killed

    with pytest.raises(Killed):
        prepare_folder(raw, tmp_path / "data", say)
    torn = tmp_path / ".data.partial" / "dataset" / "eval_dataset.npz"
    torn.write_bytes(torn.read_bytes()[:100])
    said = prepare(raw, tmp_path / "data")
    assert "writing dataset/eval_dataset.npz" in said
    assert "kept dataset/train_dataset.npz: finished before, its sha256 fits" in said
    assert data.check(tmp_path / "data", RECIPE).eval_samples == 7


def test_a_damaged_finished_folder_is_mended(raw, tmp_path):
    prepare(raw, tmp_path / "data")
    before = {k: v[1] for k, v in snapshot(tmp_path / "data").items()}
    (tmp_path / "data" / "dataset" / "train_dataset.npz").write_bytes(b"PK")
    (tmp_path / "data" / "model" / "vocab.txt").unlink()
    said = prepare(raw, tmp_path / "data")
    assert said[0] == (
        "damaged or missing, written again: dataset/train_dataset.npz, model/vocab.txt"
    )
    assert {k: v[1] for k, v in snapshot(tmp_path / "data").items()} == before


def test_a_prepared_folder_is_itself_a_source(raw, tmp_path):
    prepare(raw, tmp_path / "data")
    prepare(tmp_path / "data", tmp_path / "copy")
    left, right = (data.load(tmp_path / name, RECIPE) for name in ("data", "copy"))
    np.testing.assert_array_equal(left.train.tokens, right.train.tokens)


def fault(raw, target):
    with pytest.raises(DataError) as caught:
        prepare(raw, target)
    assert caught.value.where
    assert caught.value.remedy
    return str(caught.value)


def test_folders_of_others_are_never_written_over(raw, tmp_path):
    target = tmp_path / "data"
    target.mkdir()
    (target / "thesis.txt").write_text("mine")
    assert "was not written by prepare" in fault(raw, target)
    (target / "thesis.txt").unlink()
    prepare(raw, target)  # an empty folder is free
    (raw / "distilbert-base-uncased" / "tokenizer_config.json").write_text("{}")
    assert "was prepared from other raw files" in fault(raw, target)


def test_the_result_never_lies_inside_the_raw_folder(raw):
    assert "lies inside the raw one" in fault(raw, raw / "data")


def test_what_is_missing_is_named_with_its_origin(raw, tmp_path):
    target = tmp_path / "data"
    assert "no such file or folder" in fault(tmp_path / "nowhere", target)
    (tmp_path / "empty").mkdir()
    assert "GLUE benchmark as SST-2.zip" in fault(tmp_path / "empty", target)
    (tmp_path / "notes.txt").write_text("x")
    assert "notes.txt is not an archive" in fault(tmp_path / "notes.txt", target)
    model = raw / "distilbert-base-uncased"
    (model / "config.json").rename(tmp_path / "config")
    message = fault(raw, target)
    assert "no model folder found" in message
    assert "from the model hub as distilbert-base-uncased" in message
    (tmp_path / "config").rename(model / "config.json")
    (raw / "SST-2.zip").rename(tmp_path / "SST-2.zip")
    assert "no SST-2 found" in fault(raw, target)
    for name in ("a", "b"):
        (raw / name).mkdir()
        (raw / name / "train.tsv").write_text(tsv("train", 5))
        (raw / name / "dev.tsv").write_text(tsv("validation", 5))
    assert "SST-2 found 2 times" in fault(raw, target)
    assert not target.exists()


@pytest.mark.parametrize("name", ["../out.txt", "/abs.txt", "a/../../out.txt", "..\\out.txt"])
@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_members_that_lead_out_are_never_written_there(tmp_path, name, suffix):
    file = tmp_path / f"evil.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("fine.txt", "x")
            archive.writestr(name, "x")
    else:
        with tarfile.open(file, "w") as archive:
            for member in ("fine.txt", name):
                info = tarfile.TarInfo(member)
                info.size = 1
                archive.addfile(info, io.BytesIO(b"x"))
    said = fault(file, tmp_path / "data")
    assert "no model folder found" in said or "would be extracted to" in said
    assert [item.name for item in tmp_path.iterdir()] == [file.name]
    assert not list(tmp_path.parent.glob("*out.txt"))
    assert not Path("/abs.txt").exists()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (tarfile.SYMTYPE, "is a link to an absolute path"),
        (tarfile.LNKTYPE, "is a link to an absolute path"),
        (tarfile.FIFOTYPE, "is a special file"),
    ],
)
def test_links_out_and_special_members_are_refused(tmp_path, kind, said):
    file = tmp_path / "evil.tar"
    with tarfile.open(file, "w") as archive:
        info = tarfile.TarInfo("model/vocab.txt")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    message = fault(file, tmp_path / "data")
    assert f"not readable as an archive: 'model/vocab.txt' {said}" in message


def test_a_link_in_a_zip_is_a_file_with_its_text(raw, tmp_path):
    """The library makes no links of it, so nothing outside is read."""
    with zipfile.ZipFile(raw / "SST-2.zip", "a") as archive:
        info = zipfile.ZipInfo("SST-2/tiny/config.json")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, str(raw / "distilbert-base-uncased" / "config.json"))
    (raw / "distilbert-base-uncased" / "config.json").rename(tmp_path / "config.json")
    assert "not readable as JSON" in fault(raw, tmp_path / "data")


def test_a_damaged_archive_is_told(raw, tmp_path):
    file = raw / "SST-2.zip"
    file.write_bytes(file.read_bytes()[:200])
    assert "SST-2.zip: not readable as an archive" in fault(raw, tmp_path / "data")


def test_an_archive_larger_than_the_disk_is_refused(raw, tmp_path, monkeypatch):
    import shutil

    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: real._replace(free=100))
    with pytest.raises(EnvironmentFault, match="the disk has 100 free"):
        prepare(raw, tmp_path / "data")


def test_a_model_without_weights_is_prepared_for_random_ones(raw, tmp_path):
    (raw / "distilbert-base-uncased" / "model.safetensors").unlink()
    said = prepare(raw, tmp_path / "data")
    assert "no weights in the model folder: only init=random will run on this data" in said
    assert not (tmp_path / "data" / "model" / "model.safetensors").exists()


def gz_of(raw, target):
    import tarfile

    with tarfile.open(target, "w:gz") as archive:
        archive.add(raw, arcname="download")
    return target


def test_a_gzip_whose_sum_is_wrong_is_refused(raw, tmp_path):
    archive = gz_of(raw, tmp_path / "raw.tar.gz")
    data = bytearray(archive.read_bytes())
    data[-8] ^= 0xFF  # the CRC of the trailer, which tarfile never reads
    archive.write_bytes(data)
    message = fault(archive, tmp_path / "data")
    assert "not readable as an archive" in message
    assert "CRC" in message
    assert not (tmp_path / ".data.partial").exists()


def test_an_encrypted_zip_is_refused(raw, tmp_path):
    import zipfile

    archive = tmp_path / "raw.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("train.tsv", "sentence\tlabel\nfine\t1\n")
    data = bytearray(archive.read_bytes())
    for start in (data.index(b"PK\x03\x04") + 6, data.index(b"PK\x01\x02") + 8):
        data[start] |= 1  # the flag that says encrypted
    archive.write_bytes(data)
    assert "encrypted" in fault(archive, tmp_path / "data")


@pytest.mark.parametrize("name", ["file/below", "loop/data"])
def test_a_folder_that_cannot_be_written_is_named(raw, tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(EnvironmentFault, match="cannot prepare") as caught:
        prepare_folder(raw, tmp_path / name, lambda _: None)
    assert "--data" in str(caught.value)


def test_two_at_once_are_told(raw, tmp_path):
    def again(_):
        with pytest.raises(EnvironmentFault, match="another prepare is at work"):
            prepare_folder(raw, tmp_path / "data", lambda _: None)

    prepare_folder(raw, tmp_path / "data", again)
    assert not list(tmp_path.glob(".data.*"))


def test_a_manifest_of_another_shape_is_not_ours(raw, tmp_path):
    prepare(raw, tmp_path / "data")
    manifest = tmp_path / "data" / "manifest.json"
    document = json.loads(manifest.read_text())
    del document["sources"]
    manifest.write_text(json.dumps(document))
    assert "was not written by prepare" in fault(raw, tmp_path / "data")
