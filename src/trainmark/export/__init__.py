"""Records and runs in the forms of other programs: tables, JSON, logs, followers."""
