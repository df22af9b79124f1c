"""What followers hand a run to: one module for each program.

Each takes what was handed over before into account, so that a run that is followed again has each
point once.
"""
