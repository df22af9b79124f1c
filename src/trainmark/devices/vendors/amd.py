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
        MonitorFault: it is another form.
    """
    return [_parse_device(index, fields) for index, fields in _list_devices(text)]


def parse_static(text: str) -> list[DeviceSample]:
    """Return names and identities in the JSON of ``amd-smi static``.

    Raises:
        MonitorFault: it is another form.
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
    """Return each device with its number: a list, from ROCm 7 on within ``gpu_data``."""
    fields = tool.parse_json(text)
    listed = fields.get("gpu_data") if isinstance(fields, dict) else fields
    devices: dict[int, Mapping[str, Any]] = {
        int(index): entry
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict)
        and (index := tool.number(entry.get("gpu"), most=1e6)) is not None
    }
    if not devices:
        raise MonitorFault("unreadable", "no numbered device in the JSON of amd-smi")
    return sorted(devices.items())


def _parse_device(index: int, fields: Mapping[str, Any]) -> DeviceSample:
    energy_j = tool.number(_get_value(fields, "energy", "total_energy_consumption"), most=1e15)
    limits_of_versions = (_get_value(fields, name) for name in ("throttle", "violation"))
    limits = next((table for table in limits_of_versions if isinstance(table, dict)), {})
    temperatures = (
        tool.temperature_c(_get_value(fields, "temperature", sensor))
        for sensor in ("edge", "hotspot")
    )
    return DeviceSample(
        index=index,
        temperature_c=next((value for value in temperatures if value is not None), None),
        power_w=tool.watts(_get_value(fields, "power", "socket_power")),
        memory_used_bytes=_parse_memory(_get_value(fields, "mem_usage", "used_vram")),
        memory_total_bytes=_parse_memory(_get_value(fields, "mem_usage", "total_vram")),
        utilization_percent=tool.percent(_get_value(fields, "usage", "gfx_activity")),
        clock_mhz=tool.megahertz(_get_value(fields, "clock", "gfx_0", "clk")),
        throttle_reasons=_list_violations(limits),
        energy_j=energy_j or None,  # 0: the device has no counter
        ecc_corrected=tool.count(_get_value(fields, "ecc", "total_correctable_count")),
        ecc_uncorrected=tool.count(_get_value(fields, "ecc", "total_uncorrectable_count")),
        link_replays=tool.count(_get_value(fields, "pcie", "replay_count")),
    )


def _list_violations(fields: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the limits that hold clocks down now; a device that idles is not held down.

    ``throttle_status`` says THROTTLED of devices that idle, and is not read.
    """
    end = "_violation_status"
    states = {
        name.removesuffix(end): str(state).upper()
        for name, state in fields.items()
        if name.endswith(end) and "low_utilization" not in name
    }
    if not {"ACTIVE", "NOT ACTIVE"} & set(states.values()):
        return None
    # Of the package power, which a device under full load reaches.
    states["power_cap"] = states.pop("ppt", "")
    return tuple(sorted(name for name, state in states.items() if state == "ACTIVE"))


def _get_value(fields: object, *path: str) -> Any:
    """Return the value under nested keys, without its unit; None: there is none.

    Args:
        path: the keys, the outermost first.
    """
    for name in path:
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields.get("value") if isinstance(fields, dict) and "value" in fields else fields


def _parse_memory(mib: object) -> int | None:
    return tool.size_bytes(mib, unit="m")  # its MB are MiB: 196592 of an MI300X with 192 GiB


def _parse_text(value: object) -> str | None:
    return value if isinstance(value, str) and value not in ("", "N/A", "n/a") else None


class Amd(RocmVendor):
    """Planning's view of AMD devices; see ``Vendor``."""

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
    once = tool.Command(("amd-smi", "static", "--asic", "--bus", "--json"), parse_static)

    def unusable(self) -> Refusal | None:
        """Return why no device here can be used; graphics in a processor are no loss.

        They are devices to a torch that is built for them.
        """
        bus = torch_vendor.ROOT / "sys/bus/pci/devices"
        parts = [_is_in_processor(bus / node.address) for node in list_nodes(self.pci_vendor)]
        return None if parts and all(parts) and not self.drives() else super().unusable()


def _is_in_processor(folder: Path) -> bool:
    """Tell whether a device is the graphics of a processor, by the form of its metrics.

    The third byte is 2 or 3 of them, 1 of all others, the MI300A too: amd/include/
    kgd_pp_interface.h in https://github.com/torvalds/linux, 2026-11-22.
    """
    try:
        return (folder / "gpu_metrics").read_bytes()[2:3] in (b"\2", b"\3")
    except OSError:
        return False  # an older kernel, or removed meanwhile
