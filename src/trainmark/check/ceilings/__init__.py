"""Upper bounds of a machine, measured by its ranks."""
