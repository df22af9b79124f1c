"""What is known of the container a run is in, and what the page prints of it."""

from __future__ import annotations

import json

import pytest

from fakes import GOLDEN
from trainmark.report.page import markdown_page
from trainmark.results.environment import container
from trainmark.results.record import Record

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
    assert container(variables, tmp_path) == dict(zip(names, found, strict=True))


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"container": "docker", "container_version": "20.10.16", "container_image": "pt:1"},
         "- Container: docker 20.10.16, pt:1"),
        ({"container": "docker", "container_version": None, "container_image": "pt:1"},
         "- Container: docker, pt:1"),
        ({"container": None, "container_version": None, "container_image": "pt:1"},
         "- Container: pt:1"),
        ({"container": None, "container_image": None}, "- Container: none"),
    ],
)  # fmt: skip
def test_the_page_prints_kind_version_and_image(environment, shown):
    document = json.loads((GOLDEN / "record_distilbert.json").read_text(encoding="utf-8"))
    document["environment"] |= environment
    assert shown in markdown_page([Record(**document)]).splitlines()
