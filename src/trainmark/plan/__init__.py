"""What a user asked for, checked in full before anything starts."""
