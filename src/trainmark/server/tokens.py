"""Tokens that admit to a server: made, listed, revoked, checked.

One file beside the index has their hashes, without salt: nobody can guess 256 random bits.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError

from trainmark.data.json_documents import Frozen, read_bytes, written_whole
from trainmark.errors import EnvironmentFault, UsageError, nearest
from trainmark.server.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STATE = ".serve"  # in the data folder; the index looks into no folder that begins with a point
Scope = Literal["read", "upload"]
_PREFIX = "trainmark_"  # programs that look for secrets in code find it by that


class Token(Frozen):
    """What is known of a token.

    Args:
        expires: the first moment at which it does not admit; None: it admits until it is revoked.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    sha256: str
    made: AwareDatetime
    expires: AwareDatetime | None = None
    revoked: AwareDatetime | None = None


_ALL = TypeAdapter(tuple[Token, ...])


def state(folder: Path) -> Path:
    """Return where a server keeps its own files in its data folder, which only it may read."""
    made = folder / STATE
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    return made


class Tokens:
    """The tokens of one data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / STATE / "tokens.json"

    def make(self, name: str, scopes: Sequence[str], expires: datetime | None = None) -> str:
        """Return the secret of a new token, which nothing shows again.

        Raises:
            UsageError: a name that there is or that cannot be one, an unknown scope, a date past.
        """
        known, now = self.listed(), datetime.now(UTC)
        for scope in scopes:
            if scope not in get_args(Scope):
                remedy = nearest(scope, get_args(Scope))
                raise UsageError("unknown scope", where=scope, remedy=remedy)
        if expires is not None and expires <= now:
            raise UsageError("the date is past", where=f"{expires:%Y-%m-%d}")
        if name in {token.name for token in known}:
            raise UsageError("there is a token of this name", where=name, remedy="choose another")
        secret = _PREFIX + secrets.token_urlsafe(32)
        values = {"name": name, "scopes": tuple(dict.fromkeys(scopes)), "sha256": _hashed(secret)}
        try:
            made = Token.model_validate(values | {"made": now, "expires": expires})
        except ValidationError as error:
            raise UsageError(error.errors()[0]["msg"], where=f"token {name!r}") from None
        self._write((*known, made))
        return secret

    def revoke(self, name: str) -> None:
        """Let a token admit no more; one that is revoked already stays as it is.

        Raises:
            UsageError: there is none of this name.
        """
        known = {token.name: token for token in self.listed()}
        if name not in known:
            raise UsageError("no such token", where=name, remedy=nearest(name, known))
        if known[name].revoked is None:
            known[name] = known[name].model_copy(update={"revoked": datetime.now(UTC)})
            self._write(tuple(known.values()))

    def listed(self) -> tuple[Token, ...]:
        """Return all tokens that were made, the oldest first.

        Raises:
            EnvironmentFault: their file is damaged.
        """
        try:
            return _ALL.validate_json(read_bytes(self._file))
        except FileNotFoundError:
            return ()
        except ValueError as error:
            what, remedy = "not a list of tokens", "remove it, which revokes all, and make new ones"
            raise EnvironmentFault(what, where=str(self._file), remedy=remedy) from error

    def admitted(self, authorization: str | None, scope: Scope) -> Token:
        """Return the token of a request that may do what ``scope`` says.

        Args:
            authorization: the header of this name, ``Bearer SECRET``.

        Raises:
            Refused: 401: no token that admits; 403: one without the scope.
        """
        kind, _, text = (authorization or "").partition(" ")
        hashed, now = _hashed(text.strip()), datetime.now(UTC)
        for token in self.listed() if kind.lower() == "bearer" else ():
            valid = token.revoked is None and (token.expires is None or now < token.expires)
            if valid and secrets.compare_digest(token.sha256, hashed):
                if scope in token.scopes:
                    return token
                rule = f"this needs the scope {scope}"
                raise Refused(403, f"the token is for {', '.join(token.scopes)}", rule=rule)
        what = "no valid token" if authorization else "a token is needed"
        remedy = "send `Authorization: Bearer TOKEN`; `trainmark serve token make` makes one"
        raise Refused(401, what, headers={"WWW-Authenticate": "Bearer"}, remedy=remedy)

    def _write(self, tokens: tuple[Token, ...]) -> None:
        state(self._folder)
        with written_whole(self._file) as file:
            file.write(_ALL.dump_json(tokens, indent=1))


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
