"""Pages and tables computed from records."""
