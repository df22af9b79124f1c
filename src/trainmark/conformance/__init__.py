"""Checks of a case or a vendor against the contract that Trainmark relies on."""
