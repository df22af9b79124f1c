"""Debian's Chromium, driven by Playwright: for the tests of pages and the README's pictures."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


def find_program() -> str | None:
    """Return the path of Chromium on this machine; None: there is none."""
    return shutil.which("chromium")


@contextmanager
def start_chromium() -> Iterator[Browser]:
    """Start Chromium; it ends with the block. Letters are drawn alike on every machine."""
    from playwright.sync_api import sync_playwright

    # As root its sandbox does not start, in containers for example.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    arguments += ["--font-render-hinting=none", "--disable-lcd-text", "--disable-dev-shm-usage"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_program(), args=arguments)
        yield browser
        browser.close()
