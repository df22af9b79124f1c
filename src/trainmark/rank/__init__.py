"""What runs in a rank: the measured loop, its checks and samples, and the events it writes."""
