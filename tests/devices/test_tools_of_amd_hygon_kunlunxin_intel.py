"""What published outputs of the tools mean, number by number, and what damage does to parsers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st

from trainmark.devices.rocm import parse_rocm_smi
from trainmark.devices.vendors.amd import parse_metric, parse_static
from trainmark.devices.vendors.hygon import parse_hy_smi
from trainmark.devices.vendors.intel import parse_discovery, parse_dump
from trainmark.devices.vendors.kunlunxin import parse_xpu_smi
from trainmark.protocols import DeviceSample
from vendor_machines import read_or_fault

if TYPE_CHECKING:
    from collections.abc import Callable

    Parser = Callable[[str], list[DeviceSample]]

RECORDED = Path(__file__).parent / "recorded"
MIB = 1 << 20


def cards(text: str) -> list[DeviceSample]:
    return list(parse_discovery(text).values())


READ: dict[str, tuple[Parser, list[DeviceSample]]] = {
    "rocm-smi/4.3.0-rx6700xt.json": (parse_rocm_smi, [
        DeviceSample(
            index=0, uuid="0000:07:00.0", temperature_c=45.0, power_w=6.0,
            memory_used_bytes=1622728704, memory_total_bytes=12868124672, utilization_percent=0.0,
            clock_mhz=500.0, memory_clock_mhz=96.0,
        ),
    ]),
    "rocm-smi/5-mi250.json": (parse_rocm_smi, [
        DeviceSample(
            index=0, name="AMD INSTINCT MI250 (MCM) OAM AC MBA",
            uuid="2b3c4d5e6f708192 0000:2f:00.0", temperature_c=32.0, power_w=89.0,
            utilization_percent=0.0, clock_mhz=800.0,
            memory_clock_mhz=1600.0, energy_j=962825096.2974429,
        ),
    ]),
    "rocm-smi/6.0.2-mi100.json": (parse_rocm_smi, [
        DeviceSample(
            index=0, name="Arcturus GL-XL [Instinct MI100]", uuid="1a2b3c4d5e6f7081 0000:83:00.0",
            temperature_c=53.0, power_w=36.0, memory_used_bytes=6750208,
            memory_total_bytes=34342961152, utilization_percent=0.0, clock_mhz=300.0,
            memory_clock_mhz=1200.0,
        ),
        DeviceSample(
            index=1, name="Arcturus GL-XL [Instinct MI100]", uuid="92a3b4c5d6e7f801 0000:a3:00.0",
            temperature_c=55.0, power_w=44.0, memory_used_bytes=6750208,
            memory_total_bytes=34342961152, utilization_percent=0.0, clock_mhz=300.0,
            memory_clock_mhz=1200.0,
        ),
    ]),
    "rocm-smi/6.1.2-rx6700xt.json": (parse_rocm_smi, [
        DeviceSample(
            index=0, name="Navi 22 [Radeon RX 6700/6700 XT / 6800M]", uuid="0000:07:00.0",
            temperature_c=45.0, power_w=6.0, memory_used_bytes=1572745216,
            memory_total_bytes=12868124672, utilization_percent=0.0, clock_mhz=0.0,
            memory_clock_mhz=96.0,
        ),
    ]),
    "rocm-smi/6.2.4-radeon780m.json": (parse_rocm_smi, [
        DeviceSample(
            index=0, name="Phoenix3", uuid="0000:c4:00.0", temperature_c=31.0, power_w=7.222,
            utilization_percent=19.0, clock_mhz=800.0, memory_clock_mhz=400.0,
        ),
    ]),
    "rocm-smi/6.2.4-rx7800xt.json": (parse_rocm_smi, [
        DeviceSample(
            index=0, name="Navi 32 [Radeon RX 7700 XT / 7800 XT]", uuid="3c4d5e6f708192a3",
            temperature_c=45.0, power_w=53.0, memory_used_bytes=11615076352,
            memory_total_bytes=17163091968, utilization_percent=100.0,
        ),
    ]),
    "amd-smi/6.2-metric-power.json": (parse_metric, [DeviceSample(index=0, power_w=10.0)]),
    "amd-smi/6-metric-usage-w7700.json": (
        parse_metric, [DeviceSample(index=0, utilization_percent=42.0)]
    ),
    "amd-smi/7-metric-radeon.json": (parse_metric, [
        # THROTTLED at 15 MHz and 1% use: that word says nothing, and an energy of 0 neither.
        DeviceSample(
            index=0, temperature_c=54.0, power_w=12.3, memory_used_bytes=20450 * MIB,
            memory_total_bytes=30576 * MIB, utilization_percent=91.0, clock_mhz=2774.0,
            memory_clock_mhz=1258.0,
        ),
        DeviceSample(
            index=1, temperature_c=31.0, power_w=23.4, memory_used_bytes=57 * MIB,
            memory_total_bytes=32624 * MIB, utilization_percent=1.0, clock_mhz=15.0,
            memory_clock_mhz=96.0,
        ),
    ]),
    "amd-smi/6.3-metric-mi300x.documentation.json": (parse_metric, [
        DeviceSample(
            index=0, temperature_c=44.0, power_w=141.0, memory_used_bytes=283 * MIB,
            memory_total_bytes=196592 * MIB, utilization_percent=0.0, clock_mhz=132.0,
            memory_clock_mhz=1300.0, throttle_reasons=(), energy_j=12345678.901,
        ),
        DeviceSample(
            index=1, temperature_c=44.0, power_w=742.0, memory_used_bytes=121344 * MIB,
            memory_total_bytes=196592 * MIB, utilization_percent=100.0, clock_mhz=1987.0,
            memory_clock_mhz=1300.0, throttle_reasons=("power_cap",), energy_j=22345678.5,
        ),
    ]),
    "amd-smi/7-static-mi300x.json": (
        parse_static,
        [DeviceSample(index=0, name="AMD Instinct MI300X", uuid="4d5e6f708192a3b4 0000:83:00.0")],
    ),
    "amd-smi/6.3-static-mi350x.documentation.json": (
        parse_static, [DeviceSample(index=0, name="AMD Instinct MI350X", uuid="0000:05:00.0")]
    ),
    "hy-smi/23.10.1-z100.txt": (parse_hy_smi, [
        DeviceSample(
            index=index, temperature_c=temperature, power_w=power, utilization_percent=0.0
        )
        for index, (temperature, power) in enumerate(
            [(30.0, 38.0), (30.0, 41.0), (29.0, 38.0), (29.0, 39.0)]
        )
    ]),
    "hy-smi/clocks-z100.txt": (parse_hy_smi, [
        DeviceSample(
            index=0, temperature_c=48.0, power_w=23.0, utilization_percent=0.0, clock_mhz=1319.0,
            memory_clock_mhz=800.0,
        ),
    ]),
    "hy-smi/24.04.3-k100ai.json": (parse_hy_smi, [
        DeviceSample(
            index=0, name="DCU xxxx", uuid="5e6f708192a3b4c5", temperature_c=41.0, power_w=80.0,
            memory_used_bytes=2 * MIB, memory_total_bytes=65520 * MIB, utilization_percent=0.0,
        ),
    ]),
    "hy-smi/bw.txt": (parse_hy_smi, [
        DeviceSample(
            index=0, name="BW", temperature_c=54.0, power_w=91.0, memory_used_bytes=64169 * MIB,
            memory_total_bytes=65520 * MIB, utilization_percent=0.0, clock_mhz=1350.0,
            memory_clock_mhz=1800.0,
        ),
        DeviceSample(
            index=1, name="BW", temperature_c=52.0, power_w=84.0, memory_used_bytes=64104 * MIB,
            memory_total_bytes=65520 * MIB, utilization_percent=0.0, clock_mhz=1350.0,
            memory_clock_mhz=1800.0,
        ),
    ]),
    "hy-smi/26.04-bw1000.txt": (parse_hy_smi, [
        DeviceSample(index=0, temperature_c=50.0, power_w=80.0, utilization_percent=0.0),
        DeviceSample(index=1, temperature_c=52.0, power_w=89.0, utilization_percent=0.0),
    ]),
    "xpu-smi-kunlunxin/5-p800.txt": (parse_xpu_smi, [
        DeviceSample(
            index=index, name="P800 OAM", uuid=serial, temperature_c=temperature, power_w=86.0,
            memory_used_bytes=90440 * MIB, memory_total_bytes=98304 * MIB,
            utilization_percent=0.0, clock_mhz=1450.0,
        )
        for index, serial, temperature in (
            (0, "02K00A000BC00001", 36.0), (1, "02K00A000BC00002", 39.0)
        )
    ]),
    "xpu-smi-kunlunxin/4.33-k200.documentation.txt": (parse_xpu_smi, [
        DeviceSample(
            index=index, name="K200", uuid="K2000A000BC00001", temperature_c=temperature,
            power_w=61.25, memory_used_bytes=used * MIB, memory_total_bytes=8192 * MIB,
            utilization_percent=busy, clock_mhz=900.0,
        )
        for index, temperature, used, busy in ((0, 47.0, 4096, 35.0), (1, 49.0, 512, 0.0))
    ]),
    "xpu-smi-intel/1.0-dump.csv": (parse_dump, [
        DeviceSample(index=0, power_w=14.61, utilization_percent=0.0, clock_mhz=0.0),
    ]),
    "xpu-smi-intel/1.2.36-dump.csv": (parse_dump, [
        DeviceSample(
            index=0, temperature_c=24.0, power_w=43.09, utilization_percent=0.0, clock_mhz=0.0
        ),
    ]),
    "xpu-smi-intel/1.2.39-dump-max1550.csv": (parse_dump, [
        DeviceSample(index=index, temperature_c=temperature, power_w=power, clock_mhz=1600.0)
        for index, (power, temperature) in enumerate([
            (281.13, 35.5), (286.48, 38.5), (281.28, 37.5), (293.19, 37.5), (292.32, 42.5),
            (284.67, 40.5),
        ])
    ]),
    "xpu-smi-intel/2.0-dump.documentation.csv": (parse_dump, [
        DeviceSample(
            index=0, temperature_c=61.0, power_w=118.25, memory_used_bytes=10240 * MIB,
            utilization_percent=97.5, clock_mhz=2400.0,
        ),
        DeviceSample(
            index=1, temperature_c=38.0, power_w=18.5, memory_used_bytes=24 * MIB,
            utilization_percent=0.0, clock_mhz=300.0,
        ),
    ]),
    "xpu-smi-intel/1.3-discovery.documentation.csv": (cards, [
        DeviceSample(
            index=0, name="Intel(R) Data Center GPU Max 1550",
            uuid="00000000-0000-0018-0000-002f0bd58086", memory_total_bytes=131072 * MIB,
        ),
        DeviceSample(
            index=1, name="Intel(R) Data Center GPU Max 1550",
            uuid="00000000-0000-003a-0000-002f0bd58086", memory_total_bytes=131072 * MIB,
        ),
    ]),
}  # fmt: skip
PARSERS: list[Parser] = [
    parse_rocm_smi, parse_metric, parse_static, parse_hy_smi, parse_xpu_smi, parse_dump, cards,
]  # fmt: skip
TEXTS = {name: (RECORDED / name).read_text() for name in READ}


@pytest.mark.parametrize("name", READ)
def test_a_recorded_output_is_read_number_by_number(name: str) -> None:
    parse, samples = READ[name]
    assert read_or_fault(parse, TEXTS[name]) == samples


def test_every_recorded_output_is_tested_and_has_its_source() -> None:
    folders = ("rocm-smi", "amd-smi", "hy-smi", "xpu-smi-kunlunxin", "xpu-smi-intel")
    files = {
        str(file.relative_to(RECORDED))
        for folder in folders
        for file in (RECORDED / folder).iterdir()
    }
    assert files == set(READ)
    sources = (RECORDED / "SOURCES.md").read_text()
    assert [name for name in files if f"`{name}`" not in sources] == []


def test_a_second_die_without_power_of_its_own_has_none() -> None:
    told = {"card0": {"Average Graphics Package Power (W)": "237.0"}}
    told["card1"] = {"Average Graphics Package Power (W)": "N/A (Secondary die)"}
    assert [one.power_w for one in parse_rocm_smi(json.dumps(told))] == [237.0, None]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", "1", '"card0"', '{"gpu_data": {}}', '[{"gpu": "x"}]',
     '[{"gpu": -1}]', "No devices", "DCU  Temp   AvgPwr\n", "Timestamp, DeviceId\n",
     "Device ID,Device Name\n"],
)  # fmt: skip
@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
def test_what_names_no_device_is_unreadable_or_empty(parse: Parser, text: str) -> None:
    assert read_or_fault(parse, text) == []


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(
    ["card0", "card1", "gpu_data", "gpu", "power", "socket_power", "value", "unit", "usage",
     "gfx_activity", "energy", "total_energy_consumption", "throttle", "ppt_violation_status",
     "temperature", "edge", "clock", "gfx_0", "clk", "asic", "market_name", "asic_serial", "bdf",
     "GPU use (%)", "Unique ID", "Card Series", "VRAM Total Memory (B)", "sclk clock speed:"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
