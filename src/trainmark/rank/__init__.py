"""The measured loop, the events it writes, and the figures computed from them."""
