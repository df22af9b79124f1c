"""Examinations of this machine: problems that the doctor finds, and the ceilings of its devices."""
