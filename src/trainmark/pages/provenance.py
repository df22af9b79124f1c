"""Where a page's figures come from: the command that repeats a run, versions, files, words."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.document import Block, Code, Facts, Grid, Paragraph, Section, Table
from trainmark.pages.listing import listed
from trainmark.pages.tables import shortened_rows
from trainmark.pages.texts import GLOSSARY, text
from trainmark.plan.overrides import fix_hp_text
from trainmark.spec import FIELD_ALIASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record

_DATA = "DATA"  # in place of the folder, which records do not name


def command(record: Record) -> str:
    """Return a line that runs the same work again, on as many devices of the same vendor.

    Fields that no rule counts as a change are in it as far as the command line of the run had them.
    """
    plan = record.plan
    changed = {
        name: fix_hp_text({name: value}) for name, value in (plan.fix_hp | plan.extra).items()
    }
    if record.argv[1:2] == ["run"]:
        for word in record.argv[3:]:
            name = FIELD_ALIASES.get(word.partition("=")[0], word.partition("=")[0])
            if "=" in word and name in plan.recipe:
                changed.setdefault(name, word)
    options = {
        "--data": _DATA if plan.data.origin == "real" else None,
        "--device": plan.device.vendor,
        "--nnodes": plan.nnodes if plan.nnodes > 1 else None,
        "--nproc": plan.nproc,
        "--launcher": plan.launcher if plan.launcher != "local" else None,
        "--repeat": plan.repeat_count if plan.repeat_count > 1 else None,
        "--seed": None if "seed" in changed else plan.recipe.get("seed"),
        "--peak-tflops": plan.peak_tflops,
    }
    words = ["trainmark", "run", plan.case, "--recipe", plan.recipe_name, *changed.values()]
    words += [str(word) for pair in options.items() if pair[1] is not None for word in pair]
    return cells.clean(shlex.join(words))


def repeating(records: Sequence[Record], lang: str) -> Section:
    """Return the commands that repeat the runs, and those that started them."""
    blocks: list[Block] = [Code(line, copied=True) for line in dict.fromkeys(map(command, records))]
    # As a module, the program's name is that of a file.
    typed = dict.fromkeys(
        cells.clean(
            shlex.join(
                ["trainmark", *record.argv[1:]]
                if record.argv[:1] == ["__main__.py"]
                else record.argv
            )
        )
        for record in records
    )
    said = text("sep.semicolon", lang).join(typed)
    blocks.append(Paragraph(text("repeat.started", lang, command=said), "muted"))
    if any(record.plan.data.origin == "real" for record in records):
        blocks.append(Paragraph(text("repeat.data", lang), "muted"))
    return Section(text("section.repeat", lang), 2, "repeat", tuple(blocks))


def footer(records: Sequence[Record], lang: str) -> Section:
    """Return the program's version, the runs, and the evidence files."""

    def made_by(record: Record) -> dict[str, str]:
        commit = record.environment.get("commit") or text("fact.unknown", lang)
        found = {
            "suite": f"{record.suite.name} {record.suite.version}",
            "commit": commit,
            "run": record.run_id,
            "key": record.case_key,
        }
        return {text(f"foot.{name}", lang): value for name, value in found.items()}

    several = len(records) > 1
    rows = []
    for place, record in enumerate(records, start=1):
        for file in record.evidence:
            row = (file.name, cells.count(file.bytes), file.sha256)
            rows.append((f"[{place}]", *row) if several else row)
    heads = [text("head.file", lang), text("head.bytes", lang), "SHA-256"]
    if several:
        heads.insert(0, text("head.run", lang))
    blocks = (
        listed(records, made_by),
        Paragraph(text("foot.content", lang), "muted"),
        Grid(Table(tuple(heads), shortened_rows(rows, lang))),
    )
    return Section(text("section.footer", lang), 2, "provenance", blocks)


def glossary(lang: str) -> Section:
    """Return the glossary for readers who do not train models."""
    items = tuple((word.in_language(lang), means.in_language(lang)) for word, means in GLOSSARY)
    words = text("sep.comma", lang).join(word for word, _ in items)
    return Section(text("section.glossary", lang), 2, "glossary", (Facts(items),), drawer=words)
