"""Writing pages so that an error does not hide the result that they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any


def write_pages_safely(
    folder: Path,
    write: Callable[..., None],
    *arguments: Any,
    show_remark: Callable[[str], None],
    advice: str | None = None,
) -> None:
    """Call a function that writes pages with ``arguments``; report an error without raising it.

    The result has been written before: the record of a run, or the verdicts of an acceptance. So an
    error here does not change it.

    Args:
        folder: gets the pages.
        advice: how the user draws the page later; None: as the page of a run.
    """
    try:
        write(*arguments)
    except Exception as error:  # noqa: BLE001 - see above
        what = str(error) or type(error).__name__
        if isinstance(error, OSError):  # such as a full disk; a failed write names no file
            what = f"{folder}: the page cannot be written: {error.strerror or error}"
        if advice is None:
            advice = f"run `trainmark report {folder} -o page.html` to draw the page later"
        show_remark(f"{what}; {advice}")
