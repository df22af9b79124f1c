"""What is known of the container a run is in, and what the page prints of it."""

from __future__ import annotations

import json

import pytest

from fakes import GOLDEN
from trainmark import devices
from trainmark.pages.page import markdown_page
from trainmark.record import environment
from trainmark.record.environment import container
from trainmark.record.record import Record

PODMAN = (
    'engine="podman-4.9.3"\nname="quiet_bell"\nid="0af3"\n'
    'image="quay.io/team/train:1.2"\nimageid="9bc1"\nrootless=0\n'
)
TOLD = {
    "TRAINMARK_CONTAINER_VERSION": "20.10.16",
    "TRAINMARK_CONTAINER_IMAGE": "nvcr.io/nvidia/pytorch:25.06-py3",
}


@pytest.mark.parametrize(
    ("files", "variables", "found"),
    [
        ({}, {}, (None, None, None)),
        ({".dockerenv": ""}, {}, ("docker", None, None)),
        ({".dockerenv": ""}, TOLD, ("docker", "20.10.16", "nvcr.io/nvidia/pytorch:25.06-py3")),
        ({"run/.containerenv": PODMAN}, {}, ("podman", "4.9.3", "quay.io/team/train:1.2")),
        ({"run/.containerenv": ""}, {"container": "podman"}, ("podman", None, None)),
        ({"run/.containerenv": PODMAN}, TOLD,
         ("podman", "20.10.16", "nvcr.io/nvidia/pytorch:25.06-py3")),
        ({}, {"APPTAINER_NAME": "torch.sif", "SINGULARITY_NAME": "torch.sif"},
         ("apptainer", None, "torch.sif")),
        ({}, {"SINGULARITY_NAME": "torch.sif"}, ("singularity", None, "torch.sif")),
        ({}, {"container": "lxc"}, ("lxc", None, None)),
    ],
)  # fmt: skip
def test_a_container_is_told_by_its_traces_and_by_variables(tmp_path, files, variables, found):
    (tmp_path / "run").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    names = ("container", "container_version", "container_image")
    told = dict(zip(names, found, strict=True))
    assert container(variables, tmp_path) == told | {"container_digest": None}


def test_the_digest_of_the_image_is_the_launchers_word(tmp_path):
    told = container({"TRAINMARK_CONTAINER_DIGEST": "sha256:12"}, tmp_path)
    assert told["container_digest"] == "sha256:12"
    named = container({"TRAINMARK_CONTAINER_IMAGE": "registry.example/pt@sha256:34"}, tmp_path)
    assert named["container_digest"] == "sha256:34"


def test_the_package_index_is_recorded_without_its_password(monkeypatch):
    monkeypatch.setattr(environment, "suite_commit", lambda: None)
    cpu = devices.all_vendors()["cpu"]
    told = environment.collect({"PIP_INDEX_URL": "https://me:secret@pypi.example/simple"}, cpu)
    assert told["pip_index"] == "https://<credentials>@pypi.example/simple"
    assert environment.collect({}, cpu)["pip_index"] is None


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"container": "docker", "container_version": "20.10.16", "container_image": "pt:1"},
         "- Container: docker 20.10.16, pt:1"),
        ({"container": "docker", "container_version": None, "container_image": "pt:1"},
         "- Container: docker, pt:1"),
        ({"container": None, "container_version": None, "container_image": "pt:1"},
         "- Container: pt:1"),
        ({"container": "podman", "container_image": "pt:1", "container_digest": "r/pt@sha256:12"},
         "- Container: podman, pt:1, sha256:12"),
        ({"container": None, "container_image": None}, "- Container: none"),
    ],
)  # fmt: skip
def test_the_page_prints_kind_version_and_image(told, shown):
    document = json.loads((GOLDEN / "record_distilbert.json").read_text(encoding="utf-8"))
    document["environment"] |= told
    assert shown in markdown_page([Record(**document)]).splitlines()
