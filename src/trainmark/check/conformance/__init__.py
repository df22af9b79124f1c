"""Checks that a package runs in its own tests on the cases and vendors that it offers."""
