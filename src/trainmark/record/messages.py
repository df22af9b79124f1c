"""Render every reason, note of a figure, finding and cause of a record as a sentence.

A record has codes with arguments (``spec.Message``); ``messages.toml`` beside this file has the
sentence of each code in English and Chinese. To add a message: emit
``message("my_code", steps=3)`` and add ``my_code.en`` and ``my_code.zh`` there. The codes of one
case are in its own ``messages.toml`` or ``Case.messages`` and begin with the case's name and a dot.
A test checks that code and arguments of every ``message(...)`` in the source are in these tables.
"""

from __future__ import annotations

from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from trainmark.spec import MESSAGES_FILE, Message, Text, message, read_messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.record.record import Cause

MESSAGES = read_messages(Path(__file__).with_name(MESSAGES_FILE))


class _Unknown(str):
    """Text for a null argument; accepts every format specification and ignores it."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return str(self)


class _SentenceFormatter(Formatter):
    """``str.format`` with two more format specifications: ``format_field`` describes them."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return the text of an argument by its format specification.

        ``# less|# more``: the first text for a negative number, else the second; ``#`` stands for
        its absolute value in percent. ``=step|steps``: the number with the first text for 1, else
        with the second. All others: as of ``str.format``.
        """
        first, separator, second = format_spec.partition("|")
        has_two_texts = separator == "|"
        if has_two_texts and first.startswith("="):
            noun = first.removeprefix("=") if value == 1 else second
            return f"{value:,} {noun}"
        if has_two_texts and isinstance(value, int | float):
            text = first if value < 0 else second
            return text.replace("#", f"{abs(value):.1%}")
        return str(super().format_field(value, format_spec))


_FORMATTER = _SentenceFormatter()


def fill_sentence(sentence: str, values: Mapping[str, Any]) -> str:
    """Return a sentence with its placeholders, such as ``{share:.1%}``, filled.

    Besides the formats of ``str.format`` there are those for two texts, such as
    ``{steps:=step|steps}``, of which the value chooses one.
    """
    return _FORMATTER.vformat(sentence, (), values)


_UNKNOWN = {"en": _Unknown("unknown"), "zh": _Unknown("未知")}


def render(message: Message, lang: str, case_messages: Mapping[str, Text] | None = None) -> str:
    """Return the sentence of ``message`` in ``lang``.

    Unknown codes or arguments (a record of another version, or an edited one) are printed
    unrendered, so that no content of a record is hidden.

    Args:
        case_messages: the sentences that the record's case brings along, by code. ``MESSAGES`` does
            not have them.
    """
    sentence = MESSAGES.get(message.code)
    if sentence is None and case_messages is not None:
        sentence = case_messages.get(message.code)
    unknown = _UNKNOWN[lang]  # a word that ignores the format specification in the sentence
    args = {name: unknown if value is None else value for name, value in message.args.items()}
    if sentence is not None:
        try:
            return fill_sentence(sentence.in_language(lang), args)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError):
            pass  # not the arguments of this code: printed unrendered below
    if not args:
        return message.code
    printed_args = ", ".join(f"{name}={value}" for name, value in args.items())
    return f"{message.code} ({printed_args})"


def shorten(reason: Message) -> Message:
    """Return a reason in its short wording; unchanged if it has none."""
    code = f"short.{reason.code}"
    return message(code, **reason.args) if code in MESSAGES else reason


def get_stated_fix(cause: Cause) -> str:
    """Return the fix that an error itself states; empty: none.

    Earlier records call it ``remedy``.
    """
    args = cause.message.args
    return str(args.get("fix") or args.get("remedy") or "")


def find_fix(cause: Cause) -> Message:
    """Return what to do about ``cause``; a fix that the error states takes precedence.

    The code of the cause's message is more exact than its kind, so that advice for the code takes
    precedence. Without any advice for the cause, the fix is a general one.
    """
    stated = get_stated_fix(cause)
    if stated:
        return message("own_fix", text=stated)
    fix_name = "unknown"
    if f"fix.{cause.message.code}" in MESSAGES:
        fix_name = cause.message.code
    elif f"fix.{cause.kind}" in MESSAGES:
        fix_name = cause.kind
    if fix_name == "error" and cause.traceback is None:  # its fix says to read the traceback
        fix_name = "unknown"
    return message(f"fix.{fix_name}", rank=cause.rank)
