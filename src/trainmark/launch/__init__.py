"""Start a plan's ranks, watch them, and leave a record whatever happens."""
