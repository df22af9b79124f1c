"""Read the speed that a program printed, by the pattern in the file of ``--witness``.

Without a pattern, ``published.analysis`` reads the same output.

Numbers may have thousands separators and the letters k, M and G. ``record.printed`` compares them
with the measurement.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.plan.witness import SPEED_GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.plan.witness import Witness

_OUTPUTS = ("log.launcher.txt", "log.node*.txt")  # files with the program's output
_NUMBER = re.compile(r"\s*(?P<digits>[-+0-9.,eE]+?)\s*(?P<letter>[kKMG]?)\s*")
_FACTORS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_MAX_LINE_BYTES = 1 << 20
MAX_VALUES = 20_000  # of a quantity; if there are more, every second one is kept
_MAX_RAW_CHARS = 300


def read_printed(run_dir: Path, witness: Witness) -> list[dict[str, Any]]:
    """Return the speeds that a program printed.

    The user's witness file, which describes the program, has a regular expression for lines with
    speeds. Each of its named groups gives an entry: the group's name, the number of its values,
    these values in order (evenly spread ones if there are too many), and the first line that has a
    value.
    """
    if witness.spec.speed_line is None:
        return []
    pattern = re.compile(witness.spec.speed_line)
    values: dict[str, list[float]] = {
        name: [] for name in SPEED_GROUPS if name in pattern.groupindex
    }
    first_lines: dict[str, str] = {}  # of each group, the first line that has a value
    for line in _iterate_output(list_outputs(run_dir, witness)):
        for match in pattern.finditer(line):
            for name, numbers in values.items():
                number = read_number(match[name])
                if number is not None:
                    first_lines.setdefault(name, line.strip()[:_MAX_RAW_CHARS])
                    numbers.append(number)
    return [
        {
            "quantity": name,
            "lines": len(numbers),  # a line with several values counts once for each
            "values": thin_out(numbers),
            "raw": first_lines.get(name, ""),
        }
        for name, numbers in values.items()
    ]


def read_number(text: str | None) -> float | None:
    """Return the value of a printed number such as 1,234.5 or 12k; None if the text is no number.

    Args:
        text: the text that a group of the pattern matched; None: the group did not match.
    """
    match = _NUMBER.fullmatch(text or "")
    if match is None:
        return None
    try:
        # Commas are thousands separators; the letter k, M or G is a factor, or absent.
        return float(match["digits"].replace(",", "")) * _FACTORS[match["letter"]]
    except ValueError:  # ``_NUMBER`` also matches texts such as "1-2"
        return None


def thin_out(values: list[float]) -> list[float]:
    """Return at most ``MAX_VALUES`` of the values, evenly spread.

    While there are too many, every other value is dropped, beginning with the first one.
    """
    while len(values) > MAX_VALUES:
        values = values[1::2]
    return values


def list_outputs(run_dir: Path, witness: Witness) -> list[Path]:
    """Return the files of the program's output, or its own log if the witness file names one."""
    if witness.spec.log is None:
        paths = [path for name in _OUTPUTS for path in sorted(run_dir.glob(name))]
    else:
        paths = [Path(witness.folder) / witness.spec.log]
    return [path for path in paths if path.is_file()]


def _iterate_output(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the lines of the program's output; each state of a progress bar is a line.

    Lines of more than ``_MAX_LINE_BYTES`` are cut into parts.
    """
    for path in paths:
        with path.open("rb") as file:
            for line in iter(partial(file.readline, _MAX_LINE_BYTES), b""):  # b"": the end
                # A progress bar returns to the start of its line with \r.
                yield from re.split(r"[\r\n]+", line.decode("utf-8", "replace"))
