"""The site: pages about many results; here their addresses, each relative to the page that has it.

Pages of the first language lie in the site's folder, those of others in a folder of the language's
name; data and what pages load is there once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

from trainmark.pages.texts import LANGUAGES

# No two of them are the same file where upper and lower case are not told apart.
_PLAIN = re.compile(r"([0-9]{8}T[0-9]{6}Z-|[a-z])[a-z0-9._-]{0,150}")


def name(text: str) -> str:
    """Return a name out of a record as one of a file that is safe."""
    if _PLAIN.fullmatch(text):
        return text
    return blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()


def run_file(run_id: str) -> str:
    """Return where a run's page is."""
    return f"runs/{name(run_id)}.html"


@dataclass(frozen=True, slots=True)
class Links:
    """Every address, as one page has it.

    Args:
        path: of the page, below its language's folder: ``cases/toy.html``.
        served: the site is a server's, which compares runs.
    """

    path: str
    lang: str = LANGUAGES[0]
    served: bool = False

    @property
    def file(self) -> str:
        """Return where the page is in the site's folder."""
        return self.path if self.lang == LANGUAGES[0] else f"{self.lang}/{self.path}"

    @property
    def here(self) -> str:
        """Return the page's own address."""
        return self.to(self.path)

    @property
    def translations(self) -> list[tuple[str, str]]:
        """Return each language with the address of this page in it."""
        return [(lang, self.root(Links(self.path, lang).file)) for lang in LANGUAGES]

    def to(self, path: str) -> str:
        """Return the address of another page of the language."""
        return "../" * self.path.count("/") + path

    def root(self, path: str) -> str:
        """Return the address of a file of the site's folder."""
        return "../" * self.file.count("/") + path

    def case(self, case: str) -> str:
        """Return the address of a case's page."""
        return self.to(f"cases/{name(case)}.html")

    def run(self, run_id: str) -> str:
        """Return the address of a run's page."""
        return self.to(run_file(run_id))

    def record(self, run_id: str) -> str:
        """Return the address of a run's record."""
        return self.root(run_file(run_id).removesuffix("html") + "json")
