"""Cases and vendors that other installed packages offer."""

from __future__ import annotations

import pytest

from trainmark import cases, devices, plugins


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that offers the toy case under another name, and a vendor."""
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[trainmark.cases]\nplay = elsewhere_play\n\n"
        "[trainmark.devices]\nabacus = elsewhere_device:Abacus\n"
    )
    folder = tmp_path / "elsewhere_play"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "case.py").write_text(
        "from dataclasses import replace\n"
        "from trainmark.cases.toy.case import CASE as TOY\n"
        "CASE = replace(TOY, name='play', aliases=('spiel',))\n"
    )
    (tmp_path / "elsewhere_device.py").write_text(
        "from trainmark.devices.cpu import Cpu\nclass Abacus(Cpu):\n    name = 'abacus'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugins._anybody_offers.cache_clear()
    yield
    plugins._anybody_offers.cache_clear()


def test_nothing_is_offered_by_default():
    plugins._anybody_offers.cache_clear()
    assert plugins.offered("trainmark.cases") == []


@pytest.mark.usefixtures("package")
def test_a_packages_case_is_found_by_name_and_alias():
    assert "play" in cases.names()
    assert cases.load("play").name == "play"
    assert cases.load("spiel") is cases.load("play")


@pytest.mark.usefixtures("package")
def test_a_packages_vendor_is_found_before_the_cpu():
    assert list(devices.vendors()) == ["cuda", "abacus", "cpu"]
    assert devices.choose("abacus").name == "abacus"
