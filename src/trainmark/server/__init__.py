"""The server: the site of a store as files, uploads of bundles, and comparisons of runs.

It runs behind a reverse proxy, which handles TLS, slow clients and limits of requests.
"""
