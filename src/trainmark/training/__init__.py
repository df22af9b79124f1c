"""Torch-side pieces that jobs share: data order, precision, the optimizer step."""
