"""Make text safe to show: control characters move a terminal's cursor, direction marks reorder.

Owns which characters those are. Everything that is printed, written to a page or quoted in a
message goes through ``escaped``, whoever wrote it.
"""

from __future__ import annotations

import re

# C0 but for tab and newline, DEL, C1, direction marks, line separators, half surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def escaped(text: object) -> str:
    r"""Return ``text`` with control characters as ``\u001b``, which in JSON means the same.

    Newlines and tabs stay.
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", str(text))
