"""What the NVIDIA vendor reads of its cards while they work, and of their state before."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from fake_nvml import GIB, H100, FakeCard, put_cards
from trainmark.devices.vendors.nvidia.nvml import NvmlMonitor
from trainmark.protocols import MonitorFault
from trainmark.record.messages import render
from trainmark.spec import Message

if TYPE_CHECKING:
    from trainmark.devices.vendors import nvidia


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, ()),
        (0x1, ()),
        (0x4, ("power_cap",)),
        (0x24, ("power_cap", "thermal")),
        (0x48, ("hardware_slowdown", "hardware_thermal")),
        (0x193, ("set_clocks", "sync_boost", "power_brake", "display_clocks")),
        (0x1001, ("other",)),
    ],
)
def test_reasons_are_words_and_idle_is_none(
    monkeypatch: pytest.MonkeyPatch, mask: int, words: tuple[str, ...]
) -> None:
    put_cards(monkeypatch, FakeCard(events=mask))
    assert NvmlMonitor().read()[0].throttle_reasons == words


def test_the_library_tells_every_card(monkeypatch: pytest.MonkeyPatch) -> None:
    other = FakeCard(uuid="GPU-2", used=3 * GIB, reserved=GIB, events=0x21, energy_mj=None,
                     busy_percent=12)  # fmt: skip
    put_cards(monkeypatch, FakeCard(), other)
    monitor = NvmlMonitor()
    assert monitor.name == "nvml 13.580.65.06"
    first, second = monitor.read()
    assert first.known() == {
        "index": 0, "name": H100,
        "temperature_c": 41, "power_w": pytest.approx(123.456), "memory_used_bytes": 0,
        "memory_total_bytes": 80 * GIB, "utilization_percent": 97.0, "clock_mhz": 1755,
        "throttle_reasons": (), "energy_j": pytest.approx(1234.567),
    }  # fmt: skip
    assert (second.index, second.memory_used_bytes, second.energy_j) == (1, 3 * GIB, None)
    assert second.throttle_reasons == ("thermal",)
    monitor.close()


def test_a_lost_card_tells_nothing_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    put_cards(monkeypatch, FakeCard(), FakeCard(lost=True), FakeCard(uuid="GPU-3"))
    samples = NvmlMonitor().read()
    assert samples[1].known() == {"index": 1}
    assert [sample.index for sample in samples] == [0, 1, 2]
    assert samples[2].name == H100
    put_cards(monkeypatch, FakeCard(lost=True))
    with pytest.raises(MonitorFault) as caught:
        NvmlMonitor().read()
    assert caught.value.kind == "failed"


def test_ranks_cards_are_found_by_their_bus(
    vendor: nvidia.Nvidia, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [FakeCard(uuid=f"GPU-{name}") for name in "abc"]
    put_cards(monkeypatch, *cards, seen=[cards[2], cards[0]])
    assert (vendor.monitored(3), vendor.monitored(1)) == ([2, 0], [2])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert vendor.monitored(3) == []


def said(vendor: nvidia.Nvidia, found: str | Message, lang: str = "en") -> str:
    assert isinstance(found, Message)
    return render(found, lang, vendor.messages)


def states(vendor: nvidia.Nvidia, nproc: int = 1) -> dict[str, str]:
    return {one.code: one.severity for one in vendor.conditions(nproc)}


FINE = {"device_state": "fine"}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"set_mhz": 1410}, "clocks"),
        ({"events": 0x2}, "clocks"),
        ({"limit_mw": 500_000}, "power_limit"),
        ({"events": 0x40}, "throttling"),
        ({"persistent": False}, "persistence"),
        ({"slices": []}, "mig"),
    ],
)
def test_each_state_that_spoils_figures_is_found(
    vendor: nvidia.Nvidia, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], code: str
) -> None:
    put_cards(monkeypatch, FakeCard(events=0x5))  # at rest a power cap says nothing
    assert hasattr(vendor, "conditions")
    assert states(vendor) == FINE
    put_cards(monkeypatch, FakeCard(**changed))
    assert states(vendor) == {code: "spoils"}
    (found,) = vendor.conditions(1)
    assert said(vendor, found.what).startswith("card 0: ")
    for text in (found.what, found.remedy):  # has a sentence, and all of its values
        assert "nvidia." not in said(vendor, text)
        assert said(vendor, text, "zh") != said(vendor, text)


def test_the_same_state_of_several_cards_is_one_condition(
    vendor: nvidia.Nvidia, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_cards(monkeypatch, FakeCard(persistent=False), FakeCard(uuid="GPU-2", persistent=False),
              FakeCard(uuid="GPU-3", limit_mw=500_000, persistent=None))  # fmt: skip
    found = {one.code: one for one in vendor.conditions(3)}
    assert list(found) == ["persistence", "power_limit"]
    assert said(vendor, found["persistence"].what).startswith("card 0, 1: ")
    limited = found["power_limit"]
    assert said(vendor, limited.what) == "card 2: power limit 500 W below the default 700 W"
    assert said(vendor, limited.remedy) == "`nvidia-smi --power-limit=700`"


def test_a_card_that_does_not_answer_stops_a_run(
    vendor: nvidia.Nvidia, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_cards(monkeypatch, FakeCard(lost=True), seen=[])
    assert states(vendor) == {"device_state": "stops"}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert states(vendor) == {"device_state": "unknown"}
