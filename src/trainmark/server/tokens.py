"""Tokens that admit to a server: made, listed, revoked, checked.

Kept beside the index, so that nothing that renews the index removes them; of their secrets only
hashes. These need no salt: nobody can guess 256 random bits.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import datetime  # noqa: TC003 - the model reads it
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from filelock import FileLock
from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError

from trainmark.data.json_documents import Frozen, read_bytes, written_whole
from trainmark.errors import EnvironmentFault, UsageError, nearest
from trainmark.server.changes import STATE, Changes, state, sync, utc_now
from trainmark.server.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Scope = Literal["read", "upload"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
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

    def admits(self, now: datetime) -> bool:
        """Tell whether it is neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or now < self.expires)


_ALL = TypeAdapter(tuple[Token, ...])


class Tokens:
    """The tokens of one data folder.

    Args:
        folder: the data folder.
    """

    def __init__(self, folder: Path, *, now: Callable[[], datetime] = utc_now) -> None:
        self.changes, self._now = Changes(folder, now=now), now
        self._folder, self._file = folder, folder / STATE / "tokens.json"
        self._lock = FileLock(folder / STATE / "tokens.lock", mode=0o600)

    def make(self, name: str, scopes: Sequence[str], expires: datetime | None = None) -> str:
        """Return the secret of a new token, which nothing shows again.

        Raises:
            UsageError: a name that there is or that cannot be one, an unknown scope, a date past.
        """
        for scope in scopes:
            if scope not in SCOPES:
                raise UsageError("unknown scope", where=scope, remedy=nearest(scope, SCOPES))
        if expires is not None and expires <= self._now():
            raise UsageError("ends before it begins", where=f"{expires:%Y-%m-%d}")
        secret = _PREFIX + secrets.token_urlsafe(32)
        told = {"name": name, "scopes": tuple(dict.fromkeys(scopes)), "sha256": _hashed(secret)}
        try:
            made = Token.model_validate(told | {"made": self._now(), "expires": expires})
        except ValidationError as error:
            raise UsageError(error.errors()[0]["msg"], where=f"token {name!r}") from None
        state(self._folder)
        with self._lock:
            known = self.listed()
            if name in {token.name for token in known}:
                remedy = "choose another: the log of changes tells tokens apart by their names"
                raise UsageError("there is a token of this name", where=name, remedy=remedy)
            self.changes.add("make token", "made", token=name, scopes=list(made.scopes))
            self._write((*known, made))
        return secret

    def revoke(self, name: str) -> None:
        """Let a token admit no more; one that is revoked already stays as it is.

        Raises:
            UsageError: there is none of this name.
        """
        state(self._folder)
        with self._lock:
            known = {token.name: token for token in self.listed()}
            if name not in known:
                raise UsageError("no such token", where=name, remedy=nearest(name, known))
            if known[name].revoked is None:
                self.changes.add("revoke token", "revoked", token=name)
                known[name] = known[name].model_copy(update={"revoked": self._now()})
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
            remedy = "restore it from a backup; remove it to revoke all tokens"
            where = str(self._file)
            raise EnvironmentFault("no list of tokens", where=where, remedy=remedy) from error

    def admitted(self, authorization: str | None, scope: Scope) -> Token:
        """Return the token of a request that may do what ``scope`` says.

        Args:
            authorization: the header of this name, ``Bearer SECRET``.

        Raises:
            Refused: 401: no token that admits; 403: one without the scope.
        """
        kind, _, text = (authorization or "").partition(" ")
        found = self._known(text.strip()) if kind.lower() == "bearer" else None
        if found is None:
            what = "no valid token" if authorization else "a token is needed"
            raise Refused(401, what, headers={"WWW-Authenticate": "Bearer"}, remedy=_REMEDY)
        if scope not in found.scopes:
            if scope != "read":
                self.changes.add(scope, "refused", token=found.name, status=403)
            told = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'}
            rule = f"this needs the scope {scope}"
            raise Refused(
                403, f"the token is for {', '.join(found.scopes)}", headers=told, rule=rule
            )
        return found

    def _known(self, text: str) -> Token | None:
        """Return the token of a secret; every one is compared, so that time tells nothing."""
        hashed, now = _hashed(text), self._now()
        same = [token for token in self.listed() if hmac.compare_digest(token.sha256, hashed)]
        return same[0] if same and same[0].admits(now) else None

    def _write(self, tokens: tuple[Token, ...]) -> None:
        with written_whole(self._file) as file:
            file.write(_ALL.dump_json(tokens, indent=1))
        sync(self._file.parent)


_REMEDY = "send `Authorization: Bearer TOKEN`; `trainmark serve token make` makes one"


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
