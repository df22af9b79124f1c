"""Records: what a run leaves for people, databases and those who check."""
