"""Messages: every code that the source emits has both languages and the same arguments."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

import pytest

import trainmark
from trainmark import cases
from trainmark.errors import UsageError
from trainmark.record.messages import MESSAGES, render
from trainmark.spec import MESSAGES_FILE, Message, read_messages

EMITTERS = (
    "message",
    "RunError",
    "DivergedError",
    "ContradictionError",
    "UntimedWorkError",
    "NotTrainedError",
)
CJK = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")
SOURCE = Path(trainmark.__file__).parent
TEXTS = {
    **MESSAGES,
    **{k: v for n in cases.list_names() for k, v in cases.load(n).messages.items()},
}
MACHINE_TEXTS = read_messages(SOURCE / "machine" / MESSAGES_FILE)
assert not MESSAGES.keys() & MACHINE_TEXTS.keys(), "a sentence for two things"
TEXTS |= MACHINE_TEXTS


def list_placeholders(sentence: str) -> set[str]:
    """Return the names in braces, which are to be replaced by arguments."""
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def derive_code_pattern(node: ast.expr) -> str | None:
    """Return a pattern for the codes that an expression can give; None: not known here."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):  # an f-string: any text for its fields
        return "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".*"
            for part in node.values
        )
    return None


def list_emitted() -> list[tuple[str, str, set[str] | None]]:
    """Return place, code pattern and argument names of every call of ``message`` with a code.

    Classes of errors that take the code of a message first, as it does, count too (``EMITTERS``).
    The names are None if arguments are passed as ``**arguments``.
    """
    calls = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if not is_call or node.func.id not in EMITTERS or not node.args:
                continue
            names = {keyword.arg for keyword in node.keywords}
            place = f"{path.relative_to(SOURCE)}:{node.lineno}"
            first = node.args[0]
            expressions = [first]
            if isinstance(first, ast.IfExp):  # one of two codes
                expressions = [first.body, first.orelse]
            for expression in expressions:
                code = derive_code_pattern(expression)
                if code is not None:  # otherwise the code comes from a table
                    # The syntax tree has ``**arguments`` as a keyword with the name None.
                    calls.append((place, code, None if None in names else names))
    return calls


@pytest.mark.parametrize(
    ("document", "what"),
    [
        (  # the text has the letters "en", but no key of this name
            'fix.slow = "spend less"',
            "fix.slow must be a table with an English text under the key `en`",
        ),
        (
            'fix.slow = "too slow"',
            "fix.slow must be a table with an English text under the key `en`",
        ),
        ("fix.slow.en = 5", "fix.slow.en must be a table with an English text under the key `en`"),
        (
            'fix.slow.zh = "太慢"',
            "fix.slow.zh must be a table with an English text under the key `en`",
        ),
        ('fix.slow = {en = "slow", de = "langsam"}', "unexpected keyword argument 'de'"),
    ],
)
def test_malformed_sentence_is_refused(tmp_path: Path, document: str, what: str) -> None:
    # A file of messages has a table for each sentence: its English text ``en``, and ``zh`` in
    # Chinese. ``what`` is a part of the error.
    file = tmp_path / MESSAGES_FILE
    file.write_text(document)
    with pytest.raises(UsageError, match=re.escape(what)):
        read_messages(file)


def test_every_code_that_is_emitted_has_its_sentences() -> None:
    # Every call in the source that emits a message, with its place, a pattern of its code and the
    # names of its arguments. ``MESSAGES`` has the sentences of the program by code, ``TEXTS`` also
    # those of the benchmark cases and of the machine.
    for place, code, names in list_emitted():
        # Records are reduced without the cases, whose sentences are only in ``TEXTS``.
        texts = MESSAGES if place.startswith("record/") else TEXTS
        matching_codes = [name for name in texts if re.fullmatch(code, name)]
        assert matching_codes, f"{place}: no sentence for {code}"
        if names is None:  # passed as ``**arguments``
            continue
        for name in matching_codes:
            assert list_placeholders(TEXTS[name].en) <= names, f"{place}: {name}"


def test_every_sentence_exists_in_both_languages_with_the_same_arguments() -> None:
    # ``TEXTS`` are all sentences by code, in English and Chinese; ``CJK`` finds Chinese characters.
    for code, texts in TEXTS.items():
        assert texts.en, code
        assert CJK.search(texts.zh), code
        assert not CJK.search(texts.en), code
        assert list_placeholders(texts.en) == list_placeholders(texts.zh), code


def test_every_sentence_can_be_emitted() -> None:
    # ``TEXTS`` are all sentences by code. ``list_emitted`` gives, of each call that emits a
    # message, its place, a pattern of its code, and the names of its arguments.
    patterns = {pattern for _, pattern, _ in list_emitted()}
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    for code in TEXTS:
        # As a text, or put together as f"kind.{…}".
        is_in_source = f'"{code}"' in source or f'"{code.partition(".")[0]}.{{' in source
        assert is_in_source or any(
            re.fullmatch(known_pattern, code) for known_pattern in patterns
        ), code


@pytest.mark.parametrize(
    ("unknown", "expected"),
    [
        # A code that has no text, and one whose text does not fit the arguments.
        (Message("of_tomorrow", {"a": 1, "b": "x"}), "of_tomorrow (a=1, b=x)"),
        (Message("of_tomorrow"), "of_tomorrow"),
        (Message("not_steady", {"drift": "much"}), "not_steady (drift=much)"),
        (Message("not_steady"), "not_steady"),
    ],
)
def test_unknown_message_is_shown_unchanged(unknown: Message, expected: str) -> None:
    assert render(unknown, "en") == expected


@pytest.mark.parametrize(
    ("drift", "english", "chinese"),
    [
        (
            -0.6164,
            "steps became 61.6% faster during the run",
            "运行过程中，单个训练步的耗时缩短 61.6%",
        ),
        (0.068, "steps became 6.8% slower during the run", "运行过程中，单个训练步的耗时增加 6.8%"),
        (0, "steps became 0.0% slower during the run", "运行过程中，单个训练步的耗时增加 0.0%"),
    ],
)
def test_direction_of_a_change_is_a_word(drift: float, english: str, chinese: str) -> None:
    note = Message("short.not_steady", {"drift": drift})
    assert (render(note, "en"), render(note, "zh")) == (english, chinese)


def test_no_sentence_explains_a_plus_or_minus_sign() -> None:
    # ``TEXTS`` has the English and the Chinese sentence of each code. A change is named by a word,
    # such as faster or slower, so that no sentence says "plus: faster", or the same in Chinese
    # (正为).
    for code, texts in TEXTS.items():
        for text in (texts.en, texts.zh):
            assert not re.search(r"plus(:| is) |正为", text), code
