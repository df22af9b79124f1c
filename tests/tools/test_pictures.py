"""The README's pictures: what a terminal showed, and what the READMEs open with."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from subprocess import CalledProcessError
from xml.etree import ElementTree

import pytest

from tools import pictures
from trainmark import __version__

ROOT = Path(__file__).parents[2]


def shown(svg):
    """Return the text of a picture."""
    texts = ElementTree.fromstring(svg).itertext()
    return " ".join("".join(texts).replace("\xa0", " ").split())


def test_a_terminal_shows_what_was_not_written_over_in_its_colours_and_loads_nothing():
    seen = "case: starting\rcase: step 10 of 20\rcase: passed    \r\n\x1b[1;32mPASSED\x1b[0m\r\n"
    made = pictures.terminal_svg("trainmark run case", seen)
    assert "$ trainmark run case case: passed PASSED" in shown(made)
    assert "starting" not in made
    assert re.search(r"fill: #98a84b;font-weight: bold", made)
    assert re.findall(r"url\((?!#)|@import|href=", made) == []


def test_the_program_is_run_in_a_terminal_and_its_failure_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    assert __version__ in pictures.run_in_terminal(tmp_path, "--version")
    with pytest.raises(CalledProcessError) as caught:
        pictures.run_in_terminal(tmp_path, "run", "no_such_case")
    assert caught.value.returncode == 2
    assert caught.value.cmd[0] == sys.executable


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_readmes_open_with_pictures_that_are_small(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r'(?:src|srcset)="(docs/pictures/[^"]+)"', text)
    assert len(named) == 3
    assert text.index(named[0]) < text.index("\n## ")
    for path in named:
        assert 1_000 < (ROOT / path).stat().st_size < 300_000, path
