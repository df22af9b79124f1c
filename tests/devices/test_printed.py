"""What recorded tables and lists of five vendors' tools say, and what damaged ones do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.devices.vendors.ascend import parse_npu_smi
from trainmark.devices.vendors.cambricon import parse_cnmon, parse_cnmon_info
from trainmark.devices.vendors.iluvatar import parse_ixsmi, parse_ixsmi_csv
from trainmark.devices.vendors.metax import parse_mx_smi
from trainmark.devices.vendors.mthreads import parse_mthreads_gmi, parse_mthreads_gmi_q
from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from collections.abc import Callable

    Parse = Callable[[str], list[DeviceSample]]

RECORDED = Path(__file__).parent / "recorded"
MIB = 1 << 20
FILES: dict[str, Parse] = {
    "npu-smi/20.2.0.txt": parse_npu_smi,
    "npu-smi/22.0.3.1.txt": parse_npu_smi,
    "npu-smi/23.0.3.txt": parse_npu_smi,
    "npu-smi/24.1.rc3.7.txt": parse_npu_smi,
    "npu-smi/25.5.1.txt": parse_npu_smi,
    "cnmon/4.20.11.txt": parse_cnmon,
    "cnmon/5.10.13.txt": parse_cnmon,
    "cnmon/5.10.31.txt": parse_cnmon,
    "cnmon/4.20.18-info.txt": parse_cnmon_info,
    "cnmon/5.10.22-info.txt": parse_cnmon_info,
    "ixsmi/3.0.1.txt": parse_ixsmi,
    "ixsmi/3.1.1.txt": parse_ixsmi,
    "ixsmi/4.1.0.txt": parse_ixsmi,
    "ixsmi/unknown.csv": parse_ixsmi_csv,
    "mthreads-gmi/driver-2.7.0-q.txt": parse_mthreads_gmi_q,
    "mthreads-gmi/2.0.0.txt": parse_mthreads_gmi,
    "mthreads-gmi/2.4.1.txt": parse_mthreads_gmi,
    "mx-smi/2.1.6.txt": parse_mx_smi,
    "mx-smi/2.2.4.txt": parse_mx_smi,
    "mx-smi/2.2.8.txt": parse_mx_smi,
    "mx-smi/2.2.9.txt": parse_mx_smi,
}


def text(file: str) -> str:
    return (RECORDED / file).read_text()


def told(file: str) -> list[DeviceSample]:
    return FILES[file](text(file))


def column(samples: list[DeviceSample], name: str) -> list[object]:
    return [getattr(sample, name) for sample in samples]


def test_every_recorded_file_is_read_and_has_its_source_named() -> None:
    tools = {Path(file).parts[0] for file in FILES}
    here = {
        f"{path.parent.name}/{path.name}" for tool in tools for path in (RECORDED / tool).iterdir()
    }
    assert here == set(FILES)
    sources = (RECORDED / "SOURCES.md").read_text()
    assert [file for file in FILES if f"`{file}`" not in sources] == []


@pytest.mark.parametrize("file", FILES)
def test_devices_are_numbered_from_0_without_gaps(file: str) -> None:
    samples = told(file)
    assert column(samples, "index") == list(range(len(samples)))
    assert column(samples, "energy_j") == [None] * len(samples)
    assert column(samples, "throttle_reasons") == [None] * len(samples)


def test_a_310_card_has_four_chips() -> None:
    first, *_, last = samples = told("npu-smi/20.2.0.txt")
    assert len(samples) == 4
    assert first == DeviceSample(
        index=0, name="310", temperature_c=56.0, power_w=12.8, memory_used_bytes=2703 * MIB,
        memory_total_bytes=8192 * MIB, utilization_percent=0.0,
    )  # fmt: skip
    assert last.temperature_c == 55.0


def test_the_memory_of_a_910a_is_its_hbm_not_the_hosts() -> None:
    samples = told("npu-smi/22.0.3.1.txt")
    assert column(samples, "name") == ["910A"] * 8
    assert column(samples, "memory_used_bytes") == [0] * 8
    assert column(samples, "memory_total_bytes") == [32768 * MIB] * 8
    assert column(samples, "power_w") == [67.2, 63.3, 64.8, 191.7, 66.4, 62.7, 64.5, 191.4]
    assert column(samples, "temperature_c") == [43, 38, 34, 42, 44, 33, 35, 40]


def test_cards_of_a_container_are_numbered_as_torch_numbers_them() -> None:
    """The container has cards 12 to 15; processes are in a table of their own."""
    samples = told("npu-smi/23.0.3.txt")
    assert column(samples, "index") == [0, 1, 2, 3]
    assert column(samples, "memory_used_bytes") == [m * MIB for m in (52675, 52665, 52667, 52665)]
    assert samples[1] == DeviceSample(
        index=1, name="910B2C", temperature_c=55.0, power_w=100.7, memory_used_bytes=52665 * MIB,
        memory_total_bytes=65536 * MIB, utilization_percent=0.0,
    )  # fmt: skip


def test_two_chips_of_a_910c_card_share_a_power_reading() -> None:
    samples = told("npu-smi/24.1.rc3.7.txt")
    assert len(samples) == 16
    assert column(samples, "power_w") == [
        178.9, None, 186.1, None, 176.3, None, 177.9, None,
        180.9, None, 189.1, None, 183.0, None, 186.2, None,
    ]  # fmt: skip
    assert (samples[15].name, samples[15].temperature_c) == ("Ascend910", 37.0)
    assert samples[15].memory_used_bytes == 3188 * MIB


def test_two_chips_of_a_310p_card_tell_no_power() -> None:
    samples = told("npu-smi/25.5.1.txt")
    assert column(samples, "name") == ["310P3"] * 8
    assert column(samples, "power_w") == [None] * 8
    assert column(samples, "temperature_c") == [49, 45, 46, 46, 47, 48, 48, 46]
    assert column(samples, "memory_used_bytes") == [
        m * MIB for m in (1448, 1511, 1384, 1572, 1863, 1105, 1694, 1269)
    ]
    assert column(samples, "memory_total_bytes") == [m * MIB for m in (44278, 43693)] * 4


def test_cnmon_of_two_generations() -> None:
    old, new = told("cnmon/4.20.11.txt"), told("cnmon/5.10.13.txt")
    assert column(old, "power_w") == [30, 25, 26]
    assert column(old, "temperature_c") == [32, 33, 30]
    assert column(old, "memory_total_bytes") == [23308 * MIB] * 3  # not the virtual memory's
    assert new == [
        DeviceSample(
            index=index, name="MLU370-X8", temperature_c=celsius, power_w=106.0,
            memory_used_bytes=0, memory_total_bytes=23374 * MIB, utilization_percent=0.0,
        )
        for index, celsius in enumerate((32.0, 39.0))
    ]  # fmt: skip


def test_a_memory_that_is_not_a_number_is_not_told() -> None:
    samples = told("cnmon/5.10.31.txt")
    assert column(samples, "memory_total_bytes") == [None] * 8
    assert column(samples, "memory_used_bytes") == [0] * 8
    assert column(samples, "power_w") == [105, 100, 100, 109, 107, 105, 102, 105]


def test_the_list_of_cnmon_info() -> None:
    first, second = told("cnmon/5.10.22-info.txt")
    assert first == DeviceSample(
        index=0, name="MLU370-X4", uuid="77013006-2457-0000-0000-000000000000",
        temperature_c=78.0, power_w=44.0, memory_used_bytes=17320 * MIB,
        memory_total_bytes=23308 * MIB, utilization_percent=66.0,
    )  # fmt: skip
    assert (second.temperature_c, second.utilization_percent, second.uuid) == (51.0, 5.0, None)
    (old,) = told("cnmon/4.20.18-info.txt")
    assert (old.name, old.temperature_c, old.power_w) == ("MLU370-S4", 49.0, 38.0)


def test_the_card_of_the_founding_page() -> None:
    assert told("ixsmi/3.1.1.txt") == [
        DeviceSample(
            index=0, name="Iluvatar BI-V100", temperature_c=30.0, power_w=40.0,
            memory_used_bytes=257 * MIB, memory_total_bytes=32768 * MIB, utilization_percent=0.0,
            clock_mhz=1500.0, memory_clock_mhz=1200.0,
        )
    ]  # fmt: skip


def test_a_card_that_does_not_answer_has_no_power_of_65535_watts() -> None:
    samples = told("ixsmi/3.0.1.txt")
    assert column(samples, "power_w") == [55, None, 57, 55]
    assert column(samples, "clock_mhz") == [1500, 25, 1500, 1500]
    assert column(samples, "utilization_percent") == [0, 100, 0, 0]


def test_the_second_chip_of_a_bi_v150_tells_the_cards_power() -> None:
    samples = told("ixsmi/4.1.0.txt")
    assert column(samples, "power_w") == [
        None, 93, None, 94, None, 98, None, 95, None, 95, None, 94, None, 93, None, 94,
    ]  # fmt: skip
    assert column(samples, "memory_clock_mhz") == [1600.0] * 16


def test_the_csv_of_ixsmi() -> None:
    samples = told("ixsmi/unknown.csv")
    assert column(samples, "name") == ["Iluvatar MR-V50", "Iluvatar MR-V100"]
    assert column(samples, "memory_used_bytes") == [116 * MIB, 27996 * MIB]
    assert column(samples, "memory_total_bytes") == [16384 * MIB, 32768 * MIB]
    assert column(samples, "temperature_c") == [30, 36]


def test_the_list_of_mthreads_gmi() -> None:
    assert told("mthreads-gmi/driver-2.7.0-q.txt") == [
        DeviceSample(
            index=0, name="MTT S90", uuid="00000000-1111-2222-3333-444444444444",
            temperature_c=61.0, power_w=153.59, memory_used_bytes=0,
            memory_total_bytes=24576 * MIB, utilization_percent=0.0, clock_mhz=1600.0,
            memory_clock_mhz=2003.0,
        )
    ]  # fmt: skip


def test_an_indented_list_with_little_in_it() -> None:
    text = """Attached GPUs      :  2

