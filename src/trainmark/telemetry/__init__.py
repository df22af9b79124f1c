"""The process that samples devices and host, and what its readings amount to."""
