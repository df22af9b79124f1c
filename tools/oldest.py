"""Print the lowest versions that pyproject.toml admits, a requirement a line.

Called by ``tools/install.sh`` for ``make test-oldest``. With ``--tools`` print the names of
what the tests themselves need; their versions are those of requirements-dev.lock.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # a new virtual environment has nothing but the copy within pip
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).parents[1]
TOOLS = (
    "hypothesis",
    "import-linter",
    "jsonschema",
    "mlperf-logging",
    "pandas",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
)


def choose_lowest(requirement: str) -> str:
    """Return ``name==version`` for ``name>=version,...``, with the marker behind it if it has one.

    Raises:
        ValueError: the requirement has no lower bound.
    """
    found = re.match(r"([\w.-]+)[^;]*?>=\s*([\w.]+)", requirement)
    if found is None:
        raise ValueError(f"pyproject.toml: {requirement!r} has no lower bound: write name>=version")
    _, semicolon, marker = requirement.partition(";")
    return "==".join(found.groups()) + semicolon + marker


def main() -> None:
    """Print what the arguments ask for."""
    if sys.argv[1:] == ["--tools"]:
        print("\n".join(TOOLS))
        return
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = declared["build-system"]["requires"] + declared["project"]["dependencies"]
    extras = declared["project"]["optional-dependencies"]
    for extra in ("pages", "prepare", "published", "server"):
        needed += [one for one in extras[extra] if one not in needed]
    print("\n".join(choose_lowest(requirement) for requirement in needed))


if __name__ == "__main__":
    main()
