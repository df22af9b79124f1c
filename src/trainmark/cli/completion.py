"""Complete words in a shell: cases, recipes, fields, devices, launchers. Imports no torch.

bash splits words at ``=``, and therefore asks for the value alone.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.recipe import Recipe
    from trainmark.spec import Case

Candidate = tuple[str, str]  # a word and its description


def _select_matching(candidates: Iterable[Candidate], incomplete: str) -> list[Candidate]:
    """Return the candidates that begin with what is typed."""
    return [(word, help_text) for word, help_text in candidates if word.startswith(incomplete)]


def _iterate_cases() -> Iterator[Candidate]:
    """Yield the names of cases with their titles, and the aliases of each."""
    from trainmark import cases

    loaded_cases, _ = cases.load_all()  # cases that cannot be loaded are not offered
    for case in loaded_cases:
        yield case.name, case.title.en
        for alias in case.aliases:
            yield alias, f"alias of {case.name}"


def complete_case(incomplete: str) -> list[Candidate]:
    """Return cases and their aliases."""
    return _select_matching(_iterate_cases(), incomplete)


def complete_run(incomplete: str) -> list[Candidate]:
    """Return what ``run`` takes: cases, their aliases, and plan files.

    Plan files are added only after a first letter, so that without one only cases are offered.
    """
    files: list[Candidate] = []
    if incomplete:
        typed_path = Path(incomplete)
        folder = typed_path if incomplete.endswith("/") else typed_path.parent
        if folder.is_dir():
            paths = [x for x in sorted(folder.iterdir()) if x.suffix in (".yaml", ".yml")]
            files = [(str(path), "plan file") for path in paths]
    return [*complete_case(incomplete), *_select_matching(files, incomplete)]


def read_typed_words() -> list[str]:
    """Return the words before the one that is completed, as the shell gives them."""
    line = os.environ.get("COMP_WORDS")  # bash
    if line is not None:
        words = _split_line(line)
        # COMP_CWORD is the index of the word that is completed.
        return words[: int(os.environ.get("COMP_CWORD", len(words)))]
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")  # other shells
    words = _split_line(line)
    # Without a blank at its end, the line ends with the word that is completed.
    return words if line.endswith(" ") else words[:-1]


def _split_line(line: str) -> list[str]:
    """Return the words of a line that may end inside a quoted word."""
    try:
        return shlex.split(line)
    except ValueError:  # a quote is not closed yet
        return line.split()


def _find_typed_case() -> Case | None:
    """Return the first case whose name or alias is among the words; None: there is none."""
    from trainmark import cases

    names = {name for name, _ in _iterate_cases()}
    for word in read_typed_words():
        if word in names:
            return cases.load(word)
    return None


def complete_recipe(incomplete: str) -> list[Candidate]:
    """Return the recipes of the case that is typed, or of all cases, each with its cases."""
    from trainmark import cases

    case = _find_typed_case()
    if case is not None:
        chosen_cases = [case]
    else:
        chosen_cases, _ = cases.load_all()  # cases that cannot be loaded are not offered
    cases_by_recipe: dict[str, list[str]] = {}
    for chosen_case in chosen_cases:
        for recipe_name in chosen_case.recipes:
            cases_by_recipe.setdefault(recipe_name, []).append(chosen_case.name)
    candidates = [(recipe, ", ".join(names)) for recipe, names in cases_by_recipe.items()]
    return _select_matching(candidates, incomplete)


def complete_field(incomplete: str) -> list[Candidate]:
    """Return ``KEY=`` of the case's recipe fields; after ``KEY=``, the values of that field.

    A field that has many values, such as a number, has no candidates.
    """
    from trainmark.recipe import Recipe

    case = _find_typed_case()
    recipe_type = case.recipe_type if case else Recipe
    words = read_typed_words()
    # bash splits `run toy precision=b` into `run`, `toy`, `precision`, `=` and `b`. It completes
    # the last word, and `words` has those before it. If no value is typed yet, the last word is
    # `=`, `words` ends with `precision`, and typer makes `incomplete` empty. It is also empty after
    # `run toy `, where a new word begins. COMP_WORDS, which has all words, shows which it is.
    if "COMP_WORDS" in os.environ and not incomplete and words:
        words_from_completed = _split_line(os.environ["COMP_WORDS"])[len(words) :]
        if words_from_completed[:1] == ["="]:  # the user typed `precision=`
            return [(value, "") for value in _list_field_values(recipe_type, words[-1])]
    if words[-1:] == ["="]:  # the user typed `precision=b` in bash
        values = _list_field_values(recipe_type, words[-2])
        return _select_matching([(value, "") for value in values], incomplete)
    key, equals, _ = incomplete.partition("=")
    if equals:  # in other shells, `precision=b` is one word
        values = _list_field_values(recipe_type, key)
        return _select_matching([(f"{key}={value}", "") for value in values], incomplete)
    fields_by_key = _collect_changeable_fields(recipe_type)
    candidates = [(f"{key}=", item.metadata["doc"]) for key, item in fields_by_key.items()]
    return _select_matching(candidates, incomplete)


def _collect_changeable_fields(recipe_type: type[Recipe]) -> dict[str, Field[Any]]:
    """Return the fields that a user can change, by their names and by their aliases."""
    from trainmark.recipe import FIELD_ALIASES

    fields_by_key = {
        item.name: item for item in fields(recipe_type) if item.metadata.get("rule") != "fixed"
    }
    for alias, name in FIELD_ALIASES.items():
        if name in fields_by_key:
            # If the alias is also the name of a field, it stays the key of that field.
            fields_by_key.setdefault(alias, fields_by_key[name])
    return fields_by_key


def _list_field_values(recipe_type: type[Recipe], key: str) -> list[str]:
    """Return the values of the field whose name or alias is ``key``.

    The list is empty if the field has many values, if no field has the key, or if users cannot
    change the field.
    """
    fields_by_key = _collect_changeable_fields(recipe_type)
    if key not in fields_by_key:
        return []
    return _list_type_values(get_type_hints(recipe_type)[fields_by_key[key].name])


def _list_type_values(annotation: Any) -> list[str]:
    """Return the values of a type that has few, such as a literal or a boolean, as users type them.

    The list is empty if the type has many values; a union has the values of its parts.
    """
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if annotation is bool:
        return ["true", "false"]
    if annotation is type(None):
        return ["none"]
    # The parts of a union such as `Literal[...] | None`; other types have no parts with values.
    return [value for part in get_args(annotation) for value in _list_type_values(part)]


def complete_prepare_option(incomplete: str) -> list[Candidate]:
    """Return ``KEY=`` of each option that ``prepare`` takes for the case that is typed."""
    case = _find_typed_case()
    options = case.prepare_options if case else ()
    candidates = [(f"{option.name}=", option.help) for option in options]
    return _select_matching(candidates, incomplete)


def complete_device(incomplete: str) -> list[Candidate]:
    """Return the names of devices and their torch types."""
    from trainmark import devices

    vendors = devices.list_vendors().values()
    descriptions = {vendor.torch_type: "torch device type" for vendor in vendors}
    for vendor in vendors:  # a name that is also a torch type is described as a name
        descriptions[vendor.name] = f"torch device type {vendor.torch_type}"
    return _select_matching(descriptions.items(), incomplete)


def complete_launcher(incomplete: str) -> list[Candidate]:
    """Return the names of launchers."""
    from trainmark.launch.cluster import NAMES

    return _select_matching([(name, "") for name in NAMES], incomplete)


def complete_backend(incomplete: str) -> list[Candidate]:
    """Return the names of the programs to which ``follow`` can send runs."""
    from trainmark.export.followers.targets import BACKENDS

    return _select_matching([(name, "") for name in BACKENDS], incomplete)


def complete_filter(incomplete: str) -> list[Candidate]:
    """Return the words that a filter of ``results`` can begin with.

    These are the names of cases, which alone select the runs of the case, and ``KEY=`` for the
    columns of the index, among which are all figures.
    """
    from trainmark.results.store.columns import INDEX_COLUMNS, INTERNAL_COLUMNS

    # Internal columns, for example file sizes, serve the index alone and are not offered to users.
    keys = [(f"{key}=", "") for key in INDEX_COLUMNS if key not in INTERNAL_COLUMNS]
    return [*complete_case(incomplete), *_select_matching(keys, incomplete)]
