"""What was trained, on what, when and by which rules: the few facts beside the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.document import KeyFacts
from trainmark.pages.texts import Phrase, describe_dataset, has_cards, join, phrase
from trainmark.record.work import count_parameters

if TYPE_CHECKING:
    from trainmark.record.record import Record


def build_key_facts(record: Record) -> KeyFacts:
    """Return model, batch, sequence, data, memory, nodes, software, day and rules of a run."""
    plan, environment = record.plan, record.environment
    size, day = count_parameters(record), str(record.started)[:10]
    packages = environment.get("packages") or {}
    facts: dict[str, Phrase] = {
        "model": None
        if size is None
        else phrase("key.parameters", size=cells.format_short_count(size)),
        "batch": _describe_batch(record),
        "seq_length": plan.recipe.get("seq_length"),
        "data": describe_dataset(record),
        "memory": _describe_memory(record),
        "nodes": plan.nnodes,
        "torch": packages.get("torch"),
        "driver": environment.get("driver"),
        "day": day or None,
        "rules": _describe_rules(record),
    }
    known = ((phrase(f"key.{name}"), value) for name, value in facts.items() if value is not None)
    return KeyFacts(tuple(known))


def _describe_rules(record: Record) -> Phrase:
    """Return the rules and the recipe; a user's own program has neither."""
    plan = record.plan
    if plan.witness is not None:
        return phrase("rules.witnessed")
    return join((phrase(f"division.{plan.rules}"), phrase("key.recipe", name=plan.recipe_name)))


def _describe_batch(record: Record) -> Phrase:
    """Return the samples of a step, and how they are made up of micro-batches."""
    recipe, ranks = record.plan.recipe, record.plan.world_size
    micro_batch, accumulated = recipe["micro_batch_size"], recipe["grad_accum_steps"]
    factors = [str(micro_batch)]
    if accumulated > 1:
        factors.append(str(accumulated))
    if ranks > 1:
        factors.append(str(ranks))
    total = cells.count(micro_batch * accumulated * ranks)
    if len(factors) == 1:
        return total
    return phrase("key.batch_of", total=total, factors=" x ".join(factors))


def _describe_memory(record: Record) -> Phrase:
    """Return the memory of a device; of ranks that share a host, the host's."""
    entries = record.environment.get("devices") or []
    total = (entries[0] or {}).get("memory_total_bytes") if entries else None
    if has_cards(record):
        return None if total is None else f"{total / cells.GIB:.0f} GiB"
    total = record.environment.get("memory_total_bytes") or total
    return None if total is None else phrase("key.host_memory", gib=f"{total / cells.GIB:.0f}")
