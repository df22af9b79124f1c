"""What MLPerf's ruleset of this benchmark asks of a log beside what every log has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def mlperf(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys and values, as ``closed_llama31_8b.yaml`` of mlperf-logging names them."""
    return {
        "max_sequence_length": recipe["seq_length"],
        "max_steps": recipe["max_steps"],
        "opt_name": "adamw",
        "opt_end_learning_rate": recipe["learning_rate"] * recipe["min_lr_fraction"],
        "opt_learning_rate_warmup_steps": recipe["lr_warmup_steps"],
        "opt_learning_rate_decay_steps": recipe["lr_decay_steps"] - recipe["lr_warmup_steps"],
        "opt_learning_rate_decay_schedule": "cosine with linear warmup",
        "opt_adamw_beta_1": 0.9,  # torch's default, which job.py leaves
        "opt_adamw_beta_2": recipe["adam_beta2"],
        "opt_adamw_epsilon": recipe["adam_eps"],
        "opt_adamw_weight_decay": recipe["weight_decay"],
        "opt_gradient_clip_norm": recipe["max_grad_norm"],
    }
