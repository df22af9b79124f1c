"""Hold the size of every room to its line in rooms.toml, so that growth is a decision in a diff.

Size is in lines of code: tokens without comments, docstrings and layout, over the average of a
line when counting began, so that denser lines gain nothing. ``--print`` shows all sizes.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "trainmark"
TOKENS_A_LINE = 9.6
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def num_tokens(text: str) -> int:
    """Return how many tokens of code a module has."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None
    }
    return sum(
        token.type not in LAYOUT
        and not (token.type == tokenize.STRING and token.start in docstrings)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def room_of(path: Path) -> str:
    """Return the room of a module: its package, of a case also the case, or ``root``."""
    first, *rest = path.relative_to(PACKAGE).parts
    if not rest:
        return "root"
    return f"{first}/{rest[0]}" if first == "cases" and len(rest) > 1 else first


def sizes() -> dict[str, int]:
    """Return the lines of code of every room."""
    tokens: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        tokens[room_of(path)] += num_tokens(path.read_text(encoding="utf-8"))
    return {room: round(number / TOKENS_A_LINE) for room, number in sorted(tokens.items())}


def main() -> None:
    """Exit with 1 where a room is larger than its line, or has none."""
    most = tomllib.loads((ROOT / "tools" / "rooms.toml").read_text(encoding="utf-8"))["most_lines"]
    found = sizes()
    if "--print" in sys.argv[1:]:
        print("\n".join(f"{lines:6} {room}" for room, lines in found.items()))
    over = {room: lines for room, lines in found.items() if lines > most.get(room, 0)}
    for room, lines in over.items():
        print(f"rooms: {room} has {lines} lines of code, {most.get(room, 0)} in tools/rooms.toml")
    if over:
        print("  way out: make the room smaller, or raise its line and say why in the commit")
        sys.exit(1)


if __name__ == "__main__":
    main()
