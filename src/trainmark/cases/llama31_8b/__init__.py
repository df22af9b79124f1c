"""Llama 3.1 8B, pre-trained as in MLPerf's small-LLM benchmark."""
