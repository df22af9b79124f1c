"""Checks that a package outside runs against what it offers this one."""
