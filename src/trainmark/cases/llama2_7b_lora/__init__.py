"""Llama-2 fine-tuned with low-rank adapters on dialogue summaries, scored on MMLU."""
