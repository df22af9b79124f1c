"""Print the size of every room of ``src/trainmark`` in lines of code.

A line of code is 9.6 tokens without comments, docstrings and layout, so that dense lines do not
look small. The sizes are for information; nothing fails on them.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "trainmark"
TOKENS_PER_LINE = 9.6
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def count_tokens(text: str) -> int:
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


def name_room(path: Path) -> str:
    """Return the room of a module: its package, for a case also the case, or ``root``."""
    package, *rest = path.relative_to(PACKAGE).parts
    if not rest:
        return "root"
    return f"{package}/{rest[0]}" if package == "cases" and len(rest) > 1 else package


def main() -> None:
    """Print the rooms with their sizes."""
    tokens: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        tokens[name_room(path)] += count_tokens(path.read_text(encoding="utf-8"))
    for room, num_tokens in sorted(tokens.items()):
        print(f"{round(num_tokens / TOKENS_PER_LINE):6} {room}")


if __name__ == "__main__":
    main()
