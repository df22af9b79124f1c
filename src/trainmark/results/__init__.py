"""Many results of ours: selection by name, the index, bundles, redaction."""
