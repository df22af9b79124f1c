"""Which of the cards here a rank can use with the installed torch, and why none if none. No torch.

Owns what ``CUDA_VISIBLE_DEVICES`` leaves to a process, and which torch runs with which driver
and card.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from trainmark.devices.torch_build import TorchBuild, torch_build
from trainmark.devices.vendors.nvidia import driver
from trainmark.devices.vendors.nvidia.driver import Card
from trainmark.protocols import Occupant, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_INDEX = re.compile(r"\+?[0-9]+")
# First driver that runs programs of each major version of CUDA, on Linux. A driver runs those of
# its own and of earlier ones: https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/, tables 2
# and 3, and https://docs.nvidia.com/deploy/cuda-compatibility/, 2026-11-22
_FIRST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_GIB = 2**30
# Less is what the driver itself leaves in use; a process that computes takes more for its context.
_UNSEEN_BYTES = 256 << 20


def has_code_for(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Tell whether a torch compiled for ``architectures`` runs on a compute capability.

    Machine code (``sm_80``) runs on the same major version from its minor version on, PTX
    (``compute_80``) is compiled for any later one, and code with the suffix ``a`` runs on its own
    version alone: https://docs.nvidia.com/cuda/cuda-programming-guide/, compute capabilities,
    2026-11-22. Without one such name the list is not of this vendor, and nothing is refused.
    """
    found = [match for name in architectures if (match := _ARCHITECTURE.fullmatch(name))]
    for kind, major, minor, suffix in (match.groups() for match in found):
        built = int(major), int(minor)
        if built == capability:
            return True
        if (
            suffix != "a"
            and built < capability
            and (built[0] == capability[0] or kind == "compute")
        ):
            return True
    return not found


def usable(here: Sequence[Card], variable: str | None) -> list[Card]:
    """Return what a rank sees; nothing if the installed torch cannot drive it."""
    build = torch_build()
    if build is None or _has_no_cuda(build) or _too_old(build) is not None:
        return []
    return visible(here, variable)


def _has_no_cuda(build: TorchBuild) -> bool:
    return build.cuda is None or build.hip is not None or build.maker is not None


def places(here: Sequence[Card], variable: str | None) -> list[int]:
    """Return the place among ``here`` of what each rank sees, in their order; empty if unknown.

    Different products have the order of their speed, which only CUDA knows, unless
    ``CUDA_DEVICE_ORDER`` says otherwise:
    https://docs.nvidia.com/cuda/cuda-programming-guide/, CUDA environment variables, 2026-11-22.
    """
    by_uuid = (variable or "").startswith(("GPU-", "MIG-"))
    by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not (by_uuid or by_bus) and len({card.name for card in here}) > 1:
        return []
    seen = usable(here, variable)
    found = [
        place
        for one in seen
        for place, card in enumerate(here)
        if one is card or any(one is part for part in card.slices or ())
    ]
    return found if len(found) == len(seen) else []  # of one that is only believed there is none


def why_unusable(here: Sequence[Card], variable: str | None) -> Refusal | None:
    """Return why a rank sees none of the cards ``here``; None if it sees one, or none is here."""
    if not here or usable(here, variable):
        return None
    names = " and ".join(sorted({card.name for card in here}))
    build = torch_build()
    if build is None or _has_no_cuda(build):
        torch = "torch is not installed" if build is None else f"torch {build.version} has no CUDA"
        return Refusal(
            f"{names} is here, but {torch}",
            "install a torch built for CUDA: `make clean`, then `make install TORCH=system "
            "PYTHON=...` with the Python that has it",
        )
    if (old := _too_old(build)) is not None:
        return old
    if visible(here, None):
        return Refusal(
            f"{VISIBLE_DEVICES}={variable!r} names none of the devices here: {listed(here)}",
            f"unset {VISIBLE_DEVICES}, or name each device once, by a number from 0 to "
            f"{len(here) - 1} or by a UUID of `nvidia-smi -L`",
        )
    return Refusal(
        f"{names} is in MIG mode and has no slice",
        "have one made with `nvidia-smi mig -cgi PROFILE -C`, or MIG mode switched off "
        "with `nvidia-smi -mig 0`",
    )


