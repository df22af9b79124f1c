"""The server: the pages of ``trainmark.pages.site``, an API, and uploads of bundles."""
