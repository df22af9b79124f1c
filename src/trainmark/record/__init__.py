"""Records of runs: how they are built, checked, read and written."""
