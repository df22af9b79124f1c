"""The process of a rank: the measured loop, its checks, and the events that it writes."""
