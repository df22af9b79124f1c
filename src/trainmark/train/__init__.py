"""Training code on torch that all jobs share: data order, precision, the optimizer step."""
