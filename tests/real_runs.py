"""What tests that start the program share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait until launcher and keeper are gone: both hold standard error open."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err
