"""A case's data and recipe are judged by planning; doctor says it in its own words."""

from __future__ import annotations

import shutil

import pytest

from machines import machine, only
from trainmark import devices
from trainmark.check.doctor import case
from trainmark.devices.vendors.cpu import Cpu
from trainmark.plan.choosing import choose
from trainmark.plan.request import RunRequest
from trainmark.spec import RankMemory


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a machine with a request of a case."""
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))

    def subject(word, *, recipe=None, **readings):
        request = choose(RunRequest(case=word, recipe=recipe, data=readings.get("data"), nproc=1))
        return machine(tmp_path, **({"vendor": Cpu(), "nproc": 1, "choice": request} | readings))

    return subject


def test_generated_data_is_sound(here):
    recipe, data = case.data(here("toy"))
    assert (recipe.code, recipe.severity, recipe.what) == ("recipe", "fine", "tiny fits 1 rank(s)")
    assert (data.code, data.severity) == ("", "fine")  # the runner gives it the check's name
    assert data.what.startswith("4,096 training, 1,000 evaluation samples, generated")


def test_a_missing_folder_stops_a_run_even_in_quick(here, tmp_path):
    found = only(case.data(here("distilbert_sst2", data=tmp_path / "none", quick=True)))
    assert (found.code, found.severity) == ("data", "stops")
    assert str(tmp_path / "none") in found.what
    assert "prepare" in found.remedy


def test_incomplete_data_stops_a_run(here, tmp_path):
    list(case.data(here("toy")))
    (generated,) = (tmp_path / "cache").glob("toy-*")
    shutil.copytree(generated, tmp_path / "data")
    assert [one.severity for one in case.data(here("toy", data=tmp_path / "data"))] == ["fine"] * 2
    for file in sorted((tmp_path / "data").rglob("*"))[:1]:
        file.unlink()
    found = only(case.data(here("toy", data=tmp_path / "data")))
    assert (found.code, found.severity) == ("data", "stops")


def test_a_recipe_that_does_not_fit_stops_a_run(here):
    class Small(Cpu):
        def rank_memory(self, nproc):
            return RankMemory(1 << 20, machine_bytes=1 << 20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "choose", lambda _: Small())
        found = only(case.data(here("gpt_megatron", vendor=Small())))
    assert (found.code, found.severity) == ("recipe", "stops")
    assert "needs about" in found.what
