"""AMD accelerators: torch's ROCm build drives them as ``cuda``; ``amd-smi`` reads.

Written from the vendor's documentation and published outputs of its tools; never run on a card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.devices import tool, torch_vendor
from trainmark.devices.rocm import RocmVendor, format_identity, list_nodes
from trainmark.protocols import ContainerNeeds, DeviceSample, MonitorFault
from trainmark.protocols.tested import RECORDED_OUTPUTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainmark.protocols import Refusal


def parse_metric(text: str) -> list[DeviceSample]:
    """Return the devices in the JSON of ``amd-smi metric``.

    Raises:
        MonitorFault: the text has another form.
    """
    return [_parse_device(index, fields) for index, fields in _list_devices(text)]


def parse_static(text: str) -> list[DeviceSample]:
    """Return the name and the identity of each device in the JSON of ``amd-smi static``.

    Raises:
        MonitorFault: the text has another form.
    """
    return [
        DeviceSample(
            index=index,
            name=_parse_text(_get_value(fields, "asic", "market_name")),
            uuid=format_identity(
                _get_value(fields, "asic", "asic_serial"), _get_value(fields, "bus", "bdf")
            ),
        )
        for index, fields in _list_devices(text)
    ]


def _list_devices(text: str) -> list[tuple[int, Mapping[str, Any]]]:
    """Return each device's fields with its number, in the order of the numbers.

    The JSON is a list of devices, from ROCm 7 on within the key ``gpu_data``.
    """
    value = tool.parse_json(text)
    entries = value.get("gpu_data") if isinstance(value, dict) else value
    fields_by_index: dict[int, Mapping[str, Any]] = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        index = tool.parse_device_number(entry.get("gpu"))
        if index is not None:
            fields_by_index[index] = entry
    if not fields_by_index:
        raise MonitorFault("unreadable", "no numbered device in the JSON of amd-smi")
    return sorted(fields_by_index.items())


def _parse_device(index: int, fields: Mapping[str, Any]) -> DeviceSample:
    """Return the sample of a device from its fields in the JSON of ``amd-smi metric``."""
    # In J, in all recorded outputs of the tool.
    energy_j = tool.parse_number(_get_value(fields, "energy", "total_energy_consumption"))
    # The states of the limits that lower the clocks. Versions of the tool name their table
    # differently.
    violations = _get_value(fields, "throttle")
    if not isinstance(violations, dict):
        violations = _get_value(fields, "violation")
    if not isinstance(violations, dict):
        violations = {}
    temperature_c = tool.temperature_c(_get_value(fields, "temperature", "edge"))
    if temperature_c is None:  # not every device has this sensor
        temperature_c = tool.temperature_c(_get_value(fields, "temperature", "hotspot"))
    return DeviceSample(
        index=index,
        temperature_c=temperature_c,
        power_w=tool.watts(_get_value(fields, "power", "socket_power")),
        memory_used_bytes=_parse_memory(_get_value(fields, "mem_usage", "used_vram")),
        memory_total_bytes=_parse_memory(_get_value(fields, "mem_usage", "total_vram")),
        utilization_percent=tool.percent(_get_value(fields, "usage", "gfx_activity")),
        clock_mhz=tool.megahertz(_get_value(fields, "clock", "gfx_0", "clk")),
        throttle_reasons=_list_violations(violations),
        energy_j=energy_j or None,  # 0: the device has no counter
        ecc_corrected=tool.parse_count(_get_value(fields, "ecc", "total_correctable_count")),
        ecc_uncorrected=tool.parse_count(_get_value(fields, "ecc", "total_uncorrectable_count")),
        link_replays=tool.parse_count(_get_value(fields, "pcie", "replay_count")),
    )


def _list_violations(fields: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the limits that lower the clocks now; None: the device does not report them.

    The field ``throttle_status`` is not read, because it is THROTTLED on idle devices too.

    Args:
        fields: states by name, such as ``ppt_violation_status``: ``ACTIVE`` or ``NOT ACTIVE``.
    """
    ending = "_violation_status"
    states = {}
    for name, state in fields.items():
        # An idle device lowers its clocks too, but nothing limits it.
        if name.endswith(ending) and "low_utilization" not in name:
            states[name.removesuffix(ending)] = str(state).upper()
    if not {"ACTIVE", "NOT ACTIVE"} & set(states.values()):
        return None
    # `ppt` is the limit of the package power, which a device under full load reaches. Monitors of
    # all vendors call it `power_cap`.
    states["power_cap"] = states.pop("ppt", "")
    return tuple(sorted(name for name, state in states.items() if state == "ACTIVE"))


def _get_value(fields: object, *path: str) -> Any:
    """Return the value under nested keys, without its unit; None: there is none.

    Args:
        path: the keys, the outermost first.
    """
    value = fields
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    # A quantity is {"value": 45, "unit": "W"}.
    if isinstance(value, dict) and "value" in value:
        return value["value"]
    return value


def _parse_memory(mib: object) -> int | None:
    # The tool's MB are MiB: it prints 196592 MB for an MI300X with 192 GiB.
    return tool.size_bytes(mib, unit="m")


def _parse_text(value: object) -> str | None:
    """Return a text that the tool reports; None for ``N/A``."""
    if not isinstance(value, str) or value in ("", "N/A", "n/a"):
        return None
    return value


class Amd(RocmVendor):
    """Find, examine and open AMD devices; see ``protocols.Vendor``."""

    name = "amd"
    tested = RECORDED_OUTPUTS
    kubernetes_resource = "amd.com/gpu"  # https://github.com/ROCm/k8s-device-plugin, 2026-11-22
    module = "amdgpu"
    pci_vendor = 0x1002
    # https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html and
    # https://apptainer.org/docs/user/latest/gpu.html, 2026-11-22
    container_needs = ContainerNeeds(
        devices=("/dev/kfd", "/dev/dri"), options={"apptainer": ("--rocm",)}
    )
    commands = (tool.Command(("amd-smi", "metric", "--json"), parse_metric),)
    constants_command = tool.Command(
        ("amd-smi", "static", "--asic", "--bus", "--json"), parse_static
    )

    def unusable(self) -> Refusal | None:
        """Return why no device of this machine can be used; None if one can, or if there is none.

        Graphics in a processor count as devices only if torch is built for AMD's devices.
        """
        bus = torch_vendor.ROOT / "sys/bus/pci/devices"
        nodes = list_nodes(self.pci_vendor)
        are_all_in_processors = bool(nodes) and all(
            _is_in_processor(bus / node.address) for node in nodes
        )
        if are_all_in_processors and not self.is_driven_by_torch():
            return None
        return super().unusable()


def _is_in_processor(folder: Path) -> bool:
    """Tell whether a device is the graphics of a processor, by the format of its metrics.

    The third byte of the file is the format's revision: 2 or 3 for graphics in a processor, 1 for
    all other devices, the MI300A included; amd/include/kgd_pp_interface.h in
    https://github.com/torvalds/linux, 2026-11-22.
    """
    try:
        metrics = (folder / "gpu_metrics").read_bytes()
    except OSError:
        return False  # an older kernel, or removed meanwhile
    return metrics[2:3] in (b"\2", b"\3")
