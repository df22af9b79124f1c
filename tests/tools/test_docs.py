"""The documentation names modules and files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "trainmark"
ROOMS = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))
PAGES = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_a_page_names_exist(page):
    named = re.findall(
        rf"`((?:{ROOMS}|tests|tools|benchmarks)/[\w./]+\.(?:py|toml|md))`",
        page.read_text(encoding="utf-8"),
    )
    named = [name for name in named if "NAME" not in name]
    assert [
        name for name in named if not (ROOT / name).exists() and not (PACKAGE / name).exists()
    ] == []
