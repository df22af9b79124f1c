"""The server: the pages of ``trainmark.site``, an API, and uploads of bundles."""
