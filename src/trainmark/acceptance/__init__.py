"""Find the nodes, links and devices of a cluster to exclude."""