def _too_old(build: TorchBuild) -> Refusal | None:
    """Return the refusal of a driver that does not run programs of torch's CUDA."""
    supported = driver.supported_cuda()
    if build.cuda is None or supported is None:
        return None
    needed = int(build.cuda.split(".")[0])
    if supported[0] >= needed:
        return None
    first = _FIRST_DRIVER.get(needed)
    newer = f"install a driver from {first} on" if first else "install a newer driver"
    return Refusal(
        f"torch {build.version} is built for CUDA {build.cuda}, and the driver "
        f"{driver.driver_version() or 'here'} runs CUDA up to {supported[0]}.{supported[1]}",
        f"{newer}, or a torch built for CUDA {supported[0]}",
    )


def listed(here: Sequence[Card]) -> str:
    """Return the devices as ``CUDA_VISIBLE_DEVICES`` can name them."""
    found = []
    for index, card in enumerate(here):
        found.append(f"{index} = {card.name}" + (f" ({card.uuid})" if card.uuid else ""))
        found += [f"{one.uuid} = {one.name}" for one in card.slices or ()]
    return ", ".join(found)


def occupants(card: Card) -> list[Occupant]:
    """Return the processes on a card, among them one that only its memory shows."""
    found = [one._replace(device=card.name) for one in card.processes]
    if not found and (card.used_bytes or 0) >= _UNSEEN_BYTES:
        # A container shows no processes of others, but their memory.
        found.append(Occupant(card.name, "a process that cannot be seen", card.used_bytes, True))
    return found


def gib(size: int | None) -> str:
    """Return a size as text."""
    return "unknown memory" if size is None else f"{size / _GIB:.1f} GiB"


def visible(here: Sequence[Card], variable: str | None) -> list[Card]:
    """Return what a process sees with a value of ``CUDA_VISIBLE_DEVICES``, in its order.

    As the driver does, it ends the list at the first item that names nothing, and sees nothing
    if a device is named twice. A process sees one slice at most, and no whole card beside it:
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, CUDA Device Enumeration, 2026-11-22.
    """
    chosen = list(here) if variable is None else _chosen(here, variable)
    for card in chosen:
        if card.is_slice or card.slices:
            return [card if card.is_slice else (card.slices or ())[0]]
    return [card for card in chosen if card.slices is None]


def _chosen(here: Sequence[Card], variable: str) -> list[Card]:
    mig = variable.startswith("MIG-")
    known = [one for card in here for one in card.slices or ()] if mig else list(here)
    by_uuid = variable.startswith(("GPU-", "MIG-"))
    # Only the management library lists slices and memory, and device nodes have no UUID.
    listed_here = any((card.total_bytes if mig else card.uuid) for card in here)
    if by_uuid and here and not listed_here:  # trust the user
        name = here[0].name if len({card.name for card in here}) == 1 else "unknown"
        one = Card(f"{name} MIG" if mig else name, is_slice=mig)
        return [one] * len(variable.split(","))
    found: list[int] = []
    for item in variable.split(","):
        place = _by_uuid(known, item.strip()) if by_uuid else _by_index(known, item.strip())
        if place is None:
            break
        if place in found:
            return []
        found.append(place)
    return [known[place] for place in found]


def _by_index(known: Sequence[Card], item: str) -> int | None:
    """Return the place that an item's digits name; what follows them is ignored, as by strtoul."""
    digits = _INDEX.match(item)
    return int(digits[0]) if digits and int(digits[0]) < len(known) else None


def _by_uuid(known: Sequence[Card], item: str) -> int | None:
    """Return the place of the one card whose UUID begins so."""
    places = [i for i, card in enumerate(known) if card.uuid and card.uuid.startswith(item)]
    return places[0] if len(places) == 1 and item else None
