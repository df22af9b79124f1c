"""What launcher, nodes, ranks and the sampler write during a run, and how it is read back."""
