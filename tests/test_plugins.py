"""Cases and vendors that other installed packages offer."""

from __future__ import annotations

import sys

import pytest

from trainmark import cases, devices, plugins
from trainmark.cli.app import main
from trainmark.errors import EnvironmentFault


@pytest.fixture
def installed_package(tmp_path, monkeypatch):
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
        "from trainmark.devices.vendors.cpu import Cpu\nclass Abacus(Cpu):\n    name = 'abacus'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugins._has_any_plugin.cache_clear()  # it may have looked before the package was there
    yield
    plugins._has_any_plugin.cache_clear()
    sys.modules.pop("elsewhere_device", None)


@pytest.mark.usefixtures("installed_package")
def test_case_of_a_package_is_found_by_name_and_alias():
    # The installed package offers the case ``play`` with the alias ``spiel``.
    assert "play" in cases.list_names()
    assert cases.load("play").name == "play"
    assert cases.load("spiel") is cases.load("play")


BROKEN = {
    "raise RuntimeError('no driver')": "cannot be used: RuntimeError: no driver",
    "class Abacus:\n    name = 'abacus'\n    torch_type = 'cpu'": (
        "the vendor lacks collective_backend, visible_devices, recorded_variables, counts_cores, "
        "count, product_names, rank_memory, refuse, driver_version, open, collective_library, "
        "monitor, monitored"
    ),
    "from trainmark.devices.vendors.cpu import Cpu as Abacus": (
        "the name cpu is already taken by another vendor"
    ),
}


@pytest.mark.usefixtures("installed_package")
@pytest.mark.parametrize("source", BROKEN)
def test_a_vendor_that_fails_is_named_and_skipped(tmp_path, monkeypatch, source, capsys):
    # The installed package offers the vendor ``abacus``; its module gets a source that cannot be
    # used. ``BROKEN``: the error that each source causes.
    (tmp_path / "elsewhere_device.py").write_text(source)
    monkeypatch.delitem(sys.modules, "elsewhere_device", raising=False)
    known, (fault,) = devices.load_all()
    assert "abacus" not in known
    assert fault.where == "device abacus of elsewhere (elsewhere_device:Abacus)"
    assert fault.what.startswith(f"skipped: {BROKEN[source]}")
    # Other vendors work as before; only who asks for this vendor gets the error.
    assert devices.choose_vendor("cpu").name == "cpu"
    with pytest.raises(EnvironmentFault) as caught:
        devices.choose_vendor("abacus")
    assert caught.value.what == fault.what
    # Commands that need no such device succeed, and print the fault as a warning.
    for args in (["list", "devices"], ["run", "toy", "--dry-run"]):
        monkeypatch.setattr(sys, "argv", ["trainmark", *args])
        monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        assert str(fault) in capsys.readouterr().err


@pytest.mark.usefixtures("installed_package")
def test_vendor_of_a_package_precedes_the_cpu():
    assert list(devices.list_vendors())[-2:] == ["abacus", "cpu"]
    assert devices.choose_vendor("abacus").name == "abacus"
