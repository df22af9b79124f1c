"""Bundles: runs in one file that others can verify without a network."""

from trainmark.library.bundle.archive import AlteredError, BundleError, unpacked
from trainmark.library.bundle.checking import Check, Verification, verify
from trainmark.library.bundle.packing import pack

__all__ = ["AlteredError", "BundleError", "Check", "Verification", "pack", "unpacked", "verify"]
