"""Write requirements.lock and requirements-dev.lock from what is installed in this .venv.

Run by ``make lock`` after the tests passed: the lock is what was tested, nothing newer. Below each
package comments name those that require it, so that ``tools/missing.py`` can follow them where
they are not installed. What this project requires is in pyproject.toml.
"""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import distribution, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
HEAD = "# Tested versions; `make lock` writes this file. pyproject.toml has the ranges.\n"
Requirers = dict[str, set[str]]  # by package: who requires it, and in which versions
# torch imports it at run time without saying so in every build; the editable install needs it.
ALWAYS = ("setuptools",)


def compute_closure(
    names: list[str], requirers: Requirers, extras: tuple[str, ...] = ()
) -> set[str]:
    """Return ``names`` and all they need on this platform, by canonical name.

    Args:
        requirers: what each of these packages requires is added.
    """
    found: set[str] = set()
    waiting = [(canonicalize_name(name), extras) for name in names]
    while waiting:
        name, wanted = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for line in requires(name) or []:
            need = Requirement(line)
            contexts = [{"extra": extra} for extra in (*wanted, "")]
            if need.marker is None or any(need.marker.evaluate(c) for c in contexts):
                needed = canonicalize_name(need.name)
                waiting.append((needed, tuple(need.extras)))
                if name != "trainmark":
                    requirers[needed].add(f"{name}: {needed}{need.specifier}")
    return found - {"trainmark"}


def format_lines(names: set[str], requirers: Requirers) -> Iterator[str]:
    """Yield pinned requirements, each with its requirers in comments.

    A local build tag (+cpu) is not part of the version.
    """
    for name in sorted(names):
        known = canonicalize_name(distribution(name).metadata["Name"])
        yield f"{known}=={Version(version(name)).public}"
        yield from (f"    # {requirer_names}" for requirer_names in sorted(requirers[name]))


def main() -> None:
    """Write both files."""
    requirers: Requirers = defaultdict(set)
    run = compute_closure(
        ["trainmark", *ALWAYS], requirers, ("pages", "prepare", "published", "server")
    )
    develop = compute_closure(["trainmark"], requirers, ("dev",)) - run
    for name, wanted in (("requirements.lock", run), ("requirements-dev.lock", develop)):
        (ROOT / name).write_text(
            HEAD + "\n".join(format_lines(wanted, requirers)) + "\n", encoding="utf-8"
        )
        print(f"{name}: {len(wanted)} packages")


if __name__ == "__main__":
    main()
