"""``trainmark prepare``: real data into a case's form.

Each case declares the options that it takes besides these; see ``spec.PrepareOption``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from trainmark.cli.options import command_of
from trainmark.cli.output import say
from trainmark.errors import UsageError

if TYPE_CHECKING:
    from trainmark.spec import Case, PrepareOption

EXAMPLES = """\
  trainmark prepare CASE --help                          the options that a case takes
  trainmark prepare CASE --from downloads/ --data data/mine
  trainmark run CASE --data data/mine --recipe standard
"""
_GIVEN = "trainmark.prepare"  # where a context keeps the options of cases


def with_options_of_cases(base: type[Any]) -> type[Any]:
    """Return a command class that takes the options that cases declare.

    Which case is meant is known once all words are read, so that the options of all cases are
    taken as text first; ``command`` then refuses those of other cases.
    """

    class WithOptionsOfCases(base):  # type: ignore[misc]
        def parse_args(self, ctx: typer.Context, args: list[str]) -> Any:
            from trainmark import cases

            if args and not args[0].startswith("-"):
                cases.load(args[0])  # an unknown case is refused, also with --help
            loaded, _ = cases.load_all()
            flags = {option.name: option.flag for case in loaded for option in case.prepare_options}
            self.params += [TyperOption(param_decls=[x], hidden=True) for x in flags.values()]
            named = (case for word in args for case in loaded if word in (case.name, *case.aliases))
            ctx.meta["case"] = next(named, None)
            rest = super().parse_args(ctx, args)
            found = {name: ctx.params.pop(name) for name in flags}
            ctx.meta[_GIVEN] = {name: text for name, text in found.items() if text is not None}
            return rest

        def format_options(self, ctx: typer.Context, formatter: Any) -> None:
            super().format_options(ctx, formatter)
            case: Case | None = ctx.meta["case"]
            if case is not None:
                rows = [(f"{x.flag} [{x.rule}]", x.help) for x in case.prepare_options]
                with formatter.section(f"Options of {case.name}"):
                    formatter.write_dl(rows or [("none", "")])

    return WithOptionsOfCases


def command(
    context: typer.Context,
    case: Annotated[str, typer.Argument(help="Name of a case.")],
    raw: Annotated[Path, typer.Option("--from", help="File, folder or archive as downloaded.")],
    data: Annotated[Path, typer.Option("--data", help="Folder to write; resumed if half there.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No messages.")] = False,
) -> None:
    """Check raw data and write it in the form a case reads."""
    from trainmark import cases

    chosen = cases.load(case)
    if not cases.has_part(chosen.name, "prepare"):
        raise UsageError(
            f"case {chosen.name} has nothing to prepare",
            where="CASE",
            remedy=f"`trainmark run {chosen.name}` generates its data",
        )
    known = {option.name: option for option in chosen.prepare_options}
    given: dict[str, str] = context.meta[_GIVEN]
    options = {name: _declared(chosen, known, name).read(text) for name, text in given.items()}

    def progress(text: str) -> None:
        if not quiet:
            say(text, err=True)

    cases.part(chosen.name, "prepare").prepare(raw, data, progress, **options)
    say(str(data))


def build() -> Any:
    """Return the command, which takes the options that cases declare."""
    return command_of("prepare", EXAMPLES, command, with_options_of_cases(TyperCommand))


def _declared(case: Case, known: dict[str, PrepareOption], name: str) -> PrepareOption:
    if name in known:
        return known[name]
    flag = "--" + name.replace("_", "-")
    taken = ", ".join(sorted(option.flag for option in known.values()))
    raise UsageError(
        f"case {case.name} takes no {flag}",
        where=flag,
        rule="besides --from and --data it takes " + (taken or "nothing"),
        remedy="leave it out",
    )
