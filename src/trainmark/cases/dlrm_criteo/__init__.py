"""DLRM trained on Criteo click logs."""
