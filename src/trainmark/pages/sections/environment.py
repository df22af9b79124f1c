"""The hardware and software that the runs were made on, and where their figures come from."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from trainmark.devices.cores import compact
from trainmark.judge.comparison import sides
from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Block, Code, Facts, Paragraph, Section, table
from trainmark.pages.phrases import few, has_cards, heads, listed
from trainmark.pages.texts import GLOSSARY, Phrase, join, known, pairs, shared, t, term, worded
from trainmark.plan.overrides import fix_hp_text
from trainmark.record.rows import Row
from trainmark.spec import FIELD_ALIASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainmark.judge.comparison.sides import Result
    from trainmark.record.record import Record
    from trainmark.spec import Text

_MOST = 24  # nodes or ranks that differ
_DATA = "DATA"  # in place of the folder, which records do not name


def environment(records: Sequence[Record], against: Sequence[Result] = ()) -> list[Section]:
    """Return the hardware and software of all records, and in what ``against`` differs."""
    hardware = shared([join((_cards(one), _cpu(one)), "semicolon") for one in records])
    software = shared(
        [join((_framework(one), known(one.environment.get("os"))), "semicolon") for one in records]
    )
    return [
        Section(t("section.environment"), "environment", tuple(_difference(records, against))),
        Section(t("section.hardware"), "hardware", (listed(records, _hardware),), 3, hardware),
        Section(t("section.software"), "software", (listed(records, _software),), 3, software),
    ]


def _difference(records: Sequence[Record], against: Sequence[Result]) -> Iterator[Block]:
    """Yield in what machine and software differ from what is compared with."""
    if not against:
        return
    named = dict.fromkeys(x.file if isinstance(x, Row) else x.run_id for x in against)
    found = sides.environment(records, against)
    yield Paragraph(t(f"env.{'differs' if found else 'same'}", reference=join(named)))
    if found:
        rows = (
            (one.name, *(join(map(worded, x), "semicolon") for x in (one.a, one.b)))
            for one in found
        )
        yield table(heads("compare.fact", "env.here", "env.reference"), rows, short=True)


def _hardware(record: Record) -> Mapping[str | Text, Phrase]:
    env, total = record.environment, record.environment.get("memory_total_bytes")
    found = {
        "env.machine": known(env.get("machine")),
        "env.nodes": nodes_line(record) if env.get("nodes") else None,
        "env.card": _cards(record),
        "env.card_detail": _card_detail(record),
        "env.cpu": _cpu(record),
        "env.placement": _placement(record),
        "env.host_memory": known(total and f"{total / cells.GIB:.1f} GiB"),
        "env.network": _if_used(record, "network", used=record.plan.nnodes > 1),
    }
    return {name: value for name, value in found.items() if value is not None}


def _software(record: Record) -> Mapping[str | Text, Phrase]:
    env = record.environment
    found: dict[str | Text, Phrase] = {
        "env.os": known(env.get("os")),
        "env.kernel": known(env.get("kernel")),
        "env.driver": _if_used(record, "driver", used=has_cards(record)),
        "env.container": _container(record),
        "env.framework": _framework(record),
        "env.packages": pairs(env.get("packages")),
        "env.collective": _if_used(record, "collective", used=record.plan.world_size > 1),
        "env.variables": pairs(env.get("variables")),
    }
    return found | ({"env.compiled": _compiled(record)} if record.compilation else {})


def _if_used(record: Record, key: str, *, used: bool) -> Phrase:
    """Return a fact of the environment, or that it does not apply to the run."""
    value = record.environment.get(key)
    return known(value) if used or value else t("fact.not_used")


def _cards(record: Record) -> Phrase:
    """Return each product among the ranks with how many there are."""
    name, ranks = short_device(record), record.plan.world_size
    if not has_cards(record):
        return name if ranks == 1 else t("env.shared", name=name, n=ranks)
    names = [str(x.get("name")) for x in record.environment.get("devices") or [] if x]
    kinds = dict.fromkeys(names or [name])
    return join(f"{kind} x {names.count(kind) or ranks}" for kind in kinds)


def _card_detail(record: Record) -> Phrase:
    """Return the facts of the first rank's device, bytes as GiB."""
    devices = [entry for entry in record.environment.get("devices") or [] if entry]
    if not devices:
        return known(None)
    said: list[Phrase] = []
    for name, value in devices[0].items():
        if name in ("name", "vendor") or value is None:
            continue
        called = term("term", name.removesuffix("_bytes").replace("_", " "))
        sized = name.endswith("_bytes") and isinstance(value, int)
        said.append((called, " ", f"{value / cells.GIB:.1f} GiB" if sized else value))  # type: ignore[operator]
    return join(said) if said else worded(None)


def _cpu(record: Record) -> Phrase:
    env = record.environment
    counts = ("cores", "cpu_cores"), ("numa", "numa_nodes")
    return join(
        [known(env.get("cpu")), *(t(f"env.{of}", n=env[key]) for of, key in counts if env.get(key))]  # type: ignore[literal-required]
    )


