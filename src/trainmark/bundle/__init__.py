"""Bundles: runs in one file that others can verify without a network."""

from trainmark.bundle.archive import AlteredError, BundleError, unpacked
from trainmark.bundle.checking import Check, Verification, verify
from trainmark.bundle.packing import pack

__all__ = ["AlteredError", "BundleError", "Check", "Verification", "pack", "unpacked", "verify"]
