"""The ways to start a run, by name; each launcher knows one engine, and none knows another."""