def _placement(record: Record) -> Phrase:
    """Return the cores of each rank, once if all have the same; None for a record without them."""
    entries = record.environment.get("placement") or []
    if not entries or None in entries:
        return None
    said = [
        t("env.pinned", cores=x["cores"], nodes=",".join(map(str, x["numa_nodes"])),
          threads=x["threads"])
        if x["why_not"] is None
        else t("env.not_pinned", why=term("pin", x["why_not"]), threads=x["threads"])
        for x in entries if x is not None
    ]  # fmt: skip
    lines = _by_place(said, "rank ")
    return said[0] if len(lines) == 1 else join(lines, "semicolon")


def _by_place(said: Sequence[Phrase], of: str = "") -> list[Phrase]:
    """Return each different phrase after the numbers, from 0, that have it; of many the first."""
    places: dict[str, list[int]] = {}
    for place, one in enumerate(said):
        places.setdefault(str(one), []).append(place)
    lines = [join((of + few(compact(x), len(x)), said[x[0]]), "colon") for x in places.values()]
    more = len(lines) - _MOST
    return [*lines[:_MOST], *([t("head.left_out", n=cells.count(more))] if more > 0 else ())]


def _container(record: Record) -> Phrase:
    env = record.environment
    kind = " ".join(str(env[x]) for x in ("container", "container_version") if env.get(x))
    digest = str(env.get("container_digest") or "").rpartition("@")[2]
    said = [word for word in (kind, env.get("container_image"), digest) if word]
    return join(said) if said else worded(None)


def _framework(record: Record) -> Phrase:
    env = record.environment
    torch, python = (env.get("packages") or {}).get("torch"), env.get("python")
    said = [f"{name} {value}" for name, value in (("torch", torch), ("Python", python)) if value]
    return join(said) if said else known(None)


def _compiled(record: Record) -> Phrase:
    """Return what the compiler did."""
    found = record.compilation
    if found is None or found.graphs is None:
        return known(None)
    return t(
        "env.compiled_told", graphs=found.graphs, breaks=found.graph_breaks,
        cache=t(f"cache.{found.cache or 'unused'}"), hits=found.cache_hits,
        made=(found.cache_misses or 0) + (found.cache_bypasses or 0),
    )  # fmt: skip


def nodes_line(record: Record) -> Phrase:
    """Return the nodes of a run on several: which are alike, and what differs in the others."""
    nodes, said = record.environment["nodes"], list[Phrase]()
    for node in nodes:
        words: list[Phrase] = [f"{name} {value}" for name, value in node["differs"].items()]
        words += [] if node["finished"] else [t("env.node_lost")]
        said.append(join(words) if words else t("env.alike"))
    skews = [node["skew_s"] or 0.0 for node in nodes]
    clocks = t("env.clocks", skew=f"{max(skews) - min(skews):.3f}")
    return join([*_by_place(said), clocks], "semicolon")


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
    options: dict[str, Any] = {
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


def repeating(records: Sequence[Record]) -> Section:
    """Return the commands that repeat the runs, and those that started them."""
    blocks: list[Block] = [Code(line, copied=True) for line in dict.fromkeys(map(command, records))]
    # As a module, the program's name is that of a file.
    typed = (
        ["trainmark", *one.argv[1:]] if one.argv[:1] == ["__main__.py"] else one.argv
        for one in records
    )  # fmt: skip
    said = join(dict.fromkeys(map(shlex.join, typed)), "semicolon")
    blocks.append(Paragraph(t("repeat.started", command=said), "muted"))
    if any(record.plan.data.origin == "real" for record in records):
        blocks.append(Paragraph(t("repeat.data"), "muted"))
    return Section(t("section.repeat"), "repeat", tuple(blocks))


def provenance(records: Sequence[Record]) -> Section:
    """Return the program's version, the runs, and the evidence files."""
    rows = [
        (f"[{place}]", file.name, cells.count(file.bytes), file.sha256)
        for place, record in enumerate(records, start=1)
        for file in record.evidence
    ]
    first = 0 if len(records) > 1 else 1
    files = table([*heads("run", "file", "bytes"), "SHA-256"][first:],
                  (row[first:] for row in rows), short=True)  # fmt: skip
    content = Paragraph(t("foot.content"), "muted")
    return Section(t("section.footer"), "provenance", (listed(records, _made_by), content, files))


def _made_by(record: Record) -> Mapping[str | Text, Phrase]:
    return {
        "foot.suite": f"{record.suite.name} {record.suite.version}",
        "foot.commit": known(record.environment.get("commit")),
        "foot.run": record.run_id,
        "foot.key": record.case_key,
    }


def glossary() -> Section:
    """Return the glossary for readers who do not train models."""
    words = join(word for word, _ in GLOSSARY)
    return Section(t("section.glossary"), "glossary", (Facts(tuple(GLOSSARY)),), drawer=words)
