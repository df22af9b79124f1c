"""Write docs/published.md and docs/published.zh.md: what the audit finds in a public collection.

usage: python tools/published.py FOLDER REPOSITORY PATH COMMIT

FOLDER has the collection's pages, which are in the folder PATH of the public REPOSITORY at COMMIT.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.published.audit import RULES, audit, subject
from trainmark.record.messages import render
from trainmark.results.selection import select_results
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.published.audit import Finding

DOCS = Path(__file__).parents[1] / "docs"
TIMED = {"e2e_time", "token/p/s", *subject.RATES}
WORDS = {
    "en": {
        "title": "Audit of published results",
        "intro": (
            "This page lists what the [audit](audit.md) finds in the training pages of "
            "[{name}]({url}) at commit `{commit}`, with the calculation behind each finding. This "
            "command writes the page:"
        ),
        "after": (
            "A finding follows from the printed figures, from the sizes and formulas in "
            "`src/trainmark/published/audit/workloads.toml`, and from the published peaks. It does "
            "not explain how the figures came about. A row without a finding is not proven to be "
            "correct: many rows have neither a time nor a throughput."
        ),
        "counts": "## Counts\n\n| quantity | number |\n|---|---|",
        "audited": "rows read and audited",
        "timed": "rows with a time or a throughput",
        "with": "rows with a finding",
        "without": "rows without a finding",
        "unread": "places in pages that could not be read (`trainmark import` lists them)",
        "others": "other files in the folder, which contain no results",
        "rules": (
            "## Findings by rule\n\n| rule | what must hold | errors | warnings |\n"
            "|---|---|---|---|"
        ),
        "table": "| line | row | rule | severity | calculation |\n|---|---|---|---|---|",
    },
    "zh": {
        "title": "公开结果的审计",
        "intro": (
            "本页列出[审计](audit.md)在 [{name}]({url})（提交 `{commit}`）的训练页面中"
            "的发现，以及每条发现的计算过程。本页由以下命令生成："
        ),
        "after": (
            "各条发现根据页面上的指标、`src/trainmark/published/audit/workloads.toml` 中的规模"
            "与公式，以及公布的峰值得出，并不说明这些指标是如何产生的。没有发现的行不等于已证明正确："
            "许多行既没有时间，也没有吞吐量。"
        ),
        "counts": "## 计数\n\n| 内容 | 数量 |\n|---|---|",
        "audited": "已读取并审计的行数",
        "timed": "其中给出时间或吞吐量的行数",
        "with": "有发现的行数",
        "without": "没有发现的行数",
        "unread": "页面中无法读取的位置（`trainmark import` 会列出）",
        "others": "文件夹中其他没有结果的文件",
        "rules": (
            "## 各规则的发现\n\n| 规则 | 要求 | 错误 | 警告 |\n"
            "|---|---|---|---|"
        ),
        "table": "| 行号 | 行 | 规则 | 级别 | 计算过程 |\n|---|---|---|---|---|",
    },
}  # fmt: skip


def escape_cell(text: str) -> str:
    """Return text as the content of a cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def format_page(
    lang: str, found: Sequence[Finding], counts: dict[str, int], source: Sequence[str]
) -> str:
    """Return the page in one language."""
    texts, (repository, path, commit) = WORDS[lang], source
    url = f"https://github.com/{repository}/tree/{commit}/{path}"
    name = repository.partition("/")[2]
    lines = [
        f"# {texts['title']}\n",
        texts["intro"].format(name=name, url=url, commit=commit),
        f"\n```\npython tools/published.py FOLDER {repository} {path} {commit}\n```\n",
        texts["after"] + "\n",
        texts["counts"],
        *(f"| {texts[what]} | {number} |" for what, number in counts.items()),
        "\n" + texts["rules"],
    ]
    by_rule = Counter((finding.rule, finding.severity) for finding in found)
    for rule in RULES:
        numbers = [str(by_rule[rule, severity]) for severity in ("error", "warning")]
        if set(numbers) != {"0"}:
            checks = render(message(f"audit_rule.{rule}"), lang)
            lines.append(f"| `{rule}` | {escape_cell(checks)} | {' | '.join(numbers)} |")
    placed = sorted(
        found, key=lambda finding: (finding.subject.file, finding.subject.line, finding.rule)
    )
    for file, group in groupby(placed, key=lambda finding: finding.subject.file):
        where = f"https://github.com/{repository}/blob/{commit}/{path}/{file}?plain=1"
        lines += [f"\n## [{file.removesuffix('/README.md')}]({where})\n", texts["table"]]
        lines += [
            f"| [{finding.subject.line}]({where}#L{finding.subject.line}) "
            f"| {escape_cell(finding.subject.configuration)} | `{finding.rule}` "
            f"| {finding.severity} | {escape_cell(render(finding.message, lang))} |"
            for finding in group
        ]
    return "\n".join(lines) + "\n"


def main(folder: str, *source: str) -> None:
    """Write both pages."""
    chosen = select_results([folder])
    below = [str(Path(row.file).relative_to(folder)) for row in chosen.rows]
    views = [
        subject.view_row(row.model_copy(update={"file": file}))
        for row, file in zip(chosen.rows, below, strict=True)
    ]
    found = audit(views)
    marked = {(finding.subject.file, finding.subject.line) for finding in found}
    counts = {
        "audited": len(views),
        "timed": sum(bool(TIMED & finding.figures.keys()) for finding in views),
        "with": len(marked),
        "without": len({(finding.file, finding.line) for finding in views} - marked),
        "unread": sum(entry.file.endswith(".md") for entry in chosen.unread),
        "others": len({entry.file for entry in chosen.unread if not entry.file.endswith(".md")}),
    }
    for lang, ending in (("en", "md"), ("zh", "zh.md")):
        text = format_page(lang, found, counts, source)
        (DOCS / f"published.{ending}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
