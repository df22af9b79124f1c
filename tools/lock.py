"""Write requirements.lock and requirements-dev.lock from what is installed in this .venv.

Run by ``make lock`` after the tests passed: the lock is what was tested, nothing newer.
"""

from __future__ import annotations

from importlib.metadata import distribution, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
HEAD = "# Tested versions; `make lock` writes this file. pyproject.toml has the ranges.\n"
# torch imports it at run time without saying so in every build; the editable install needs it.
ALWAYS = ("setuptools",)


def closure(names: list[str], extras: tuple[str, ...] = ()) -> set[str]:
    """Return ``names`` and all they need on this platform, by canonical name."""
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
                waiting.append((canonicalize_name(need.name), tuple(need.extras)))
    return found - {"trainmark"}


def lines(names: set[str]) -> list[str]:
    """Return pinned requirements; a local build tag (+cpu) is not part of the version."""
    return [
        f"{canonicalize_name(distribution(name).metadata['Name'])}=={Version(version(name)).public}"
        for name in sorted(names)
    ]


def main() -> None:
    """Write both files."""
    run = closure(["trainmark", *ALWAYS], extras=("library", "pages", "prepare", "server"))
    develop = closure(["trainmark"], extras=("dev",)) - run
    for name, wanted in (("requirements.lock", run), ("requirements-dev.lock", develop)):
        (ROOT / name).write_text(HEAD + "\n".join(lines(wanted)) + "\n", encoding="utf-8")
        print(f"{name}: {len(wanted)} packages")


if __name__ == "__main__":
    main()
