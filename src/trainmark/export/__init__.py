"""Records in the forms of other programs: tables, JSON, logs."""
