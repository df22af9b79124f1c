"""Followers of a run: they hand its progress to TensorBoard, W&B, MLflow or OpenMetrics.

A follower is a process of its own that reads the files of a run while they are written. It sends
nothing to the ranks and writes nothing that a record is computed from.
"""
