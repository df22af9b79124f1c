"""What cases share without torch: data, files, caches, tokenizers."""
