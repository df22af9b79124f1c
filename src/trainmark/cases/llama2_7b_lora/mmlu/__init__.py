"""MMLU: its questions, the prompts in both published forms, and the scores."""
