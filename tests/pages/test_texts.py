"""Texts: complete in both languages, each in its own script."""

import re
import string
from pathlib import Path

import trainmark
from trainmark.pages.texts import TEXTS
from trainmark.pages.wrapping import measure_width

CJK = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")


def list_placeholders(sentence):
    """Return the names in braces, in the order of the alphabet; each as often as it occurs."""
    return sorted(name for _, name, _, _ in string.Formatter().parse(sentence) if name)


def test_every_text_exists_in_both_languages_with_the_same_placeholders():
    # ``TEXTS`` has the English and the Chinese text (``en``, ``zh``) of each key, such as
    # "count.samples"; ``CJK`` matches a Chinese character; a placeholder is a name in braces.
    # Exceptions: parts of sentences that one of the languages does not need, or builds otherwise.
    exceptions = ("reference.as_printed", "spans.name", "nodes.", "configuration.", "sep.space")
    for key, texts in TEXTS.items():
        assert texts.en, key
        assert not CJK.search(texts.en), key
        if not key.startswith(exceptions):
            assert texts.zh, key
            assert list_placeholders(texts.en) == list_placeholders(texts.zh), key


def test_every_text_is_used():
    """A text is used by its key, or the source makes the key ``kind.name`` from a computed name.

    That is ``f"kind.{name}"``, in a template ``"kind." ~ name``, or a call such as ``term("kind",
    name)``.
    """
    root = Path(trainmark.__file__).parent
    paths = (root / "pages").rglob("*")
    page_files = [path for path in paths if path.suffix in (".py", ".j2", ".json")]
    page_source = "".join(path.read_text("utf-8") for path in page_files)
    words = set()
    for path in [*root.rglob("*.py"), *page_files]:
        words |= set(re.findall(r"[\w-]+", path.read_text("utf-8")))
    unused = []
    for key in TEXTS:
        kind, _, name = key.partition(".")
        # The name occurs in the source as a word, or all its words do.
        name_occurs = name in words or all(word in words for word in re.split("[ -]", name))
        # The source makes keys of this kind from a name that it computes.
        kind_is_composed = (
            f'f"{kind}.{{' in page_source
            or f'("{kind}", ' in page_source
            or f'"{kind}." ~' in page_source
        )
        key_occurs = re.search(rf"""["']{re.escape(key)}["']""", page_source)
        if not key_occurs and not (kind_is_composed and name_occurs):
            unused.append(key)
    assert unused == []


def test_names_of_counts_fit_on_one_line_of_a_narrow_terminal() -> None:
    # 24 columns are a limit of our own for a name. ``measure_width`` counts two columns for a
    # Chinese character. ``TEXTS`` has the English and the Chinese text (``en``, ``zh``) of each
    # key.
    names = {key: text for key, text in TEXTS.items() if key.startswith("count.")}
    assert len(names) == 8  # all were found
    for key, text in names.items():
        assert max(measure_width(text.en), measure_width(text.zh)) <= 24, key
