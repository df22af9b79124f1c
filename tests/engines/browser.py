"""Debian's Chromium, driven by Playwright, and what each page must be in it.

One Chromium for the session, ended by the session. Nothing leaves the machine: requests to
another place than the page's own are refused, and each fails the test.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from tools.chromium import find_program, start_chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, Route

WIDTHS = (360, 768, 1280, 2560)
# Scripts of ``Visit.tab_through``. This one keeps the controls that Tab must reach, and returns how
# many they are.
_CONTROLS = """() => {
    const all = 'a[href], button, input, select, textarea, summary, [tabindex="0"]';
    window.controls = [...document.querySelectorAll(all)].filter(e => !e.disabled
        && e.checkVisibility({visibilityProperty: true}) && e.tabIndex >= 0
        && !(e.type === 'radio' && !e.checked));
    return window.controls.length;
}"""
_FOCUSED = """() => {
    const e = document.activeElement;
    if (!e || e === document.body) return null;
    const again = e.hasAttribute('data-reached');
    e.setAttribute('data-reached', '');
    const marked = [e, ...(e.labels || [])].some(x => {
        const style = getComputedStyle(x);
        return (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0)
            || style.boxShadow !== 'none';
    });
    return {again, marked, html: e.outerHTML.slice(0, 150)};
}"""
_UNREACHED = """() => window.controls.filter(e => !e.hasAttribute('data-reached'))
    .map(e => e.outerHTML.slice(0, 150))"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Yield the session's Chromium; skip the tests if it or its driver is missing."""
    pytest.importorskip("playwright", reason="no playwright here (make test-engines)")
    if find_program() is None:
        pytest.skip("no chromium here (make test-engines)")
    with start_chromium() as chromium_browser:
        yield chromium_browser


