"""Packages outside their bounds and pairs that do not work, by invented installations."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from machines import machine, only
from trainmark.check.doctor import packages as module
from trainmark.check.doctor.packages import package_pairs, packages


class Installed(NamedTuple):
    """What is read of a package's metadata."""

    version: str
    requires: list[str]


SOUND = {
    "trainmark": Installed(
        "0.1", ["torch>=2.11,<2.14", "transformers>=5.17", 'nvidia-ml-py>=12; extra == "nvidia"',
                'ruff>=9; extra == "dev"']
    ),
    "torch": Installed("2.13.0+cpu", ["sympy>=1.13.3"]),
    "sympy": Installed("1.14.0", []),
    "transformers": Installed(
        "5.17.0", ["tokenizers<0.24.0,>=0.23.1", 'torchvision<1; extra == "vision"']
    ),
    "tokenizers": Installed("0.23.1", []),
    "ruff": Installed("0.1", []),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "severity", "said"),
    [
        ({}, "fine", "5 packages"),
        ({"torch": Installed("2.14.0", [])}, "spoils", "2.14.0 is here"),
        ({"torch": Installed("2.11.0a0+git1", [])}, "spoils", "2.11.0a0+git1"),
        ({"torch": Installed("2.12.0a0+git1", [])}, "fine", "4 packages"),
        ({"torch": None}, "stops", "trainmark needs torch<2.14,>=2.11, which is missing"),
        ({"tokenizers": Installed("0.24.0", [])}, "spoils", "transformers 5.17.0 needs tokenizers"),
        ({"tokenizers": None}, "stops", "tokenizers"),
        ({"sympy": Installed("1.12", [])}, "spoils", "torch 2.13.0+cpu needs sympy"),
        ({"nvidia-ml-py": Installed("13.1", [])}, "fine", "6 packages"),
        ({"nvidia-ml-py": Installed("11.5", [])}, "spoils", "nvidia-ml-py"),
        ({"torchvision": Installed("0.28.0", ["torch==2.13.0"])}, "fine", "6 packages"),
        ({"torchvision": Installed("0.27.0", ["torch==2.12.0"])}, "spoils", "torchvision 0.27.0"),
        ({"torchvision": Installed("0.28.0", ["torch==2.13.0", "pillow"])}, "fine", "6 packages"),
        ({"trainmark": None}, "unknown", "packages"),
    ],
)
def test_bounds_are_compared(tmp_path, monkeypatch, changed, severity, said):
    monkeypatch.setattr(module, "installed", (SOUND | changed).get)
    found = only(packages(machine(tmp_path)))
    assert (found.severity, said in found.what) == (severity, True)


def torch(version: str, **others: str) -> dict[str, Installed]:
    versions = {"torch": version} | {name.replace("_", "-"): v for name, v in others.items()}
    return {name: Installed(version, []) for name, version in versions.items()}


@pytest.mark.parametrize(
    ("here", "broken"),
    [
        (torch("2.13.0"), 0),
        (torch("2.13.0", pynvml="11.5.3"), 0),
        (torch("2.13.0", pynvml="11.5.3", nvidia_ml_py="13.580.65"), 1),
        (torch("2.13.0", pynvml="13.0.1", nvidia_ml_py="13.580.65"), 0),
        (torch("2.13.0", nvidia_ml_py3="7.352.0", nvidia_ml_py="13.580.65"), 1),
    ],
)
def test_pairs_that_do_not_work_are_named(tmp_path, monkeypatch, here, broken):
    monkeypatch.setattr(module, "installed", here.get)
    found = list(package_pairs(machine(tmp_path)))
    assert [one.severity for one in found] == (["spoils"] * broken or ["fine"])
    assert all(one.remedy for one in found if one.severity == "spoils")
