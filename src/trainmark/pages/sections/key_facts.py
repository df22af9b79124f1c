"""What was trained, on what, when and by which rules: the few facts beside the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.document import KeyFacts
from trainmark.pages.texts import Phrase, describe_dataset, has_cards, join, phrase
from trainmark.plan.recipes import compute_step_samples, get_ranks_per_model
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
    num_parameters = count_parameters(record)
    if num_parameters is not None:
        model = phrase("key.parameters", size=cells.format_short_count(num_parameters))
    day = record.started[:10]  # 2026-11-22 of 2026-11-22T08:15:00Z
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
        "day": day,
        "rules": _describe_rules(record),
    }
    known = ((phrase(f"key.{name}"), value) for name, value in facts.items() if value is not None)
    return KeyFacts(tuple(known))


def _describe_rules(record: Record) -> Phrase:
    """Return the rules, closed or open, and the recipe; a user's own program has neither."""
    plan = record.plan
    # The user's own program, which was measured instead of a case.
    if plan.witness is not None:
        return phrase("rules.witnessed")
    return join((phrase(f"division.{plan.rules}"), phrase("key.recipe", name=plan.recipe_name)))


def _describe_batch(record: Record) -> Phrase:
    """Return the number of samples of a step, with its factors if it has several: ``64 = 8 x 8``.

    The factors are the samples of a micro-batch, the micro-batches that a rank accumulates in a
    step, and the replicas of the model. The last two are left out if they are 1. A replica is a
    rank, or with tensor parallelism a group of ranks, which train the same samples.
    """
    recipe = record.plan.recipe
    num_replicas = record.plan.world_size // get_ranks_per_model(recipe)
    micro_batch_size = recipe["micro_batch_size"]
    num_micro_batches = recipe["grad_accum_steps"]
    factors = [str(micro_batch_size)]
    if num_micro_batches > 1:
        factors.append(str(num_micro_batches))
    if num_replicas > 1:
        factors.append(str(num_replicas))
    total = cells.format_integer(compute_step_samples(recipe, record.plan.world_size))
    if len(factors) == 1:
        return total
    return phrase("key.batch_of", total=total, factors=" x ".join(factors))


def _describe_memory(record: Record) -> Phrase:
    """Return the memory of a device, or of the host if ranks use the CPU; None: not known."""
    devices = record.environment.get("devices") or []  # of each rank; None: it reported none
    device_bytes = None
    if devices and devices[0] is not None:
        device_bytes = devices[0].get("memory_total_bytes")  # of rank 0, which stands for all
    if has_cards(record):  # each rank has an accelerator of its own
        return None if device_bytes is None else f"{device_bytes / cells.GIB:.0f} GiB"
    # A CPU reports the host's memory as its own.
    host_bytes = record.environment.get("memory_total_bytes") or device_bytes
    if host_bytes is None:
        return None
    return phrase("key.host_memory", gib=f"{host_bytes / cells.GIB:.1f}")
