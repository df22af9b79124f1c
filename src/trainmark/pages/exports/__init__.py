"""Exports: records in the forms that other programs read."""
