"""DistilBERT fine-tuned on SST-2, and a generated stand-in of the same form."""
