"""Complete words in a shell: cases, recipes, fields, devices, launchers. Imports no torch.

bash splits words at ``=``, and therefore asks for the value alone.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.spec import Case

Candidate = tuple[str, str]  # a word and its description


def _select_matching(items: Iterable[Candidate], incomplete: str) -> list[Candidate]:
    return [(word, help_text) for word, help_text in items if word.startswith(incomplete)]


def _iterate_cases() -> Iterator[Candidate]:
    from trainmark import cases

    for case in cases.load_all()[0]:
        yield case.name, case.title.en
        yield from ((alias, f"alias of {case.name}") for alias in case.aliases)


def complete_case(incomplete: str) -> list[Candidate]:
    """Return cases and their aliases."""
    return _select_matching(_iterate_cases(), incomplete)


def complete_run(incomplete: str) -> list[Candidate]:
    """Return cases, their aliases, and plan files where the first letters are typed."""
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    entries = sorted(folder.iterdir()) if incomplete and folder.is_dir() else []
    files = [(str(x), "plan file") for x in entries if x.suffix in (".yaml", ".yml")]
    return [*complete_case(incomplete), *_select_matching(files, incomplete)]


def read_typed_words() -> list[str]:
    """Return the words before the one that is completed, as the shell gives them."""
    line = os.environ.get("COMP_WORDS")  # bash
    if line is not None:
        words = _split(line)
        return words[: int(os.environ.get("COMP_CWORD", len(words)))]
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")  # other shells
    words = _split(line)
    return words if line.endswith(" ") else words[:-1]


def _split(line: str) -> list[str]:
    """Return the words of a line that may end inside a quoted word."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _find_typed_case() -> Case | None:
    from trainmark import cases

    names = {name for name, _ in _iterate_cases()}
    for word in read_typed_words():
        if word in names:
            return cases.load(word)
    return None


def complete_recipe(incomplete: str) -> list[Candidate]:
    """Return the recipes of the case that is typed, or of all cases."""
    from trainmark import cases

    case = _find_typed_case()
    chosen_cases = [case] if case else cases.load_all()[0]
    names: dict[str, str] = {}
    for chosen_case in chosen_cases:
        for recipe_name in chosen_case.recipes:
            names[recipe_name] = chosen_case.name
    return _select_matching(names.items(), incomplete)


def complete_field(incomplete: str) -> list[Candidate]:
    """Return ``KEY=`` of the case's recipe fields, or the values of a field that has few."""
    from trainmark.recipe import FIELD_ALIASES, Recipe

    case = _find_typed_case()
    recipe_type = case.recipe_type if case else Recipe
    known = {x.name: x for x in fields(recipe_type) if x.metadata.get("rule") != "fixed"}
    for alias, name in FIELD_ALIASES.items():
        if name in known:
            known.setdefault(alias, known[name])

    types = get_type_hints(recipe_type)

    def list_field_values(key: str) -> list[str]:
        return _list_values(types[known[key].name]) if key in known else []

    typed = read_typed_words()
    if "COMP_WORDS" in os.environ and incomplete in ("", "="):
        current = _split(os.environ["COMP_WORDS"])[len(typed) :]
        if current[:1] == ["="] and typed:  # bash at ``precision=``
            return [(value, "") for value in list_field_values(typed[-1])]
    if typed[-1:] == ["="]:  # bash at ``precision=b``
        return _select_matching(((value, "") for value in list_field_values(typed[-2])), incomplete)
    key, equals, _ = incomplete.partition("=")
    if equals:
        return _select_matching(
            ((f"{key}={value}", "") for value in list_field_values(key)), incomplete
        )
    return _select_matching(
        ((f"{name}=", x.metadata["doc"]) for name, x in known.items()), incomplete
    )


def _list_values(annotation: Any) -> list[str]:
    """Return the values of a type that has few: a literal, a boolean, perhaps none."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if annotation is bool:
        return ["true", "false"]
    if annotation is type(None):
        return ["none"]
    return [value for part in get_args(annotation) for value in _list_values(part)]


def complete_prepare_option(incomplete: str) -> list[Candidate]:
    """Return ``KEY=`` of what ``prepare`` takes for the case that is typed."""
    case = _find_typed_case()
    options = case.prepare_options if case else ()
    return _select_matching(((f"{x.name}=", x.help) for x in options), incomplete)


def complete_device(incomplete: str) -> list[Candidate]:
    """Return the names of devices and their torch types."""
    from trainmark import devices

    known = devices.list_vendors().values()
    names = {vendor.name: f"torch type {vendor.torch_type}" for vendor in known}
    types = {vendor.torch_type: "torch type" for vendor in known}
    return _select_matching((types | names).items(), incomplete)


def complete_launcher(incomplete: str) -> list[Candidate]:
    """Return the names of launchers."""
    from trainmark.launch.cluster import NAMES

    return _select_matching(((name, "") for name in NAMES), incomplete)


def complete_backend(incomplete: str) -> list[Candidate]:
    """Return the names of backends of followers."""
    from trainmark.export.followers.targets import BACKENDS

    return _select_matching(((name, "") for name in BACKENDS), incomplete)


def complete_filter(incomplete: str) -> list[Candidate]:
    """Return cases, and the keys of columns and figures that filters begin with."""
    from trainmark.results.store.columns import INDEX_COLUMNS, INTERNAL_COLUMNS

    keys = [(f"{key}=", "") for key in INDEX_COLUMNS if key not in INTERNAL_COLUMNS]
    return [*complete_case(incomplete), *_select_matching(keys, incomplete)]
