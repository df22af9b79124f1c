"""What the events of a run tell: timelines, nodes, telemetry, how it ended, what is doubtful."""
