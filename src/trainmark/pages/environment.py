"""The page's list of hardware and software that the runs were made on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.devices.numa import compact
from trainmark.judge.comparison import sides
from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Block, Grid, Paragraph, Section, Table
from trainmark.pages.listing import in_words, joined, known, listed
from trainmark.pages.tables import has_cards, shortened, shortened_rows
from trainmark.pages.texts import has, term, text
from trainmark.record.rows import Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from trainmark.judge.comparison.sides import Result
    from trainmark.record.record import Record


def _if_used(record: Record, key: str, lang: str) -> str:
    """Return a fact of the environment, or that it does not apply to the run."""
    plan, value = record.plan, record.environment.get(key)
    used = {
        "network": plan.nnodes > 1,
        "driver": has_cards(record),
        "collective": plan.world_size > 1,
    }
    if value in (None, "") and not used[key]:
        return text("fact.not_used", lang)
    return known(value, lang)


def _cards(record: Record, lang: str) -> str:
    """Return each product among the ranks with how many there are."""
    if not has_cards(record):
        name, ranks = short_device(record), record.plan.world_size
        return name if ranks == 1 else text("env.shared", lang, name=name, n=ranks)
    names = [entry.get("name") for entry in record.environment.get("devices") or [] if entry]
    if not names:
        return f"{short_device(record)} x {record.plan.world_size}"
    kinds = dict.fromkeys(str(name) for name in names)
    return text("sep.comma", lang).join(f"{name} x {names.count(name)}" for name in kinds)


def _card_detail(record: Record, lang: str) -> str:
    """Return the facts of the first rank's device, bytes as GiB."""
    devices = [entry for entry in record.environment.get("devices") or [] if entry]
    if not devices:
        return text("fact.unknown", lang)
    words = []
    for name, value in devices[0].items():
        if name in ("name", "vendor") or value is None:
            continue
        called = term(name.removesuffix("_bytes").replace("_", " "), lang)
        if name.endswith("_bytes") and isinstance(value, int):
            words.append(f"{called} {value / cells.GIB:.1f} GiB")
        else:
            words.append(f"{called} {in_words(value, lang)}")
    return text("sep.comma", lang).join(words) or text("fact.none", lang)


def _cpu(record: Record, lang: str) -> str:
    env = record.environment
    words = [known(env.get("cpu"), lang)]
    if env.get("cpu_cores"):
        words.append(text("env.cores", lang, n=env["cpu_cores"]))
    if env.get("numa_nodes"):
        words.append(text("env.numa", lang, n=env["numa_nodes"]))
    return text("sep.comma", lang).join(words)


def _placement(record: Record, lang: str) -> str | None:
    """Return the cores of each rank, once if all have the same; None for a record without them."""
    said = []
    for entry in record.environment.get("placement") or []:
        if entry is None:
            return None
        why, threads = entry["why_not"], entry["threads"]
        if why is None:
            nodes = ",".join(str(node) for node in entry["numa_nodes"])
            cores = cells.clean(entry["cores"])
            said.append(text("env.pinned", lang, cores=cores, nodes=nodes, threads=threads))
        else:
            reason = text(f"pin.{why}", lang) if has(f"pin.{why}") else cells.clean(why)
            said.append(text("env.not_pinned", lang, why=reason, threads=threads))
    if len(set(said)) < 2:
        return said[0] if said else None
    colon = text("sep.colon", lang)
    ranks = [f"rank {rank}{colon}{one}" for rank, one in enumerate(said)]
    return text("sep.semicolon", lang).join(shortened(ranks, lang, str))


def _host_memory(record: Record, lang: str) -> str:
    total = record.environment.get("memory_total_bytes")
    return text("fact.unknown", lang) if total is None else f"{total / cells.GIB:.1f} GiB"


def _container(record: Record, lang: str) -> str:
    env = record.environment
    kind = [str(env[key]) for key in ("container", "container_version") if env.get(key)]
    digest = str(env.get("container_digest") or "").rpartition("@")[2]
    words = [word for word in (" ".join(kind), env.get("container_image"), digest) if word]
    return text("sep.comma", lang).join(words) or text("fact.none", lang)


def _framework(record: Record, lang: str) -> str:
    packages = record.environment.get("packages") or {}
    python = record.environment.get("python")
    words = [f"torch {packages['torch']}"] if "torch" in packages else []
    words += [f"Python {python}"] if python else []
    return text("sep.comma", lang).join(words) or text("fact.unknown", lang)


