"""Help pages that begin with examples."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from trainmark.errors import escaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typer import Context


@contextmanager
def _quoting_escaped() -> Iterator[None]:
    """Escape what the parser's messages quote of the command line."""
    try:
        yield
    except Exception as error:
        said = getattr(error, "message", None)
        if isinstance(said, str):
            error.message = escaped(said)  # type: ignore[attr-defined]
        raise


def with_examples(examples: str, *, groups: Mapping[str, Sequence[str]] | None = None) -> type[Any]:
    """Return a command class whose help prints ``examples`` first; of verbs, one by ``groups``."""
    base: type[Any] = TyperGroup if groups else TyperCommand

    class WithExamples(base):  # type: ignore[misc]
        def format_help(self, ctx: Context, formatter: Any) -> None:
            formatter.write("Examples:\n" + examples + "\n")
            super().format_help(ctx, formatter)

        def format_commands(self, _ctx: Context, formatter: Any) -> None:
            wide = max(map(len, self.commands))
            for title, names in (groups or {}).items():
                with formatter.section(title):
                    formatter.write_dl(
                        [(f"{x:{wide}}", self.commands[x].get_short_help_str(70)) for x in names]
                    )

        def make_context(self, *args: Any, **kwargs: Any) -> Any:
            with _quoting_escaped():
                return super().make_context(*args, **kwargs)

        def invoke(self, ctx: Context) -> Any:
            with _quoting_escaped():
                return super().invoke(ctx)

    return WithExamples
