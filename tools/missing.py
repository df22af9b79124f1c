"""Say which packages an installation without a network would lack.

    python tools/missing.py [--wheels DIR] [--extra NAME] [--requirements FILE]

Run by the interpreter that the program is to be installed for. Follows the requirements of this
project, and of every package that is installed or lies in DIR, as pip would; those of a package
that is neither are what its tested version requires, as the locks say. Prints each package
that is neither, or only in a version that does not fit, and how to fetch it elsewhere.
Exit code 1 if there is one. Not an answer to versions that exclude each other: pip says that.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections import defaultdict
from dataclasses import dataclass
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

# The copy within pip: a new virtual environment has nothing else.
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.tags import sys_tags
from pip._vendor.packaging.utils import canonicalize_name, parse_wheel_filename

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Found:
    """A package that is installed or lies in the folder of wheels."""

    version: str
    requires: list[str]


def find_installed(name: str) -> Found | None:
    """Return the installed package of that name."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return None
    return Found(package.version, package.requires or [])


def list_wheels(folder: Path) -> dict[str, list[Found]]:
    """Return the wheels in ``folder`` that fit this interpreter, by canonical name."""
    here = frozenset(sys_tags())
    fitting: dict[str, list[Found]] = defaultdict(list)
    for path in sorted(folder.glob("*.whl")):
        name, version, _, tags = parse_wheel_filename(path.name)
        if tags & here:
            with ZipFile(path) as wheel:
                entry = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
                metadata = message_from_bytes(wheel.read(entry))
            fitting[name].append(Found(str(version), metadata.get_all("Requires-Dist") or []))
    return fitting


def find_missing(
    needed: Iterable[str], wheels: dict[str, list[Found]], lock: Lock
) -> dict[str, list[tuple[Requirement, str]]]:
    """Return by name each requirement that nothing meets, and which package has it."""
    found: dict[str, list[tuple[Requirement, str]]] = defaultdict(list)
    waiting = [(need, "trainmark") for line in needed if (need := _select_applying(line))]
    visited: set[tuple[str, str]] = set()
    while waiting:
        requirement, of = waiting.pop(0)
        name = canonicalize_name(requirement.name)
        if (str(requirement), of) in visited:
            continue
        visited.add((str(requirement), of))
        candidates = [find_installed(name), *wheels.get(name, [])]
        fits = next(
            (
                item
                for item in candidates
                if item and requirement.specifier.contains(item.version, prereleases=True)
            ),
            None,
        )
        if fits is None:
            found[name].append((requirement, of))
            waiting += [(need, name) for need in lock.requires[name]]
            continue
        extras = ["", *requirement.extras]
        for line in fits.requires:
            need = _select_applying(line, extras)
            if need is not None:
                waiting.append((need, name))
    return found


def _select_applying(line: str, extras: Sequence[str] = ("",)) -> Requirement | None:
    """Return a requirement without its marker; None if the marker is false here."""
    need = Requirement(line)
    if need.marker is not None and not any(need.marker.evaluate({"extra": e}) for e in extras):
        return None
    need.marker = None
    return need


@dataclass(frozen=True)
class Lock:
    """What the locks say.

    Args:
        pins: the tested version of each package.
        requires: what the tested version of each package requires.
    """

    pins: dict[str, str]
    requires: dict[str, list[Requirement]]


def read_locks() -> Lock:
    """Return the tested packages, those of development included."""
    pins: dict[str, str] = {}
    requires: dict[str, list[Requirement]] = defaultdict(list)
    for name in ("requirements.lock", "requirements-dev.lock"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if line.startswith("    # "):
                requirer, _, requirement = line.removeprefix("    # ").partition(": ")
                requires[requirer].append(Requirement(requirement))
            elif "==" in line:
                package, _, version = line.partition("==")
                pins[package] = version
    return Lock(pins, requires)


def list_fixes(
    found: dict[str, list[tuple[Requirement, str]]], pins: dict[str, str]
) -> Iterator[str]:
    """Yield the commands that fetch ``found`` on another machine.

    Tested packages come in their tested versions, one by one; otherwise a package that needs torch
    would bring another torch.
    """
    ours = [name for name in found if name in pins]
    others = [str(need) for name in found if name not in pins for need, _ in found[name][:1]]
    arch = platform.machine()
    options = (
        f"--only-binary=:all: --python-version {sys.version_info[0]}.{sys.version_info[1]} "
        f"--platform manylinux2014_{arch} --platform manylinux_2_28_{arch} --dest wheels"
    )
    if ours:
        requirements = " ".join(f"{name}=={pins[name]}" for name in sorted(ours))
        yield f"python3 -m pip download --no-deps {options} {requirements}"
    if others:
        quoted_names = " ".join(f"'{word}'" for word in sorted(others))
        yield f"python3 -m pip download {options} {quoted_names}"


def main() -> int:
    """Print what is missing; return 1 if something is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--extra", action="append", default=[])
    parser.add_argument("--requirements", type=Path)
    given = parser.parse_args()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = declared["build-system"]["requires"] + declared["project"]["dependencies"]
    for extra in ("pages", "prepare", "published", "server", *given.extra):
        needed += declared["project"]["optional-dependencies"][extra]
    if given.requirements:
        lines = given.requirements.read_text(encoding="utf-8").splitlines()
        needed += [line for line in lines if line and not line.lstrip().startswith("#")]
    lock = read_locks()
    found = find_missing(needed, list_wheels(given.wheels) if given.wheels else {}, lock)
    for name, needs in found.items():
        needs_text = ", ".join(f"{need} (for {of})" for need, of in needs)
        here = find_installed(name)
        print(f"  {needs_text}" + (f"; {here.version} is installed" if here else ""))
    if found:
        print("  fix: fetch them on a machine with a network, copy the folder here, and name it")
        print("  as WHEELS=wheels:")
        for line in list_fixes(found, lock.pins):
            print(f"    {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
