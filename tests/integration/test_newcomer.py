"""A package from outside offers a case, an option of ``prepare`` and a vendor.

The case is the one of docs/adding-a-case.md, so that the page is tried too.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from trainmark.record import record

pytestmark = pytest.mark.nightly

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-case.md"
OPTION = """\
from dataclasses import replace
from trainmark.spec import PrepareOption
CASE = replace(
    CASE,
    prepare_options=(PrepareOption("rows", int, "to train on; default: 64", range(1, 513)),),
)
"""
PREPARE = """\
from types import SimpleNamespace
from .data import ROWS, generate

def prepare(raw, data, say, *, rows=64):
    say(f"{rows} rows, seed {raw.read_text().strip()}")
    ROWS["train"] = rows
    data.mkdir()
    generate(data, SimpleNamespace(seed=int(raw.read_text())))
"""
VENDOR = """\
from trainmark.devices.vendors.cpu import Cpu, CpuDevice

class Abacus(Cpu):
    name = "abacus"
    recorded_variables = ("ABACUS_BEADS",)

    def driver_version(self):
        return "12.3"

    def collective_library(self):
        return "beads 4"

    def open(self, local_rank, ranks_here):
        return AbacusDevice(threads=1)

class AbacusDevice(CpuDevice):
    name = "abacus"
"""


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with the guide's case and a vendor."""
    site = tmp_path / "site"
    info, folder = site / "newcomer-1.0.dist-info", site / "newcomer_line"
    info.mkdir(parents=True)
    folder.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: newcomer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[trainmark.cases]\nline = newcomer_line\n\n"
        "[trainmark.devices]\nabacus = newcomer_device:Abacus\n"
    )
    guide = GUIDE.read_text(encoding="utf-8")
    files = re.findall(r"## `(\w+\.py)`\n.*?```python\n(.*?)```", guide, re.DOTALL)
    assert [name for name, _ in files] == ["case.py", "data.py", "job.py"]
    for name, text in files:
        (folder / name).write_text(text, encoding="utf-8")
    with (folder / "case.py").open("a") as case:
        case.write(OPTION)
    (folder / "prepare.py").write_text(PREPARE)
    (folder / "__init__.py").write_text("")
    (site / "newcomer_device.py").write_text(VENDOR)
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("ABACUS_BEADS", "wood")


@pytest.mark.usefixtures("newcomer")
def test_a_newcomers_case_and_vendor_need_nothing_of_the_core(
    trainmark: Any, tmp_path: Path
) -> None:
    listed = json.loads(trainmark("list", "--json").stdout)
    assert "line" in [case["name"] for case in listed["cases"]]
    assert "abacus" in [device["name"] for device in listed["devices"]]

    (tmp_path / "seed.txt").write_text("7")
    words = ("prepare", "line", "--from", "seed.txt", "--data", "points")
    refused = trainmark(*words, "rows=0")
    assert (refused.returncode, "rows is 0; 1 to 512" in refused.stderr) == (2, True)
    prepared = trainmark(*words, "rows=96")
    assert (prepared.returncode, prepared.stderr) == (0, "96 rows, seed 7\n"), prepared.stderr

    ended = trainmark(
        "run", "line", "--device", "abacus", "--data", "points", "--recipe", "tiny", "--out", "run",
        "--nproc", "2", "target_value=none", "max_epochs=2", "window_steps=1", "warmup_steps=1",
        "bs=16", "--quiet",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    built = record.read(tmp_path / "run")
    assert built.plan.device.vendor == "abacus"
    assert built.plan.data.train_samples == 96
    assert built.environment["driver"] == "12.3"
    assert built.environment["variables"]["ABACUS_BEADS"] == "wood"
    assert "beads 4" in (tmp_path / "run" / "record.json").read_text()
