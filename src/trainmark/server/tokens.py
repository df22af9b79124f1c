"""Tokens that admit uploads to a server: made, listed, revoked, checked.

One file has a line for each: its hash, without salt (nobody can guess 256 random bits), its name
and its last day.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.data.documents import written_whole
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

STATE = ".serve"  # in the data folder; the index looks into no folder that begins with a point
_PREFIX = "trainmark_"  # programs that look for secrets in code find it by that
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_NEVER = "never"


class Refused(TrainmarkError):
    """A request that is answered with ``status``.

    Args:
        headers: of the answer.
        checks: of a bundle, those that do not hold, as ``trainmark verify --json`` prints them.
        told: where, rule and remedy.
    """

    def __init__(
        self,
        status: int,
        what: str,
        *,
        headers: Mapping[str, str] | None = None,
        checks: Sequence[dict[str, Any]] = (),
        **told: str | None,
    ) -> None:
        super().__init__(what, **told)
        self.status, self.headers, self.checks = status, dict(headers or {}), list(checks)


class Token(NamedTuple):
    """What is known of a token; ``expires``: the first day on which it does not admit (UTC)."""

    sha256: str
    name: str
    expires: str


def state(folder: Path) -> Path:
    """Return where a server keeps its own files in its data folder, which only it may read."""
    made = folder / STATE
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    return made


class Tokens:
    """The tokens of one data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / STATE / "tokens"

    def make(self, name: str, expires: datetime | None = None) -> str:
        """Return the secret of a new token, which nothing shows again.

        Raises:
            UsageError: a name that there is or that cannot be one, a date past.
        """
        known, day = self.listed(), f"{expires:%Y-%m-%d}" if expires else _NEVER
        if not _NAME.fullmatch(name):
            raise UsageError("not a name", where=name, rule="letters, digits and ._@-, at most 64")
        if name in {token.name for token in known}:
            raise UsageError("there is a token of this name", where=name, remedy="choose another")
        if day <= _today():
            raise UsageError("the date is past", where=day)
        secret = _PREFIX + secrets.token_urlsafe(32)
        self._write([*known, Token(_hashed(secret), name, day)])
        return secret

    def revoke(self, name: str) -> None:
        """Remove a token.

        Raises:
            UsageError: there is none of this name.
        """
        known = self.listed()
        if name not in (names := [token.name for token in known]):
            raise UsageError("no such token", where=name, remedy=nearest(name, names))
        self._write([token for token in known if token.name != name])

    def listed(self) -> list[Token]:
        """Return all tokens, the oldest first.

        Raises:
            EnvironmentFault: their file is damaged.
        """
        if not self._file.exists():
            return []
        try:
            return [Token(*line.split()) for line in self._file.read_text().splitlines()]
        except (TypeError, ValueError):
            what, remedy = "not a list of tokens", "remove it, which revokes all, and make new ones"
            raise EnvironmentFault(what, where=str(self._file), remedy=remedy) from None

    def admitted(self, authorization: str | None) -> Token:
        """Return the token of a request.

        Args:
            authorization: the header of this name, ``Bearer SECRET``.

        Raises:
            Refused: no token that admits.
        """
        kind, _, text = (authorization or "").partition(" ")
        hashed = _hashed(text.strip())
        for token in self.listed() if kind.lower() == "bearer" else ():
            # "never" is after all dates.
            if secrets.compare_digest(token.sha256, hashed) and _today() < token.expires:
                return token
        what = "no valid token" if authorization else "a token is needed"
        remedy = "send `Authorization: Bearer TOKEN`; `trainmark serve token make` makes one"
        raise Refused(401, what, headers={"WWW-Authenticate": "Bearer"}, remedy=remedy)

    def _write(self, tokens: Sequence[Token]) -> None:
        state(self._folder)
        with written_whole(self._file) as file:
            file.write("".join(f"{' '.join(token)}\n" for token in tokens).encode())


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _hashed(secret: str) -> str:
    return sha256(secret.encode(errors="replace")).hexdigest()
