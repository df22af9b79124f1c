"""Published outputs of every vendor's tool give the readings of ``expected.json``.

``expected.json`` was checked by hand against the outputs, number by number. A new output gets its
samples there and its source in ``SOURCES.md``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trainmark.devices.vendors import apple
from trainmark.devices.vendors.amd import parse_metric, parse_static
from trainmark.devices.vendors.ascend import parse_npu_smi
from trainmark.devices.vendors.cambricon import parse_cnmon
from trainmark.devices.vendors.hygon import parse_hy_smi
from trainmark.devices.vendors.iluvatar import parse_ixsmi
from trainmark.devices.vendors.intel import parse_discovery, parse_dump
from trainmark.devices.vendors.kunlunxin import parse_xpu_smi
from trainmark.devices.vendors.metax import parse_mx_smi
from trainmark.devices.vendors.mthreads import parse_mthreads_gmi
from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from collections.abc import Callable

    Parse = Callable[[str], list[DeviceSample]]

RECORDED = Path(__file__).parent / "recorded"
EXPECTED: dict[str, list[dict[str, Any]]] = json.loads((RECORDED / "expected.json").read_text())


# By a part of the file's path; the first that fits.
PARSERS: dict[str, Parse] = {
    "xpu-smi-intel/1.3-discovery": parse_discovery,
    "xpu-smi-intel": parse_dump,
    "static": parse_static,
    "amd-smi": parse_metric,
    "hy-smi": parse_hy_smi,
    "xpu-smi-kunlunxin": parse_xpu_smi,
    "npu-smi": parse_npu_smi,
    "cnmon": parse_cnmon,
    "ixsmi": parse_ixsmi,
    "mthreads-gmi": parse_mthreads_gmi,
    "mx-smi": parse_mx_smi,
    "powermetrics": apple.parse_powermetrics,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_output_is_read_number_by_number(name: str) -> None:
    """The readings are those of ``expected.json``, written by hand from the outputs.

    ``RECORDED`` is the folder with the outputs of the vendors' tools, a subfolder for each tool.
    ``EXPECTED`` is the content of ``expected.json``: the readings of each output by its path.
    """
    # The keys of ``PARSERS`` are parts of names of files; the first that fits counts.
    parse = next(parse for part, parse in PARSERS.items() if part in name)
    samples = parse((RECORDED / name).read_text())
    # Through JSON, which makes lists of tuples.
    assert json.loads(json.dumps([sample.known_fields() for sample in samples])) == EXPECTED[name]


def test_every_recorded_output_is_tested_and_has_its_source() -> None:
    # ``RECORDED`` is the folder with published outputs of the vendors' tools; ``EXPECTED`` has the
    # readings that a person found in each, by its path. ``SOURCES.md`` says where each was found.
    files = {str(file.relative_to(RECORDED)) for file in RECORDED.glob("*/*")}
    assert files == set(EXPECTED)
    sources = (RECORDED / "SOURCES.md").read_text()
    assert [name for name in files if Path(name).name.removesuffix(".csv") not in sources] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "No devices were found\n",
        "| a | b | c |\n",
        "[]",
        "{}",
        "1",
        '{"gpu_data": {}}',
        '[{"gpu": "x"}]',
        "DCU  Temp   AvgPwr\n",
        "Timestamp, DeviceId\n",
        "Device ID,Device Name\n",
    ],
)
@pytest.mark.parametrize("parse", PARSERS.values())
def test_output_without_a_device_is_unreadable_or_empty(parse: Parse, text: str) -> None:
    """No text without a device makes a reader invent one or fail with another error.

    ``PARSERS`` has the reader of each tool's output: a function that returns the readings of all
    devices in a text.
    """
    try:
        assert parse(text) == []
    except MonitorFault as fault:
        assert fault.kind == "unreadable"  # noqa: PT017 - either is right
