"""Find the nodes, links and devices of a cluster to exclude."""

DEFAULT_WORSE_BY = 0.03  # share by which a training step may take longer than that of the peers
