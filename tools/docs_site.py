"""Gather what the site is built from: docs/, and the files outside of it that its pages name.

In the tree, pages link to a case's README or to a source file by its path, which works where
the tree is browsed. The site gets copies of those files under ``tree/``; a link to any other
file becomes plain text.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[1]
GATHERED = ROOT / "build" / "docs"
COPIES = ("src/trainmark/cases/*/README.md", "benchmarks/results/*.md")
_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have the site built from the gathered folder."""
    shutil.rmtree(GATHERED, ignore_errors=True)
    shutil.copytree(ROOT / "docs", GATHERED)
    copies = {
        path.relative_to(ROOT).as_posix(): f"tree/{_name(path)}"
        for form in COPIES
        for path in sorted(ROOT.glob(form))
    }
    (GATHERED / "tree").mkdir()
    for source, target in copies.items():
        shutil.copy(ROOT / source, GATHERED / target)
    for page in GATHERED.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        up = "../" * (len(page.relative_to(GATHERED).parts) - 1)
        page.write_text(_rewrite_links(text, copies, up=up), encoding="utf-8")
    config.docs_dir = str(GATHERED)
    return config


def _name(path: Path) -> str:
    """Return the copy's name: a README is called as its folder."""
    return f"{path.parent.name}.md" if path.name == "README.md" else path.name


def _rewrite_links(text: str, copies: dict[str, str], *, up: str) -> str:
    """Return a page whose links out of docs/ lead to the copies, or are their text alone."""

    def rewrite_link(link: re.Match[str]) -> str:
        label, path, anchor = link.group(1), link.group(2), link.group(3) or ""
        target = copies.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        return label if target is None else f"[{label}]({up}{target}{anchor})"

    return _LINK.sub(rewrite_link, text)
