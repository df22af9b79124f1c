"""Readings of NVIDIA cards during a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.fake_nvml import GIB, H100, FakeCard, put_cards
from trainmark.devices.vendors.nvidia import driver, nvml
from trainmark.devices.vendors.nvidia.nvml import NvmlMonitor
from trainmark.protocols import DeviceSettings, MonitorFault

if TYPE_CHECKING:
    from trainmark.devices.vendors import nvidia


@pytest.mark.parametrize(
    # Bits of nvmlClocksEventReasons; bit 0 is "idle", bit 12 is in no list yet.
    ("mask", "reasons"),
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
def test_throttle_reasons_have_names_and_idle_is_not_one(
    monkeypatch: pytest.MonkeyPatch, mask: int, reasons: tuple[str, ...]
) -> None:
    # Bits by value: 0x2 set_clocks, 0x4 power_cap, 0x8 hardware_slowdown, 0x10 sync_boost, 0x20
    # thermal, 0x40 hardware_thermal, 0x80 power_brake, 0x100 display_clocks. ``put_cards`` lets the
    # library NVML, which the monitor reads, report this card.
    put_cards(monkeypatch, FakeCard(events=mask))
    assert NvmlMonitor().read()[0].throttle_reasons == reasons


def test_all_cards_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    other = FakeCard(
        uuid="GPU-2",
        used=3 * GIB,
        reserved=GIB,
        events=0x21,  # idle, and a thermal reason
        energy_mj=None,
        busy_percent=12,
        ecc=None,
        remapped=None,
        pcie_replays=None,
    )
    put_cards(monkeypatch, FakeCard(), other)
    monitor = NvmlMonitor()
    assert monitor.name == "nvml 13.580.65.06"
    first, second = monitor.read()
    # The made library reports 41 degrees, 123,456 mW, 1755 MHz and version 13.580.65.06 for all
    # cards; None of the second card: not supported.
    # The first card has the default values of ``FakeCard``.
    assert first.known_fields() == {
        "index": 0,
        "name": H100,
        "temperature_c": 41,
        "power_w": pytest.approx(123.456),
        "memory_used_bytes": 0,
        "memory_total_bytes": 80 * GIB,
        "utilization_percent": 97.0,
        "clock_mhz": 1755,
        "throttle_reasons": (),
        "energy_j": pytest.approx(1234.567),
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "remapped_rows": 0,
        "link_replays": 0,
    }
    assert (second.index, second.memory_used_bytes, second.energy_j) == (1, 3 * GIB, None)
    assert second.throttle_reasons == ("thermal",)
    monitor.close()


def test_counters_of_errors_are_read_and_replays_of_all_links_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # ``ecc``: errors of memory that were corrected, and those that were not; ``nvlink``: replays,
    # recoveries and two kinds of CRC errors. The second card supports none of these: None.
    card = FakeCard(ecc=(4, 1), remapped=(2, 3), pcie_replays=10, nvlink=(5, 6, 7, 8))
    put_cards(monkeypatch, card, FakeCard(uuid="GPU-2", ecc=None, remapped=None, pcie_replays=None))

    first, second = NvmlMonitor().read()

    # ``remapped``: rows remapped after correctable errors, and after uncorrectable ones.
    assert (first.ecc_corrected, first.ecc_uncorrected, first.remapped_rows) == (4, 1, 2 + 3)
    # Replays on PCIe and NVLink; all other errors of NVLink.
    assert (first.link_replays, first.link_errors) == (10 + 5, 6 + 7 + 8)
    assert not {"ecc_corrected", "ecc_uncorrected", "remapped_rows", "link_errors"} & set(
        second.known_fields()
    )


def test_last_fault_of_each_card_is_reported_until_a_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulty, sound = FakeCard(), FakeCard(uuid="GPU-2")
    put_cards(monkeypatch, faulty, sound)
    monitor = NvmlMonitor()
    assert [sample.last_fault for sample in monitor.read()] == [None, None]

    # ``xids`` are the numbers of faults (Xid) that the driver reports next, oldest first.
    faulty.xids += [48, 79]

    assert [sample.last_fault for sample in monitor.read()] == ["Xid 79", None]
    assert [sample.last_fault for sample in monitor.read()] == ["Xid 79", None]


def test_lost_card_has_no_readings_and_others_are_still_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # ``lost``: the card does not answer any more. If no card answers, reading is an error. ``H100``
    # is the name of every ``FakeCard``.
    put_cards(monkeypatch, FakeCard(), FakeCard(lost=True), FakeCard(uuid="GPU-3"))
    samples = NvmlMonitor().read()
    assert samples[1].known_fields() == {"index": 1}
    assert [sample.index for sample in samples] == [0, 1, 2]
    assert samples[2].name == H100
    put_cards(monkeypatch, FakeCard(lost=True))
    with pytest.raises(MonitorFault) as caught:
        NvmlMonitor().read()
    assert caught.value.kind == "failed"


def test_ranks_cards_are_found_by_their_bus(
    vendor: nvidia.Nvidia, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA shows the process the third card and then the first one, which is ``seen``."""
    cards = [FakeCard(uuid=f"GPU-{name}") for name in "abc"]
    put_cards(monkeypatch, *cards, seen=[cards[2], cards[0]])
    # For each rank of a machine with so many, the number of its card as the monitor counts all
    # cards. Of three ranks, two have a card.
    assert (vendor.monitored(3), vendor.monitored(1)) == ([2, 0], [2])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert vendor.monitored(3) == []  # without the management library


def test_power_limit_persistence_and_ecc_are_read_for_each_visible_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without arguments a ``FakeCard`` has a power limit of 700 W, which is also the default limit,
    # persistence and ECC; None: the card does not support it. ``seen`` are the cards as CUDA shows
    # them to the process, in this order; ``index`` is the number of a card among all.
    cards = (
        FakeCard(),
        FakeCard(uuid="GPU-2", power_limit_mw=500_000, persistence=0, ecc_mode=0, mig_mode=1),
        FakeCard(uuid="GPU-3", power_limit_mw=None, persistence=None, ecc_mode=None),
    )
    put_cards(monkeypatch, *cards, seen=[cards[1], cards[0], cards[2]])
    settings = [nvml.read_settings(card) for card in driver.list_visible_cards()]
    assert settings == [
        DeviceSettings(
            index=1,
            power_limit_w=500.0,
            default_power_limit_w=700.0,
            persistence=False,
            ecc=False,
            partitioned=True,
        ),
        DeviceSettings(
            index=0,
            power_limit_w=700.0,
            default_power_limit_w=700.0,
            persistence=True,
            ecc=True,
        ),
        DeviceSettings(index=2, default_power_limit_w=700.0),
    ]
    # A card that the management library does not have.
    assert nvml.read_settings(driver.Card("a", "GPU-9", "0000:99:00.0")) is None
