"""A simulated accelerator: a vendor of its own, on torch's PrivateUse1, that runs on any CPU."""
