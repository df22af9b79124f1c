"""Figures out of training logs that other programs wrote.

Owns reading such logs and the arithmetic of the public tool. Must not know our runs, cases
or torch.
"""
