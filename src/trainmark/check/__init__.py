"""Examinations: this machine, its ceilings, and the conformance of cases and vendors."""
