"""The documentation names modules, files, verbs and options that exist."""

import re
from pathlib import Path

import pytest

from trainmark.cli.app import VERBS, load_command

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "trainmark"
ROOMS = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))
PAGES = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_a_page_names_exist(page):
    # ``PAGES`` are the documents in ``docs`` and CONTRIBUTING.md. ``ROOMS``: the folders of the
    # package ``trainmark``, as alternatives of a pattern. A path in a page begins in the repository
    # (``ROOT``) or in the package (``PACKAGE``).
    module_names = re.findall(
        rf"`((?:{ROOMS}|tests|tools|benchmarks)/[\w./]+\.(?:py|toml|md))`",
        page.read_text(encoding="utf-8"),
    )
    module_names = [name for name in module_names if "NAME" not in name]  # a placeholder
    # No name is left that is in neither of them.
    assert [
        name
        for name in module_names
        if not (ROOT / name).exists() and not (PACKAGE / name).exists()
    ] == []


def list_command_lines(text):
    """Return the words after ``trainmark`` of each command in blocks and spans of code."""
    code = re.findall(r"^ *```.*?^ *```|`[^`\n]+`", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in code for line in block.strip("`").splitlines()]
    # At the begin of a line or of a command in it; up to a pipe, redirection, comment or semicolon.
    matches = [re.search(r"(?:^|[\s/;&|])trainmark ([a-z].*)", line) for line in lines]
    return [re.split(r" [|>&#]|;", match[1])[0].split() for match in matches if match]


@pytest.mark.parametrize(
    "page", [*(ROOT / "docs").glob("*.md"), *ROOT.glob("README*.md")], ids=lambda page: page.name
)
def test_command_lines_name_verbs_and_options_that_exist(page):
    # ``VERBS``: the program's verbs, such as ``run``, by the heading under which its help lists
    # them.
    wrong = []
    for verb, *words in list_command_lines(page.read_text(encoding="utf-8")):
        if not any(verb in names for names in VERBS.values()):
            wrong.append(verb)
            continue
        command_of_verb = load_command(verb)
        # A verb with commands of its own, such as ``serve token``.
        command_of_verb = getattr(command_of_verb, "commands", {}).get(
            words[0] if words else "", command_of_verb
        )
        # What follows `--` is another program's.
        arguments = words[: words.index("--")] if "--" in words else words
        known = {name for spelling in command_of_verb.params for name in spelling.opts} | {"--help"}
        options = {
            word.partition("=")[0] for word in arguments if re.match("--[a-z]|-[a-z]$", word)
        }
        if verb != "analyze":  # it takes keys as --KEY
            wrong += sorted(f"{verb} {name}" for name in options - known)
    assert wrong == []
