"""Extract figures from training logs that other programs wrote.

Owns reading such logs and the formulas of the public tool. Must not know our runs, cases
or torch.
"""
