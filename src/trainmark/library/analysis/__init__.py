"""Extract figures from training logs that other programs wrote."""
