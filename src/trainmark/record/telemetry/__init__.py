"""Samples of devices and host during a run: taken, summarised over time, and their figures."""
