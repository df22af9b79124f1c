"""Help pages that begin with examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from typer import Context


def with_examples(examples: str, *, group: bool = False) -> type[Any]:
    """Return a command class whose help prints ``examples`` before anything else."""
    base: type[Any] = TyperGroup if group else TyperCommand

    class WithExamples(base):  # type: ignore[misc]
        def format_help(self, ctx: Context, formatter: Any) -> None:
            formatter.write("Examples:\n" + examples + "\n")
            super().format_help(ctx, formatter)

    return WithExamples
