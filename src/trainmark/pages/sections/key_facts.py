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
    """Return model, batch, sequence, data, memory, nodes, software, day and rules of a run.

    Facts that are not known are left out.
    """
    plan = record.plan
    environment = record.environment
    model: Phrase = None
    size = count_parameters(record)
    if size is not None:
        model = phrase("key.parameters", size=cells.format_short_count(size))
    day = str(record.started)[:10]  # 2026-11-22 of 2026-11-22T08:15:00Z
    packages = environment.get("packages") or {}
    facts: dict[str, Phrase] = {
        "model": model,
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
    """Return the samples of a step: micro-batch times accumulated micro-batches times ranks."""
    recipe = record.plan.recipe
    ranks = record.plan.world_size
    micro_batch = recipe["micro_batch_size"]
    accumulated = recipe["grad_accum_steps"]
    factors = [str(micro_batch)]
    if accumulated > 1:
        factors.append(str(accumulated))
    if ranks > 1:
        factors.append(str(ranks))
    total = cells.format_integer(micro_batch * accumulated * ranks)
    if len(factors) == 1:
        return total
    return phrase("key.batch_of", total=total, factors=" x ".join(factors))


def _describe_memory(record: Record) -> Phrase:
    """Return the memory of a device, or of the host if ranks use the CPU; None: not known."""
    entries = record.environment.get("devices") or []  # the device of each rank
    device_bytes = None
    if entries and entries[0] is not None:
        device_bytes = entries[0].get("memory_total_bytes")  # of rank 0, which stands for all
    if has_cards(record):  # each rank has an accelerator of its own
        return None if device_bytes is None else f"{device_bytes / cells.GIB:.0f} GiB"
    # A CPU reports the host's memory as its own.
    host_bytes = record.environment.get("memory_total_bytes") or device_bytes
    if host_bytes is None:
        return None
    return phrase("key.host_memory", gib=f"{host_bytes / cells.GIB:.0f}")
