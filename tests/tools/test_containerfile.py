"""The Containerfile: what it copies is there, and its versions are the tested ones."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from trainmark.toml_file import read_toml

ROOT = Path(__file__).parents[2]
TARGETS = ("cpu", "cuda")


def read_instructions() -> list[list[str]]:
    """Return each instruction of the Containerfile as its first word and the rest of its line.

    Lines that end with a backslash are joined with the next one; comments are left out.
    """
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [line.split(maxsplit=1) for line in joined if line.strip()]


def read_stages() -> dict[str, list[list[str]]]:
    """Return the instructions of each stage by its name, with those of the stage it is built on."""
    stage_instructions: dict[str, list[list[str]]] = {}
    name = ""
    for word, arguments in read_instructions():
        if word == "FROM":
            source, _, name = arguments.partition(" AS ")
            stage_instructions[name] = list(stage_instructions.get(source, []))
        elif name:
            stage_instructions[name].append([word, arguments])
    return stage_instructions


def list_instructions(stage: str, word: str) -> list[str]:
    """Return the arguments of each instruction ``word``, such as RUN, of a stage of the build."""
    return [arguments for name, arguments in read_stages()[stage] if name == word]


def read_python_version() -> str:
    """Return VERSION of the first argument, the image's tag: ``ARG NAME=VERSION-SYSTEM``."""
    values = [
        arguments.partition("=")[2] for word, arguments in read_instructions() if word == "ARG"
    ]
    return values[0].partition("-")[0]


def read_lock() -> dict[str, str]:
    """Return the pinned version of each package."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = [line.split("==") for line in lines if not line.lstrip().startswith("#")]
    return {name: version for name, version in pinned}  # noqa: C416 - a line without == fails


def test_there_is_a_target_for_each_kind_of_device() -> None:
    assert list(read_stages()) == ["base", *TARGETS]


@pytest.mark.parametrize("target", TARGETS)
def test_copied_files_exist_and_are_not_ignored(target: str) -> None:
    copied = {
        source
        for arguments in list_instructions(target, "COPY")
        for source in arguments.split()[:-1]
    }
    assert copied == {"requirements.lock", "pyproject.toml", "README.md", "LICENSE", "src"}
    # ``TARGETS`` are the two images, for the processor and for an accelerator.
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    # After a comment: everything is ignored but the names that follow with ``!``.
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("target", TARGETS)
def test_all_versions_equal_those_of_the_lock(target: str) -> None:
    # ``target``: one of two images, for the processor or for an accelerator, which the
    # Containerfile builds.
    runs = " ".join(list_instructions(target, "RUN"))
    assert "pip install --requirement requirements.lock" in runs
    assert "pip install --no-deps --no-build-isolation ." in runs
    # No other version is named in a command.
    assert not re.search(r"==\s*\d|[\w-]+[<>~]=", runs)
    # The lock has a version of each package that the project needs with the image's Python, and it
    # lies in the range that the project allows.
    project = read_toml(ROOT / "pyproject.toml")["project"]
    for needed in map(Requirement, project["dependencies"]):
        if needed.marker is None or needed.marker.evaluate(
            {"python_version": read_python_version()}
        ):
            assert needed.specifier.contains(read_lock()[needed.name]), needed


def test_cpu_build_has_the_torch_version_of_the_lock() -> None:
    # The image for the processor installs torch first, from another index.
    # The command within "$(…)" prints the requirement of torch.
    (words,) = re.findall(r'"\$\((.*?)\)"', " ".join(list_instructions("cpu", "RUN")))
    result = subprocess.run(
        shlex.split(words), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == f"torch=={read_lock()['torch']}\n"


def test_python_version_is_supported_by_the_project() -> None:
    project = read_toml(ROOT / "pyproject.toml")["project"]
    assert SpecifierSet(project["requires-python"]).contains(read_python_version())
    assert f"Programming Language :: Python :: {read_python_version()}" in project["classifiers"]
