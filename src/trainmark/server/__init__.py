"""The server: the site of a store as files, uploads of bundles, and runs side by side.

It stands behind a reverse proxy, which does TLS, slow clients and limits.
"""
