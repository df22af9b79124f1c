"""The addresses of the site's pages: of the server, or of plain files relative to a page.

Owns how filters stand in a URL: ``case``, ``device``, ``precision`` and ``status`` as fields of
their own, all others as words in ``q``.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from trainmark.errors import UsageError
from trainmark.pages.texts import LANGUAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CHOICES = ("case", "device", "precision", "status")
NEWEST = "-started"
RECORDS = "kind=record"  # what the list is of; rows that others printed are not in it
MOST_FILTERS, MOST_LETTERS = 20, 300  # each may look at many columns of all runs
_OPERATOR = re.compile(r"[^=!~<>\s]+(!=|>=|<=|=|~|>|<)")
# No two of them are the same file where upper and lower case are not told apart.
_PLAIN = re.compile(r"([0-9]{8}T[0-9]{6}Z-|[a-z])[a-z0-9._-]{0,150}")


def words_of(query: Iterable[tuple[str, str]]) -> list[str]:
    """Return the filters that the fields of a URL's query stand for; other fields are no filters.

    A word of ``q`` without an operator is searched for.

    Raises:
        UsageError: a quotation mark in ``q`` is not closed, or it is more than a search may be.
    """
    words: list[str] = []
    for name, value in query:
        if name in CHOICES and value:
            words.append(f"{name}={value}")
        elif name == "q":
            try:
                found = shlex.split(value)
            except ValueError:
                raise UsageError(
                    f"not a search: {value[:80]!r}", where="q", rule="quotation marks are closed"
                ) from None
            words += [word if _OPERATOR.match(word) else f"text~{word}" for word in found if word]
    if len(words) > MOST_FILTERS or any(len(word) > MOST_LETTERS for word in words):
        rule = f"at most {MOST_FILTERS} filters of {MOST_LETTERS} letters"
        raise UsageError("the search is too long", where="q", rule=rule)
    return words


def fields_of(words: Sequence[str]) -> dict[str, str]:
    """Return the fields of a URL's query that stand for filters, as ``words_of`` reads them."""
    fields, others = {}, []
    for word in words:
        name, _, value = word.partition("=")
        if name in CHOICES and value and name not in fields:
            fields[name] = value
        else:
            plain = word.removeprefix("text~")
            others.append(shlex.quote(word if _OPERATOR.match(plain) or not plain else plain))
    return fields | ({"q": " ".join(others)} if others else {})


@dataclass(frozen=True, slots=True)
class Links:
    """Every address, as a page of one language has it.

    Args:
        static: plain files; otherwise the server's.
        root: of the server, the path that it is below, without a slash at the end; of files, what
            leads from the page to the site's folder: empty or ``../`` once or more.
        served: the files are those of a server, which compares runs.
        asked: the language is what the reader asked for; a server's pages say it in all addresses.
    """

    static: bool = False
    lang: str = "en"
    root: str = ""
    asked: bool = False
    served: bool = False

    @property
    def told(self) -> str:
        """Return the language as addresses say it; empty where nothing need be said."""
        return self.lang if self.asked or self.lang != LANGUAGES[0] else ""

    @property
    def other(self) -> Links:
        """Return the links of the same place in the other language."""
        return replace(self, lang=next(lang for lang in LANGUAGES if lang != self.lang))

    def runs(self, words: Sequence[str] = (), sort: str = NEWEST, page: int = 1) -> str:
        """Return the address of a page of the list."""
        if self.static:
            return self._page("index" if page == 1 else f"page-{page}")
        told = [*fields_of(words).items(), *_sorted(sort), ("page", str(page) if page > 1 else "")]
        return self._page("", told)

    def case(self, name: str) -> str:
        """Return the address of a case's page."""
        return self._page(f"cases/{self.name(name)}")

    def run(self, run_id: str) -> str:
        """Return the address of a run's page."""
        return self._page(f"runs/{self.name(run_id)}")

    def compare(self, run_ids: Sequence[str], allow: Sequence[str] = ()) -> str:
        """Return the address of the side-by-side page; files without a server have none."""
        fields = [("run", run_id) for run_id in run_ids] + [("allow", key) for key in allow]
        if self.static:
            return _with(f"{self._top}compare", [*fields, ("lang", self.told)])
        return self._page("compare", fields)

    def references(self, case: str | None = None) -> str:
        """Return the address of the published figures, of all cases or of one."""
        return self._page("references" if case is None else f"references/{self.name(case)}")

    def file(self, name: str) -> str:
        """Return the address of a style sheet or script."""
        return f"{self._top}static/{quote(name)}"

    def data(self, ending: str, words: Sequence[str] = (), sort: str = NEWEST) -> str:
        """Return the address of the list as ``csv`` or ``json``, without pages."""
        if self.static:
            return f"{self._top}runs.{ending}"
        path = f"{self._top}api/runs{'.csv' if ending == 'csv' else ''}"
        return _with(path, [*(("filter", word) for word in (RECORDS, *words)), *_sorted(sort)])

    def index(self) -> str:
        """Return the address of what the script of plain files filters the list by."""
        return self._page("index").removesuffix("html") + "json"

    def record(self, run_id: str) -> str:
        """Return the address of a run's ``record.json``."""
        if self.static:
            return f"{self._top}runs/{self.name(run_id)}.json"
        return f"{self._top}api/runs/{self.name(run_id)}/record.json"

    def api(self, run_id: str) -> str:
        """Return the address of what the server's API tells of a run."""
        return f"{self._top}api/runs/{self.name(run_id)}"

    def bundle(self, run_id: str) -> str:
        """Return the address of the bundle that the server stored of a run."""
        return f"{self.api(run_id)}/bundle"

    def name(self, text: str) -> str:
        """Return a name out of a record as a part of an address; of a file, one that is safe."""
        if not self.static:
            return quote(text, safe="")
        if _PLAIN.fullmatch(text):
            return text
        return blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()

    @property
    def _top(self) -> str:
        return self.root if self.static else f"{self.root}/"

    def _page(self, path: str, fields: Iterable[tuple[str, str]] = ()) -> str:
        if self.static:
            return f"{self._top}{self.told and f'{self.told}/'}{path}.html"
        return _with(f"{self._top}{path}", [*fields, ("lang", self.told)])


def _sorted(sort: str) -> list[tuple[str, str]]:
    return [] if sort == NEWEST else [("sort", sort)]


def _with(path: str, fields: Iterable[tuple[str, str]]) -> str:
    told = urlencode([(name, value) for name, value in fields if value])
    return f"{path}?{told}" if told else path
