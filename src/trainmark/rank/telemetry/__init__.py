"""Readings of the machine while ranks run: the sampler and the lines it writes."""
