"""The package of docs/adding-a-device.md: written, installed, and run as the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainmark.record import record
from trainmark.toml_file import read_toml

pytestmark = pytest.mark.nightly

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-device.md"
FILE = re.compile(r"### `([\w.-]+)`\n(?:(?!```|\n#).)*```\w*\n(.*?)```", re.DOTALL)
FILES_OF_THE_PACKAGE = [
    "imaginary-smi.txt",
    "imaginary-smi",
    "imaginary.py",
    "pyproject.toml",
    "test_imaginary.py",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the files that docs/adding-a-device.md prints: a vendor's package.

    Metadata beside them makes its entry points known, as after ``pip install -e .``.
    """
    page = PAGE.read_text(encoding="utf-8")
    files = FILE.findall(page)
    assert [name for name, _ in files] == FILES_OF_THE_PACKAGE
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    project = read_toml(tmp_path / "pyproject.toml")
    info = tmp_path / "trainmark_imaginary-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trainmark-imaginary\nVersion: 1.0")
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in project["project"]["entry-points"].items()
        )
    )
    assert project["tool"]["setuptools"]["py-modules"] == ["imaginary"]
    return tmp_path


@pytest.fixture
def variables(folder: Path) -> dict[str, str]:
    """Environment in which the commands of the page find the vendor's package and both programs."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("trainmark", "pytest"):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {name} "$@"\n')
        (programs / name).chmod(0o755)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "TRAINMARK_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",  # pytest writes no cache into the folder
    }


def test_both_languages_print_the_same_files() -> None:
    """``PAGE`` is the English docs/adding-a-device.md; ``FILE`` finds each file that it prints."""
    chinese = PAGE.with_suffix(".zh.md").read_text(encoding="utf-8")
    assert FILE.findall(chinese) == FILE.findall(PAGE.read_text(encoding="utf-8"))


def test_documented_vendor_package_works(folder: Path, variables: dict[str, str]) -> None:
    """The commands of the page succeed, and the record has what its ``imaginary.py`` reports.

    The page prints the name of the devices, "Imaginary X1", in its files, and the 95.5 W that the
    first one draws; its command gives the peak, 2 TFLOP/s.
    """
    # The only block of commands on the page.
    (script,) = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for words in ("list devices", "run toy --device imaginary", "pytest test_imaginary.py"):
        assert words in script
    process = subprocess.run(
        ["/bin/sh", "-e", "-c", script],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert re.search(r"imaginary +cpu +2 .*Imaginary X1", process.stdout)
    assert "4 passed" in process.stdout  # the tests of test_imaginary.py

    built = record.read_record(folder / "first")
    assert (built.plan.device.vendor, built.plan.nproc) == ("imaginary", 2)
    assert built.plan.device.product_names == ["Imaginary X1"] * 2
    note = built.figures["MFU"].note
    assert note is not None
    assert (note.code, note.args["tflops"]) == ("given_peak", 2.0)
    assert built.environment["variables"]["IMAGINARY_DEVICES"].endswith("/devices")
    lines = (folder / "first" / "telemetry.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    readings = [event for event in events if event["event"] == "devices"]
    # The second device reports no power.
    assert [entry.get("power_w") for entry in readings[0]["devices"]] == [95.5, None]
