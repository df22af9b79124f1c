"""Chinese texts of the whole tree: full-width punctuation, and one rule for spaces.

The rule: one space between Chinese and Latin letters or digits, none beside full-width
punctuation. Words that the founding pages print themselves stand as they print them.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import trainmark
from fakes import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(trainmark.__file__).parent
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.zh.md", *sorted((ROOT / "docs").glob("*.zh.md"))]
HAN = "[\u4e00-\u9fff]"
FULL = "[，。；：！？、（）《》“”‘’]"
# As the founding pages print them.
FOUNDING = re.compile(
    r"OS版本|OS kernel版本|CPU型号|单位为GiB|简写为(LBS|MPE|GAS)"
    r"|(运行时长|性能|收敛精度)\([a-zA-Z/]+\)|(收敛|目标)val_loss|(Steps|epoch)数"  # headers
    rf"|(?:[A-Za-z0-9]{HAN}*)?(单|两|四|八|\d+)机(单|\d+)(卡|进程)"  # A100单机8卡
)
# Headers and marks of other people's pages, as they print them.
OF_OTHERS = "library/importers/columns.toml"
PLACE = "\ufffc"  # stands for a value: Chinese, Latin or a number, so nothing is asked beside it
FAULTS = {
    "half-width punctuation beside Chinese": rf"{HAN} ?[,;:!?()'\"]|[,;:!?()'\"] ?{HAN}|{HAN}\.",
    "no space between Chinese and Latin": rf"{HAN}[A-Za-z0-9`]|[A-Za-z0-9`%]{HAN}",
    "a space beside full-width punctuation": rf" {FULL}|{FULL} ",
    "a space within Chinese": rf"{HAN} +{HAN}",
    "two spaces": r"\S  +\S",
}


def _texts_of(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string, the values of an f-string as ``PLACE``."""
    if isinstance(node, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else PLACE for part in node.values
        ]
        yield node.lineno, "".join(parts)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue  # a docstring is English and may name a Chinese word
        yield from _texts_of(child)


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings of a TOML document that are ours, not a page's printed cells."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("cells", "configuration"):
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def chinese_texts() -> list[tuple[str, str]]:
    """Return place and text of every Chinese text in the source."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for line, text in _texts_of(ast.parse(path.read_text(encoding="utf-8"))):
            found.append((f"{path.relative_to(SOURCE)}:{line}", text))
    for path in sorted(set(SOURCE.rglob("*.toml")) - {SOURCE / OF_OTHERS}):
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        found += [(str(path.relative_to(SOURCE)), text) for text in _strings(document)]
    return [(place, text) for place, text in found if re.search(HAN, text)]


CHINESE = chinese_texts()


def fault(text: str) -> str | None:
    """Return the first rule that ``text`` breaks."""
    text = re.sub(r"\{[^{}]*\}", PLACE, FOUNDING.sub(PLACE, text))
    return next((name for name, rule in FAULTS.items() if re.search(rule, text)), None)


def test_the_walk_finds_the_texts() -> None:
    places = {place.partition(":")[0] for place, _ in CHINESE}
    assert {"pages/texts.toml", "record/messages.toml"} <= places
    assert "cases/dlrm_criteo/reference.toml" in places
    assert len(CHINESE) > 300


@pytest.mark.parametrize(("place", "text"), CHINESE, ids=[place for place, _ in CHINESE])
def test_chinese_is_set_by_one_rule(place: str, text: str) -> None:
    assert fault(text) is None, f"{place}: {fault(text)}: {text}"


def test_a_chinese_page_is_set_by_the_same_rule() -> None:
    page = (GOLDEN / "page.zh.md").read_text(encoding="utf-8")
    cells = [cell.strip(" *#-") for line in page.splitlines() for cell in line.split("|")]
    broken = {cell: fault(cell) for cell in cells if re.search(HAN, cell) and fault(cell)}
    assert broken == {}


def chinese_lines(page: Path) -> list[str]:
    """Return the Chinese lines and cells of a page, without examples, code, links' ends, marks."""
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    text = re.sub(r"`[^`\n]+`", "`x`", text)  # what it holds is typed as it stands
    text = re.sub(rf"({FULL})\*\* ", r"\1**", text).replace("**", "")  # wants a space there
    text = re.sub(r"\[(.+?)\]\(\S+\)", r"\1", text).replace(r"\|", PLACE)
    cells = [cell.strip(" #-") for line in text.splitlines() for cell in line.split("|")]
    return [cell for cell in cells if re.search(HAN, cell)]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_chinese_page_of_the_documentation_is_set_by_the_same_rule(page: Path) -> None:
    lines = chinese_lines(page)
    assert lines
    assert {line: fault(line) for line in lines if fault(line)} == {}


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("单位为 s，取最慢的 rank", None),
        ("端到端时间（e2e_time）：{value} s", None),
        ("峰值，单位为GiB", None),  # as the founding pages print it
        ("NVIDIA A100单机8卡（1x8）", None),
        ("见表,单位为 s", "half-width punctuation beside Chinese"),
        ("损失(训练)", "half-width punctuation beside Chinese"),
        ("结束.", "half-width punctuation beside Chinese"),
        ("各rank 的内存", "no space between Chinese and Latin"),
        ("占 35%的时间", "no space between Chinese and Latin"),
        ("共 8 个 ，取一个", "a space beside full-width punctuation"),
        ("2 x 卡数 次", "a space within Chinese"),
        ("各  rank", "two spaces"),
    ],
)
def test_the_rules_find_what_breaks_them(text: str, broken: str | None) -> None:
    assert fault(text) == broken
