"""Render pages and tables from records."""
