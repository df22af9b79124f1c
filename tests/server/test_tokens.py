"""Tokens: their secrets are shown once and kept by nobody; what admits, to what, until when."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.server.refused import Refused
from trainmark.server.tokens import Tokens

DAY = timedelta(days=1)


@pytest.fixture
def tokens(tmp_path):
    return Tokens(tmp_path)


def status(tokens, authorization, scope="upload"):
    try:
        tokens.admitted(authorization, scope)
    except Refused as error:
        return error.status
    return 200


def test_a_secret_has_256_random_bits_and_is_in_no_file(tokens, tmp_path):
    made = {tokens.make(f"t{n}", ["upload"]) for n in range(5)}
    assert len(made) == 5
    assert all(re.fullmatch(r"trainmark_[A-Za-z0-9_-]{43}", secret) for secret in made)
    written = [path.read_text() for path in (tmp_path / ".serve").iterdir()]
    assert not [secret for secret in made for text in written if secret[10:] in text]
    assert (tmp_path / ".serve").stat().st_mode & 0o777 == 0o700


def test_a_token_admits_to_its_scopes_until_it_expires_or_is_revoked(tokens, monkeypatch):
    expires = datetime.now(UTC) + DAY
    secret = tokens.make("a", ["upload"], expires)
    other = tokens.make("b", ["read", "upload"])
    assert status(tokens, f"Bearer {secret}") == 200
    assert status(tokens, f"bearer  {secret}", "read") == 403
    assert status(tokens, f"Bearer {other}", "read") == 200
    for wrong in (None, "", "Bearer", "Bearer trainmark_0", f"Basic {secret}", secret):
        assert status(tokens, wrong) == 401
    tokens.revoke("b")
    tokens.revoke("b")
    assert status(tokens, f"Bearer {other}") == 401

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return expires

    monkeypatch.setattr("trainmark.server.tokens.datetime", Later)
    assert status(tokens, f"Bearer {secret}") == 401


def test_what_cannot_be_a_token_is_refused(tokens, tmp_path):
    tokens.make("a", ["upload"])
    for name, scopes, expires in (
        ("a", ["upload"], None), ("../b", ["upload"], None), ("b", [], None),
        ("b", ["write"], None), ("b", ["read"], datetime.now(UTC) - DAY),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            tokens.make(name, scopes, expires)
    with pytest.raises(UsageError, match="no such token"):
        tokens.revoke("b")
    (tmp_path / ".serve" / "tokens.json").write_text("[{}]")
    with pytest.raises(EnvironmentFault, match="not a list of tokens"):
        tokens.listed()
