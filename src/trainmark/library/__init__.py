"""Many results: the index, what words name, import of others' figures, log analysis, bundles."""
