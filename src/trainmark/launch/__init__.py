"""Start a plan's ranks, watch them, and write a record even if the run fails."""
