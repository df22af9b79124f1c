"""Explain what pydantic refuses in this program's words: key, value and rule.

The one place where errors of validation become sentences. Owns a phrase for each of pydantic's
kinds of errors; no user sees messages of the library.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import AfterValidator, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

_MAX_CHARACTERS = 80  # of a value that is shown
_POSITION = re.compile(r"line \d+ column \d+")

# What a value must be, by the kind of the error; pydantic's values replace the braces.
_MUST_BE = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "bytes_invalid_encoding": "bytes that are encoded as {encoding}",
    "bytes_too_long": "at most {max_length} bytes long",
    "bytes_too_short": "at least {min_length} bytes long",
    "bytes_type": "bytes",
    "callable_type": "a function",
    "complex_str_parsing": "a complex number",
    "complex_type": "a complex number",
    "counter_type": "a table of counts",
    "dataclass_exact_type": "a table of keys and values",
    "dataclass_type": "a table of keys and values",
    "date_from_datetime_inexact": "a date without a time",
    "date_from_datetime_parsing": "a date such as 2026-11-28",
    "date_future": "a date in the future",
    "date_parsing": "a date such as 2026-11-28",
    "date_past": "a date in the past",
    "date_type": "a date such as 2026-11-28",
    "datetime_from_date_parsing": "a date and time such as 2026-11-28T12:00:00Z",
    "datetime_future": "in the future",
    "datetime_object_invalid": "a date and time such as 2026-11-28T12:00:00Z",
    "datetime_parsing": "a date and time such as 2026-11-28T12:00:00Z",
    "datetime_past": "in the past",
    "datetime_type": "a date and time such as 2026-11-28T12:00:00Z",
    "decimal_max_digits": "a number with at most {max_digits} digits",
    "decimal_max_places": "a number with at most {decimal_places} decimal places",
    "decimal_parsing": "a number",
    "decimal_type": "a number",
    "decimal_whole_digits": "a number with at most {whole_digits} digits before the point",
    "deque_type": "a list",
    "dict_type": "a table of keys and values",
    "ellipsis_error": "an ellipsis",
    "enum": "one of {expected}",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "fraction_parsing": "a fraction such as 1/3",
    "fraction_type": "a fraction such as 1/3",
    "frozen_dict_type": "a table of keys and values",
    "frozen_set_type": "a list without duplicates",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number with fewer digits",
    "int_type": "a whole number",
    "invalid_key": "a table whose keys are text",
    "is_instance_of": "of the type {class}",
    "is_subclass_of": "a type derived from {class}",
    "iterable_type": "a list",
    "json_type": "JSON text",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "one of {expected}",
    "mapping_type": "a table of keys and values",
    "missing_sentinel_error": "left out",
    "model_attributes_type": "a table of keys and values",
    "model_type": "a table of keys and values",
    "multiple_of": "a multiple of {multiple_of}",
    "named_tuple_type": "a list of values",
    "none_required": "none",
    "ordered_dict_type": "a table of keys and values",
    "path_type": "a path",
    "set_item_not_hashable": "a list of single values",
    "set_type": "a list without duplicates",
    "string_not_ascii": "text of ASCII characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_sub_type": "text",
    "string_too_long": "at most {max_length} characters long",
    "string_too_short": "text with {min_length} or more characters",
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "time_delta_parsing": "a duration in seconds",
    "time_delta_type": "a duration in seconds",
    "time_parsing": "a time such as 12:00:00",
    "time_type": "a time such as 12:00:00",
    "timezone_aware": "a time with a time zone",
    "timezone_naive": "a time without a time zone",
    "timezone_offset": "a time with the offset {tz_expected}",
    "too_long": "a list of at most {max_length} items",
    "too_short": "a list of at least {min_length} items",
    "tuple_type": "a list",
    "union_tag_invalid": "a table whose {discriminator} is one of {expected_tags}",
    "union_tag_not_found": "a table with the key {discriminator}",
    "url_parsing": "a URL such as https://host/path",
    "url_scheme": "a URL that begins with {expected_schemes}",
    "url_syntax_violation": "a URL such as https://host/path",
    "url_too_long": "a URL of at most {max_length} characters",
    "url_type": "a URL such as https://host/path",
    "uuid_parsing": "a UUID",
    "uuid_type": "a UUID",
    "uuid_version": "a UUID of version {expected_version}",
}
# Kinds of errors that are not about a single value.
_SENTENCES = {
    "arguments_type": "arguments must be a list or a table",
    "default_factory_not_called": "its default depends on values that are not valid",
    "extra_forbidden": "there is no such key",
    "frozen_field": "it cannot be changed",
    "frozen_instance": "it cannot be changed",
    "get_attribute_error": "it cannot be read",
    "iteration_error": "its items cannot be read",
    "missing": "it is required",
    "missing_argument": "it is required",
    "missing_keyword_only_argument": "it is required",
    "missing_positional_only_argument": "it is required",
    "multiple_argument_values": "it is given twice",
    "needs_python_object": "it cannot be read from JSON",
    "no_such_attribute": "there is no such key",
    "recursion_depth_exceeded": "it is nested too deeply",
    "recursion_loop": "it contains itself",
    "unexpected_keyword_argument": "there is no such key",
    "unexpected_positional_argument": "there is no such value",
}
# Errors that this program's own validators raise; their text is a sentence already.
_RAISED_HERE = ("value_error", "assertion_error")
MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")


class Misfit(NamedTuple):
    """A value that does not fit its place.

    Args:
        key: path of keys, with dots; empty for the whole document.
        value: as it was written, shortened; None: it is missing, or is a whole table or list.
        rule: what is valid there, a short sentence.
        kind: pydantic's name of the error.
    """

    key: str
    value: str | None
    rule: str
    kind: str

    @property
    def what(self) -> str:
        """The fault without key and rule."""
        if self.kind in MISSING:
            return "missing"
        # None: the value is a whole table or list, which is not shown.
        return "not valid" if self.value is None else f"{self.value} is not valid"

    def __str__(self) -> str:
        return f"{self.key}: {self.what}; {self.rule}" if self.key else f"{self.what}; {self.rule}"


def describe_rule(kind: str, context: Mapping[str, Any]) -> str:
    """Return what is valid where pydantic found an error of a kind, as a short sentence.

    Args:
        context: pydantic's values of the error.
    """
    if kind in _RAISED_HERE:  # this program's own validators, whose errors are sentences already
        return str(context["error"])
    if kind == "json_invalid":
        position = _POSITION.search(str(context["error"]))
        if position is None:
            return "it must be JSON"
        return f"it must be JSON; reading stopped at {position[0]}"
    if kind in _SENTENCES:
        return _SENTENCES[kind]
    # All kinds that this program's types can have are listed; pydantic may add others later.
    # pydantic's values fill in braces such as ``{max_length}``.
    return f"it must be {_MUST_BE.get(kind, 'a value of a different type').format_map(context)}"


def describe_misfit(details: ErrorDetails) -> Misfit:
    """Return one of pydantic's errors in this program's words."""
    kind = details["type"]
    value = details["input"]
    # If a key is missing, pydantic gives the table that lacks it as the value.
    has_no_single_value = kind in MISSING or isinstance(value, dict | list)
    # pydantic adds "[key]" to the path if the key of a table itself is wrong.
    keys = [str(part) for part in details["loc"] if part != "[key]"]
    return Misfit(
        key=".".join(keys),
        value=None if has_no_single_value else f"{value!r:.{_MAX_CHARACTERS}}",
        rule=describe_rule(kind, details.get("ctx", {})),
        kind=kind,
    )


def find_first_misfit(error: ValidationError) -> Misfit:
    """Return the error that is most useful to the user: an unknown key, else the first error.

    A misspelt key causes two errors, an unknown key and a missing one; the first explains more.
    """
    errors = error.errors(include_url=False)
    unknown_keys = [details for details in errors if details["type"] == "extra_forbidden"]
    return describe_misfit((unknown_keys or errors)[0])


def describe_error(error: Exception) -> str:
    """Return the reason of an error as one line; the caller names the file.

    Of a ValidationError, that is its most useful misfit; of another error, the first line.
    """
    if isinstance(error, ValidationError):
        return str(find_first_misfit(error))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # such as "Permission denied", without the path
    lines: Sequence[str] = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def require_form(pattern: str, form: str) -> AfterValidator:
    """Return a validator of text.

    Args:
        pattern: regular expression that the whole text must match.
        form: the same in words, after "it must be".
    """
    compiled = re.compile(pattern)

    def validate(text: str) -> str:
        """Return ``text`` if it matches; pydantic turns the ValueError into a validation error."""
        if not compiled.fullmatch(text):
            raise ValueError(f"it must be {form}")
        return text

    return AfterValidator(validate)
