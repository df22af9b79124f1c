"""What users name is found and read here: runs, folders, and other sources of figures."""
