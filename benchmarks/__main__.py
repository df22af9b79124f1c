"""Run benchmarks by name, or all: ``python -m benchmarks [NAME …]``."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    "startup",
    "analyze",
    "loop_overhead",
    "million_steps",
    "index_building",
    "distilbert_step",
    "gpt_step",
    "glm_step",
    "glm_loader",
    "llama_step",
    "dlrm_step",
    "dlrm_embeddings",
    "prepare_gpt",
    "dlrm_reader",
    "prepare_dlrm",
    "mmlu_scoring",
)


def main(words: list[str]) -> int:
    """Run them one after another; return 1 when a bar was missed."""
    unknown = sorted(set(words) - set(NAMES))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    met = [importlib.import_module(f"benchmarks.{name}").main() for name in words or NAMES]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
