"""The sections of the page of a run, by what they are about."""
