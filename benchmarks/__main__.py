"""Run benchmarks by name, or all: ``python -m benchmarks [NAME …]``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import RESULTS_VARIABLE, SIZE_VARIABLE

NAMES = (
    "startup",
    "analyze",
    "loop_overhead",
    "sampler_cost",
    "witness_cost",
    "witness_honest",
    "threads_per_rank",
    "million_steps",
    "many_ranks",
    "verify_bundle",
    "index_building",
    "store_queries",
    "site_pages",
    "site_server",
    "report_page",
    "accept_simulation",
    "accept_bits",
    "replay_cost",
    "import_pages",
    "distilbert_step",
    "gpt_step",
    "llama31_step",
    "gpt_oss_step",
    "glm_step",
    "glm_loader",
    "llama_step",
    "dlrm_step",
    "dlrm_embeddings",
    "prepare_gpt",
    "dlrm_reader",
    "prepare_dlrm",
    "mmlu_scoring",
    "kernels",
)


def main(arguments: list[str]) -> int:
    """Run them one after another; return 1 when a bar was missed at full size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(NAMES)}")
    parser.add_argument(
        "--size",
        choices=("full", "tiny"),
        default="full",
        help="tiny: show that the benchmark works; its figures mean nothing",
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="folder of the tables; default: benchmarks/results, and at size tiny a temporary one",
    )
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(NAMES)}")
    tiny = given.size == "tiny"
    with tempfile.TemporaryDirectory() as folder:
        if given.results or tiny:
            os.environ[RESULTS_VARIABLE] = str(given.results or folder)
        os.environ[SIZE_VARIABLE] = given.size
        # Imported here: sizes are read when a module is loaded.
        met = [
            importlib.import_module(f"benchmarks.{name}").main() for name in given.names or NAMES
        ]
    return 0 if tiny or all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
