"""GLM on SuperGLUE: choose the entity that fills a gap in a passage's question."""