GPU0 00000000:03:00.0
    Product Name       :  MTT S5000
    GPU Link Info

GPU1 00000000:05:00.0
    Product Name       :  MTT S4000
    Max Clocks
        Graphics           :  1750MHz
    Power Readings
        Power Draw         :  N/A
"""
    assert parse_mthreads_gmi_q(text) == [
        DeviceSample(index=0, name="MTT S5000"),
        DeviceSample(index=1, name="MTT S4000"),  # its highest clock is not its clock
    ]


def test_the_table_of_mthreads_gmi() -> None:
    (desktop,), server = told("mthreads-gmi/2.0.0.txt"), told("mthreads-gmi/2.4.1.txt")
    assert desktop == DeviceSample(
        index=0, name="MTT S80", temperature_c=41.0, memory_used_bytes=662 * MIB,
        memory_total_bytes=16384 * MIB, utilization_percent=0.0,
    )  # fmt: skip
    assert column(server, "temperature_c") == [48, 48, 49, 48, 48, 50, 48, 49]
    assert column(server, "memory_total_bytes") == [81920 * MIB] * 8


@pytest.mark.parametrize(
    ("file", "name", "celsius", "watts", "used"),
    [
        ("mx-smi/2.1.6.txt", "MXC550", (31, 31, 31, 31, 30, 31, 30, 30),
         (44, 46, 47, 46, 46, 47, 46, 47), 810),
        ("mx-smi/2.2.4.txt", "MetaX C500", (45,), (48,), 858),
        ("mx-smi/2.2.8.txt", "MetaX N260", (37, 37), (29, 33), 666),
        ("mx-smi/2.2.9.txt", "MetaX C500", (35, 37, 36, 35, 33, 34, 34, 36),
         (57, 58, 58, 60, 57, 56, 55, 56), 826),
    ],
)  # fmt: skip
def test_four_forms_of_mx_smi(
    file: str, name: str, celsius: tuple[int, ...], watts: tuple[int, ...], used: int
) -> None:
    samples = told(file)
    assert column(samples, "name") == [name] * len(celsius)
    assert column(samples, "temperature_c") == list(celsius)
    assert column(samples, "power_w") == list(watts)
    assert column(samples, "memory_used_bytes") == [used * MIB] * len(celsius)
    assert column(samples, "memory_total_bytes") == [65536 * MIB] * len(celsius)
    assert column(samples, "utilization_percent") == [0.0] * len(celsius)


def test_an_unknown_power_of_mx_smi_is_not_taken_from_its_limit() -> None:
    old = text("mx-smi/2.2.4.txt").replace("48W / 350W", "NA / 350W ")
    new = text("mx-smi/2.2.9.txt").replace("57W / 350W", "NA / 350W ")
    assert column(parse_mx_smi(old), "power_w") == [None]
    assert parse_mx_smi(new)[0].power_w is None


def test_more_memory_used_than_there_is_was_not_read_right() -> None:
    (sample,) = parse_mx_smi(text("mx-smi/2.2.4.txt").replace("858/65536", "65537/65536"))
    assert (sample.memory_used_bytes, sample.memory_total_bytes) == (None, 65536 * MIB)


@pytest.mark.parametrize(
    ("memory", "used", "total"),
    [
        ("0    / 32768", 0, 32768),
        ("NA   / 32768", None, None),
        ("NA   / NA   ", None, None),  # and not the host's memory, which stands before it
        ("7    / NA   ", None, None),
    ],
)
def test_an_unknown_hbm(memory: str, used: int | None, total: int | None) -> None:
    whole = text("npu-smi/22.0.3.1.txt").replace("0    / 32768", memory)
    sample = parse_npu_smi(whole)[0]
    mib = [size and size * MIB for size in (used, total)]
    assert [sample.memory_used_bytes, sample.memory_total_bytes] == mib


@pytest.mark.parametrize("unit", ["GiB", "KB", "TB"])
def test_a_memory_in_another_unit_is_not_taken_for_mib(unit: str) -> None:
    whole = text("mx-smi/2.2.4.txt").replace("65536 MiB", f"65536 {unit}")
    with pytest.raises(MonitorFault):
        parse_mx_smi(whole)
    whole = text("mthreads-gmi/2.4.1.txt").replace("81920MiB", f"81920{unit}")
    assert column(parse_mthreads_gmi(whole), "memory_total_bytes") == [None] * 8


PARSERS: list[Parse] = list(dict.fromkeys(FILES.values()))


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("printed", ["", "\n\n", "No devices were found\n", "| a | b | c |\n"])
def test_nothing_to_read_is_a_fault(parse: Parse, printed: str) -> None:
    with pytest.raises(MonitorFault) as found:
        parse(printed)
    assert found.value.kind == "unreadable"


def bounded(parse: Parse, printed: str) -> None:
    """Assert that ``printed`` is read within bounds, or refused."""
    fault, samples = None, []
    try:
        samples = parse(printed)
    except MonitorFault as found:
        fault = found
    assert fault is None or (fault.kind == "unreadable" and len(fault.said) < 300)
    assert (fault is None) == bool(samples)
    assert column(samples, "index") == list(range(len(samples)))
    for sample in samples:
        for name, least, most in (
            ("temperature_c", -60, 250),
            ("power_w", 0, 10_000),
            ("utilization_percent", 0, 100),
            ("clock_mhz", 0, 20_000),
            ("memory_clock_mhz", 0, 20_000),
            ("memory_used_bytes", 0, 1e15),
            ("memory_total_bytes", 1, 1e15),
        ):
            value = getattr(sample, name)
            assert value is None or (math.isfinite(value) and least <= value <= most)
        assert (sample.memory_used_bytes or 0) <= (sample.memory_total_bytes or 1e15)
        for word in (sample.name, sample.uuid):
            assert word is None or (0 < len(word) <= 80 and word.isprintable())


@given(st.sampled_from(PARSERS), st.text(max_size=300))
def test_any_text(parse: Parse, printed: str) -> None:
    bounded(parse, printed)


@given(st.sampled_from(sorted(FILES)), st.data())
def test_a_recorded_text_that_ends_early(file: str, data: st.DataObject) -> None:
    whole = text(file)
    bounded(FILES[file], whole[: data.draw(st.integers(0, len(whole)))])


@given(st.sampled_from(sorted(FILES)), st.data())
def test_a_recorded_text_with_other_characters_in_it(file: str, data: st.DataObject) -> None:
    whole = text(file)
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, len(whole) - 1))
        other = data.draw(
            st.one_of(st.sampled_from("|/:0123456789.-%WC\n eE"), st.text(max_size=3))
        )
        whole = whole[:place] + other + whole[place + data.draw(st.integers(0, 3)) :]
        if not whole:
            break
    bounded(FILES[file], whole)


@given(st.sampled_from(sorted(FILES)), st.sampled_from(sorted(FILES)))
def test_another_tools_text(mine: str, other: str) -> None:
    bounded(FILES[mine], text(other))
