"""Errors of pydantic are reworded with key, value and rule."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path  # noqa: TC003 - pydantic reads it
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import core_schema

from trainmark.documents import Frozen, make_damage_error, make_usage_error
from trainmark.launch.cluster import Cluster, read_cluster
from trainmark.plan.request import RunRequest
from trainmark.validation import describe_error, describe_rule, find_first_misfit, require_form

# A value for each place in the phrases.
CONTEXT = {
    "class": "X", "decimal_places": 2, "discriminator": "'kind'", "encoding": "utf-8",
    "error": "our own words", "expected": "'a' or 'b'", "expected_schemes": "'http'",
    "expected_tags": "'a', 'b'", "expected_version": 4, "ge": 1, "gt": 0, "le": 3, "lt": 4,
    "max_digits": 5, "max_length": 6, "min_length": 7, "multiple_of": 8, "pattern": "^a$",
    "tz_expected": 60, "whole_digits": 9,
}  # fmt: skip
OF_THE_LIBRARY = ("Input should", "should be", "Value error", "Field required", "{", "Unable")


# pydantic also raises "path_type", which its list of kinds lacks.
@pytest.mark.parametrize("kind", [*get_args(core_schema.ErrorType), "path_type"])
def test_every_kind_of_error_has_our_wording(kind: str) -> None:
    rule = describe_rule(kind, CONTEXT)  # ``CONTEXT`` has a value for each place in a phrase
    # An unknown kind gets a general phrase, a known one never does.
    general_rule = describe_rule("a later kind", {})
    assert general_rule == "it must be a value of a different type"
    assert rule != general_rule
    # ``OF_THE_LIBRARY``: pieces of pydantic's own messages.
    assert not [words for words in OF_THE_LIBRARY if words in rule]


class Inner(Frozen):
    count: Annotated[int, Field(ge=1, le=8)] = 1


class Outer(Frozen):
    name: str
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    kind: Literal["a", "b"] = "a"
    is_on: bool = True
    inner: Inner = Inner()
    inner_by_name: dict[str, Inner] = Field(default_factory=dict)
    places: tuple[Path, ...] = ()
    started: datetime = datetime(2026, 1, 1, tzinfo=timezone.utc)
    host: Annotated[str, require_form(r"[a-z]+(:\d+)?", "HOST[:PORT]")] = "a"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "name: missing; it is required"),
        ({"name": 3}, "name: 3 is not valid; it must be text"),
        ({"name": "a", "share": "x"}, "share: 'x' is not valid; it must be a number"),
        ({"name": "a", "share": 1.0}, "share: 1.0 is not valid; it must be less than 1.0"),
        ({"name": "a", "share": "nan"}, "share: 'nan' is not valid; it must be a finite number"),
        ({"name": "a", "kind": "c"}, "kind: 'c' is not valid; it must be one of 'a' or 'b'"),
        ({"name": "a", "is_on": "maybe"}, "is_on: 'maybe' is not valid; it must be true or false"),
        (
            {"name": "a", "inner": {"count": 0}},
            "inner.count: 0 is not valid; it must be at least 1",
        ),
        ({"name": "a", "inner": {"count": 9}}, "inner.count: 9 is not valid; it must be at most 8"),
        (
            {"name": "a", "inner": {"count": 1.5}},
            "inner.count: 1.5 is not valid; it must be a whole number",
        ),
        ({"name": "a", "inner": [1]}, "inner: not valid; it must be a table of keys and values"),
        ({"name": "a", "places": "b"}, "places: 'b' is not valid; it must be a list"),
        (
            {"name": "a", "started": "noon"},
            "started: 'noon' is not valid; it must be a date and time such as 2026-11-28T12:00:00Z",
        ),
        ({"name": "a", "host": "B"}, "host: 'B' is not valid; it must be HOST[:PORT]"),
        # Of several errors, an unknown key is reported first.
        ({"name": 3, "title": 1}, "title: 1 is not valid; there is no such key"),
        ([], "not valid; it must be a table of keys and values"),
        # Of a long value, the first 80 characters are shown.
        (
            {"name": "x" * 200, "kind": "y" * 200},
            f"kind: {'y' * 200!r:.80} is not valid; it must be one of 'a' or 'b'",
        ),
    ],
)
def test_error_names_key_value_and_rule(document: Any, words: str) -> None:
    # ``Outer`` is a model of pydantic: ``name`` is required text, ``share`` lies between 0 and 1,
    # ``kind`` is a or b, ``is_on`` true or false, ``inner`` is a model with ``count``, 1 to 8,
    # ``places`` are paths, ``started`` is a time, and ``host`` has small letters, and may
    # have a port.
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate(document)
    assert describe_error(raised.value) == words


def test_text_that_is_not_json_names_the_line(tmp_path: Path) -> None:
    # ``Outer`` is a model of pydantic with a field ``name``. A value is missing before the bracket,
    # which is character 9 of line 2.
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate_json('{\n"name": }')
    assert describe_error(raised.value).endswith(
        "it must be JSON; reading stopped at line 2 column 9"
    )
    # The error of a file: its path and line, what is wrong in short, the reason, and the rule.
    fault = make_damage_error(raised.value, tmp_path / "a.json", "not a plan", rule="r")
    assert str(fault) == (
        f"{tmp_path}/a.json:2: not a plan: it must be JSON; reading stopped at line 2 column 9; r"
    )


def test_misspelt_key_is_named_with_the_valid_keys() -> None:
    # The model ``Outer`` has a field ``inner``, a model whose only key is ``count``.
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate({"name": "a", "inner": {"cuont": 2}})
    # "file: " precedes the key, to say where it was read.
    fault = make_usage_error(raised.value, Outer, "file: ")
    assert (fault.what, fault.where) == ("unknown key 'inner.cuont'", "file: inner.cuont")
    assert fault.fix == "did you mean inner.count? Known: inner.count"


def test_misspelt_key_of_an_entry_is_named_with_the_valid_keys() -> None:
    # ``inner_by_name`` of the model ``Outer`` has tables by name; their only key is ``count``.
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate({"name": "a", "inner_by_name": {"first": {"cuont": 2}}})
    # "file: " would precede the key in ``where``, which is not looked at here.
    fault = make_usage_error(raised.value, Outer, "file: ")
    assert fault.what == "unknown key 'inner_by_name.first.cuont'"
    valid_key = "inner_by_name.first.count"
    assert fault.fix == f"did you mean {valid_key}? Known: {valid_key}"


def test_other_errors_keep_their_first_line() -> None:
    assert describe_error(OSError(28, "No space left on device")) == "No space left on device"
    assert describe_error(ValueError("first\nsecond")) == "first"
    assert describe_error(ValueError()) == "ValueError"


@pytest.mark.parametrize("model", [Cluster, RunRequest])
def test_errors_of_user_fields_show_no_pattern_and_no_wording_of_pydantic(
    model: type[BaseModel],
) -> None:
    # ``Cluster`` and ``RunRequest`` have the fields that a user can set. ``OF_THE_LIBRARY`` has
    # pieces of pydantic's own messages; "^" and a backslash occur in patterns.
    for name in model.model_fields:
        # Values that hardly any field allows.
        for value in (object(), [object()], {"a b": object()}, "\x00"):
            try:
                TypeAdapter(model).validate_python({name: value})
            except ValidationError as error:
                words = find_first_misfit(error).rule
                assert not [x for x in (*OF_THE_LIBRARY, "^", "\\") if x in words], (name, words)


@pytest.mark.parametrize(
    ("text", "where", "rule"),
    [
        ("master_port: 99999", "master_port", "it must be at most 65535"),
        (
            "environment: {1A: x}",
            "environment.1A",
            "it must be a name of letters, digits and _ that does not start with a digit",
        ),
        ("ssh: {hosts: [a b]}", "ssh.hosts.0", "it must be [user@]host[:port]"),
        ("container: {runtime: docker}", "container.image", "it is required"),
        (
            "container: {image: a, runtime: lxc}",
            "container.runtime",
            "it must be one of 'docker', 'podman', 'apptainer' or 'pyxis'",
        ),
    ],
)
def test_cluster_file_names_key_and_rule(tmp_path: Path, text: str, where: str, rule: str) -> None:
    # ``where`` is the path of the faulty key in the file, ``rule`` what its value must be.
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(Exception, match=r"\.yaml") as raised:  # of several types
        read_cluster(file)
    assert (raised.value.where, raised.value.rule) == (f"{file}: {where}", rule)
