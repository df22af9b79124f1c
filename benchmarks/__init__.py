"""Speed, proven: each benchmark interleaves ours with its peer and prints the ratio."""
