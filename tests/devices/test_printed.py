"""What recorded tables and lists of five vendors' tools say, and what damaged ones do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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


PARSERS: list[Parse] = list(dict.fromkeys(FILES.values()))


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("printed", ["", "\n\n", "No devices were found\n", "| a | b | c |\n"])
def test_nothing_to_read_is_a_fault(parse: Parse, printed: str) -> None:
    with pytest.raises(MonitorFault) as found:
        parse(printed)
    assert found.value.kind == "unreadable"
