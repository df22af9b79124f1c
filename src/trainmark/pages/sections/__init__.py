"""The sections of the page of a case's records, by what they are about."""
