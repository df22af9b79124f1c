"""Read and write case keys, which name a piece of work in other systems."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from trainmark import devices
from trainmark.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from trainmark.spec import Case

FORM = "model:framework[_version]:hardware:nnodes:nproc:repeat"


@dataclass(frozen=True, slots=True)
class CaseWord:
    """The components of the case argument on the command line; None if absent."""

    case: str
    framework: str | None = None
    hardware: str | None = None
    nnodes: int = 1
    nproc: int = 1
    repeat: int = 1


def split(word: str) -> CaseWord:
    """Split a case key into its components; a plain case name gives only the case.

    Raises:
        UsageError: a colon is there but not the form of a key.
    """
    parts = word.split(":")
    if len(parts) == 1:
        return CaseWord(word)
    if (
        len(parts) != 6
        or not all(parts)
        or not all(re.fullmatch("[1-9][0-9]{0,5}", part) for part in parts[3:])
    ):
        raise UsageError(
            f"{word!r} is not a case key",
            where="CASE",
            rule=f"a key is {FORM}",
            remedy="for example distilbert:pytorch_2.13:cpu:1:2:1",
        )
    return CaseWord(*parts[:3], *map(int, parts[3:]))  # type: ignore[arg-type]


def write(case: Case, hardware: str, *, nnodes: int, nproc: int, repeat: int) -> str:
    """Return the key of ``case`` as it runs here; the form is ``FORM``."""
    framework = f"{case.framework}_{'.'.join(_torch_version().split('.')[:2])}"
    return f"{case.name}:{framework}:{hardware}:{nnodes}:{nproc}:{repeat}"


def _torch_version() -> str:
    return version("torch").split("+")[0]


def check_framework(case: Case, framework: str | None) -> None:
    """Refuse a key that names another framework, or a version that is not installed.

    Raises:
        UsageError, EnvironmentFault: so that no record answers for work it did not do.
    """
    if framework is None:
        return
    name, _, wanted = framework.partition("_")
    if name != case.framework:
        raise UsageError(
            f"case {case.name} runs on {case.framework}, not on {framework}",
            where="CASE",
            remedy=f"write {case.framework} in the key",
        )
    installed = _torch_version()
    if wanted and installed.split(".")[: len(wanted.split("."))] != wanted.split("."):
        raise EnvironmentFault(
            f"the key asks for {framework}, and torch {installed} is installed",
            where="CASE",
            remedy=f"install that version, or leave it out: {case.framework}",
        )


def vendor_of(hardware: str | None) -> str | None:
    """Return what ``devices.choose`` takes for a key's hardware field.

    The field names a vendor, torch's type of its devices, or a product of this machine.

    Raises:
        EnvironmentFault: neither of these.
    """
    if hardware is None:
        return None
    if hardware in devices.choices():
        return hardware
    for vendor in devices.all_vendors().values():
        if vendor.count() and any(_plain(hardware) == _plain(x) for x in vendor.product_names()):
            return vendor.name
    raise EnvironmentFault(
        f"the key asks for {hardware}, which is not here",
        where="CASE",
        rule="the hardware part is a device's name or the full product name of one here",
        remedy="see `trainmark list devices`",
    )


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
