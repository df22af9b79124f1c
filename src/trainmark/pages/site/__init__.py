"""Pages about many results: list, cases, runs, comparisons and references, out of a store.

They are written as plain files or answered by ``trainmark.server``; both show the same pages.
"""
