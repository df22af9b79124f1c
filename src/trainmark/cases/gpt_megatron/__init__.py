"""GPT-2 trained on Megatron's indexed token files."""