def _compiled(record: Record, lang: str) -> dict[str, str]:
    """Return what the compiler did; nothing for a run that compiled nothing."""
    found = record.compilation
    if found is None:
        return {}
    told = text("fact.unknown", lang)
    if found.graphs is not None:
        told = text(
            "env.compiled_told",
            lang,
            graphs=found.graphs,
            breaks=found.graph_breaks,
            cache=text(f"cache.{found.cache or 'unused'}", lang),
            hits=found.cache_hits,
            made=(found.cache_misses or 0) + (found.cache_bypasses or 0),
        )
    return {text("env.compiled", lang): told}


def environment(
    records: Sequence[Record], lang: str, against: Sequence[Result] = ()
) -> list[Section]:
    """Return the hardware and software of all records, and in what ``against`` differs."""
    heading = text("section.environment", lang)
    found = [Section(heading, 2, "environment", tuple(_difference(records, lang, against)))]
    for kind, read, named in (
        ("hardware", _hardware, (_cards, _cpu)),
        (
            "software",
            _software,
            (_framework, lambda record, lang: known(record.environment.get("os"), lang)),
        ),
    ):
        facts = listed(records, lambda record, read=read: read(record, lang))  # type: ignore[misc]
        said = dict.fromkeys(
            text("sep.semicolon", lang).join(dict.fromkeys(one(record, lang) for one in named))
            for record in records
        )
        drawer = text("sep.semicolon", lang).join(said)
        found.append(Section(text(f"section.{kind}", lang), 3, kind, (facts,), drawer=drawer))
    return found


def _difference(records: Sequence[Record], lang: str, against: Sequence[Result]) -> Iterator[Block]:
    """Yield in what machine and software differ from what is compared with."""
    if not against:
        return
    named = dict.fromkeys(x.file if isinstance(x, Row) else x.run_id for x in against)
    names = cells.clean(text("sep.comma", lang).join(named))
    found = sides.environment(records, against)
    key = "differs" if found else "same"
    yield Paragraph(text(f"env.{key}", lang, reference=names))
    if found:
        heads = (text("compare.fact", lang), text("env.here", lang), text("env.reference", lang))
        rows = [(one.name, *(_told(values, lang) for values in (one.a, one.b))) for one in found]
        yield Grid(Table(heads, shortened_rows(rows, lang)))


def _told(values: Sequence[Any], lang: str) -> str:
    return text("sep.semicolon", lang).join(cells.clean(in_words(value, lang)) for value in values)


def nodes_line(record: Record, lang: str) -> str:
    """Return the nodes of a run on several: which are alike, and what differs in the others."""
    said: dict[str, list[int]] = {}
    skews = [node["skew_s"] or 0.0 for node in record.environment["nodes"]]
    for number, node in enumerate(record.environment["nodes"]):
        words = [f"{name} {value}" for name, value in node["differs"].items()]
        words += [] if node["finished"] else [text("env.node_lost", lang)]
        said.setdefault(", ".join(words) or text("env.alike", lang), []).append(number)
    lines = [f"{compact(numbers)}{text('sep.colon', lang)}{x}" for x, numbers in said.items()]
    clocks = text("env.clocks", lang, skew=f"{max(skews) - min(skews):.3f}")
    return cells.clean(text("sep.semicolon", lang).join([*shortened(lines, lang, str), clocks]))


def _hardware(record: Record, lang: str) -> dict[str, str]:
    env, placed = record.environment, _placement(record, lang)
    return {
        text("env.machine", lang): known(env.get("machine"), lang),
        **({text("env.nodes", lang): nodes_line(record, lang)} if env.get("nodes") else {}),
        text("env.card", lang): _cards(record, lang),
        text("env.card_detail", lang): _card_detail(record, lang),
        text("env.cpu", lang): _cpu(record, lang),
        **({} if placed is None else {text("env.placement", lang): placed}),
        text("env.host_memory", lang): _host_memory(record, lang),
        text("env.network", lang): _if_used(record, "network", lang),
    }


def _software(record: Record, lang: str) -> dict[str, str]:
    env = record.environment
    return {
        text("env.os", lang): known(env.get("os"), lang),
        text("env.kernel", lang): known(env.get("kernel"), lang),
        text("env.driver", lang): _if_used(record, "driver", lang),
        text("env.container", lang): _container(record, lang),
        text("env.framework", lang): _framework(record, lang),
        text("env.packages", lang): joined(env.get("packages"), lang),
        text("env.collective", lang): _if_used(record, "collective", lang),
        **_compiled(record, lang),
        text("env.variables", lang): joined(env.get("variables"), lang),
    }