@dataclass
class Visit:
    """A page in a window, with its errors.

    Args:
        page: Playwright's page.
        home: the only allowed beginning of requested addresses.
        errors: texts of the errors so far; any fails the test at its end.
    """

    page: Page
    home: str
    errors: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Record errors, dialogs and requests to other hosts from now on.

        Each adds a text to ``errors``. The script reports what the page's own policy of security
        refuses as an error of the console.
        """
        page = self.page
        page.on("console", self._record_console_error)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._refuse_dialog)
        page.on("requestfailed", self._record_failed_request)
        page.route("**/*", self._refuse_other_hosts)
        page.add_init_script(
            "addEventListener('securitypolicyviolation', event => console.error("
            "`refused by the policy: ${event.violatedDirective} ${event.blockedURI}`))"
        )

    def _refuse_other_hosts(self, route: Route) -> None:
        """Answer a request only if it goes to the page's own host; any other is an error.

        ``home`` is the allowed beginning of addresses; "data:" and "blob:" are of the page itself.
        An entry of ``errors`` fails the test at its end.
        """
        if route.request.url.startswith((self.home, "data:", "blob:")):
            route.continue_()
        else:
            self.errors.append(f"asked for {route.request.url}")
            route.abort()

    def _refuse_dialog(self, dialog: Dialog) -> None:
        """Record and close a dialog: no page of this program opens one."""
        self.errors.append(dialog.message)
        dialog.dismiss()  # an open dialog would block the page

    def _record_console_error(self, message: ConsoleMessage) -> None:
        """Record a message of the page's console if it is an error, with its place."""
        if message.type == "error":
            self.errors.append(f"{message.location.get('url', '')[:200]}: {message.text}")

    def _record_failed_request(self, request: Request) -> None:
        """Record a failed request; a download ends as an aborted one, which is no error."""
        if not (request.failure or "").startswith("net::ERR_ABORTED"):
            self.errors.append(f"{request.url}: {request.failure}")

    @contextmanager
    def expecting_errors(self) -> Iterator[None]:
        """Ignore errors in the block: the browser reports an answer of 404 as one."""
        num_errors_before = len(self.errors)  # errors before the block stay recorded
        yield
        del self.errors[num_errors_before:]

    def open(self, address: str) -> Visit:
        """Go to an address below ``home``, or to a whole one."""
        full_address = address if "://" in address else self.home + address
        self.page.goto(full_address, wait_until="load")
        return self

    def list_overflowing_elements(self) -> list[str]:
        """Return the elements that reach beyond the page's right edge, by more than a pixel.

        Of each, the first 150 characters of its HTML; at most five, which a message can show.
        """
        return self.page.evaluate(
            """() => {
            const width = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= width) return [];
            // Whether the element or one around it scrolls by itself.
            const scrolls = e => e && (getComputedStyle(e).overflowX !== 'visible'
                || scrolls(e.parentElement));
            return [...document.querySelectorAll('body *')]
                .filter(e => e.getBoundingClientRect().right > width + 1)
                .filter(e => !scrolls(e.parentElement))
                .slice(0, 5).map(e => e.outerHTML.slice(0, 150));
            }"""
        )

    def list_barriers(self) -> list[str]:
        """Return barriers to people with disabilities: what axe finds against WCAG 2 A and AA."""
        from axe_playwright_python.sync_playwright import Axe

        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
        options = {"runOnly": {"type": "tag", "values": tags}, "resultTypes": ["violations"]}
        violations = Axe().run(self.page, options=options).response["violations"]
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for rule in violations
            for node in rule["nodes"][:5]  # a failure's message need not show all places
        ]

    def tab_through(self) -> tuple[list[str], list[str]]:
        """Go through the page by Tab; return controls not reached, and those without a focus mark.

        A focus mark is an outline or a shadow of the focused control or of its label. Of the radio
        buttons of a group, Tab reaches only the checked one.
        """
        # The script ``_CONTROLS`` counts and keeps the controls; ``_FOCUSED`` says of the focused
        # one whether it has a mark and was reached before; ``_UNREACHED`` lists the others.
        num_controls = self.page.evaluate(_CONTROLS)
        unmarked = []
        # A few times more, so that the loop ends at a control that was reached before.
        for _ in range(num_controls + 5):
            self.page.keyboard.press("Tab")
            focused = self.page.evaluate(_FOCUSED)
            if focused is None or focused["again"]:
                break
            if not focused["marked"]:
                unmarked.append(focused["html"])
        return self.page.evaluate(_UNREACHED), unmarked


@pytest.fixture
def visit(browser: Browser) -> Iterator[Any]:
    """Return a function that opens a window; an error in any window fails the test."""
    visits: list[Visit] = []

    def open_window(home: str, *, width: int = 1280, dark: bool = False, **more: Any) -> Visit:
        """Open a window.

        Its language and time zone are the same on each machine, and nothing in it moves, so that a
        test need not wait for the end of an animation.

        Args:
            home: the only allowed beginning of the addresses that a page requests.
            width: of the window, in pixels.
            dark: whether the window asks pages for their dark theme.
            more: settings of Playwright's context.
        """
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            timezone_id="UTC",
            **{"locale": "en-GB", **more},
        )
        visits.append(Visit(context.new_page(), home))
        visits[-1].watch()
        return visits[-1]

    yield open_window
    for window in visits:
        window.page.context.close()
    errors = [error for window in visits for error in window.errors]
    assert not errors, "\n".join(errors)


def file_home(path: Path) -> str:
    """Return the only address that a page of one file may request: its own."""
    return path.resolve().as_uri()


def unfold(window: Visit) -> None:
    """Open every fold of a page, a ``details`` in one of its sections, by a script."""
    window.page.evaluate(
        "document.querySelectorAll('section > details').forEach(x => x.open = true)"
    )


def click_folds(window: Visit) -> None:
    """Open every fold of a page as a reader without scripts does."""
    for fold in window.page.locator("section > details > summary:visible").all():
        fold.click()
