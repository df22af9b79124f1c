"""The container of a run is recognized and described."""

from __future__ import annotations

import pytest

from trainmark.launch.environment import describe_container

PODMAN = (
    'engine="podman-4.9.3"\nname="quiet_bell"\nid="0af3"\n'
    'image="quay.io/team/train:1.2"\nimageid="9bc1"\nrootless=0\n'
)
CONTAINER_VARIABLES = {
    "TRAINMARK_CONTAINER_VERSION": "20.10.16",
    "TRAINMARK_CONTAINER_IMAGE": "nvcr.io/nvidia/pytorch:25.06-py3",
}


@pytest.mark.parametrize(
    ("files", "variables", "container"),
    [
        ({}, {}, (None, None, None)),
        ({".dockerenv": ""}, {}, ("docker", None, None)),
        (
            {".dockerenv": ""},
            CONTAINER_VARIABLES,
            ("docker", "20.10.16", "nvcr.io/nvidia/pytorch:25.06-py3"),
        ),
        ({"run/.containerenv": PODMAN}, {}, ("podman", None, None)),
        ({"run/.containerenv": ""}, {"container": "podman"}, ("podman", None, None)),
        (
            {"run/.containerenv": PODMAN},
            CONTAINER_VARIABLES,
            ("podman", "20.10.16", "nvcr.io/nvidia/pytorch:25.06-py3"),
        ),
        (
            {},
            {"APPTAINER_NAME": "torch.sif", "SINGULARITY_NAME": "torch.sif"},
            ("apptainer", None, "torch.sif"),
        ),
        ({}, {"SINGULARITY_NAME": "torch.sif"}, ("singularity", None, "torch.sif")),
        ({}, {"container": "lxc"}, ("lxc", None, None)),
    ],
)
def test_container_is_recognized_by_its_files_and_variables(tmp_path, files, variables, container):
    """``files``: below the machine's root; ``container``: its runtime, version and image.

    ``CONTAINER_VARIABLES`` state the version and the image; the text ``PODMAN``, the file of a
    real podman with an image of its own, does not count: only that the file is there.
    """
    (tmp_path / "run").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    runtime, version, image = container
    assert describe_container(variables, tmp_path) == {
        "container": runtime,
        "container_version": version,
        "container_image": image,
        "container_digest": None,
    }
