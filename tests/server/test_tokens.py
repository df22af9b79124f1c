"""Tokens: their secrets are shown once and kept by nobody; what admits, to what, until when."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.server.refused import Refused
from trainmark.server.tokens import Tokens

DAY = timedelta(days=1)


class Calendar:
    def __init__(self):
        self.now = datetime(2026, 11, 22, tzinfo=UTC)

    def __call__(self):
        return self.now


@pytest.fixture
def calendar():
    return Calendar()


@pytest.fixture
def tokens(tmp_path, calendar):
    return Tokens(tmp_path, now=calendar)


def name(tokens, secret, scope):
    return tokens.admitted(f"Bearer {secret}", scope).name


def refused(tokens, authorization, scope="upload"):
    with pytest.raises(Refused) as found:
        tokens.admitted(authorization, scope)
    return found.value.status


def test_a_secret_has_256_random_bits_and_is_in_no_file(tokens, tmp_path):
    secrets = {tokens.make(f"t{n}", ["upload"]) for n in range(20)}
    assert len(secrets) == 20
    assert all(re.fullmatch(r"trainmark_[A-Za-z0-9_-]{43}", secret) for secret in secrets)
    written = [path.read_text() for path in (tmp_path / ".serve").iterdir()]
    assert not [secret for secret in secrets for text in written if secret[10:] in text]
    assert (tmp_path / ".serve").stat().st_mode & 0o777 == 0o700


def test_a_token_admits_to_its_scopes_alone(tokens):
    upload, both = tokens.make("a", ["upload"]), tokens.make("b", ["read", "upload"])
    assert name(tokens, upload, "upload") == "a"
    assert {name(tokens, both, scope) for scope in ("read", "upload")} == {"b"}
    assert tokens.admitted(f"bearer  {both}", "read").name == "b"
    assert refused(tokens, f"Bearer {upload}", "read") == 403


@pytest.mark.parametrize(
    "text",
    [None, "", "Bearer", "Bearer x", "Basic SECRET", "SECRET", "Bearer SECRETx", "Bearer \udce9"],
)
def test_whatever_is_not_the_secret_admits_to_nothing(tokens, text):
    secret = tokens.make("a", ["upload"])
    assert refused(tokens, text and text.replace("SECRET", secret)) == 401


def test_an_expired_token_and_a_revoked_one_admit_no_more(tokens, calendar):
    short = tokens.make("short", ["upload"], calendar.now + DAY)
    long = tokens.make("long", ["upload"])
    calendar.now += DAY - timedelta(seconds=1)
    assert name(tokens, short, "upload") == "short"
    calendar.now += timedelta(seconds=1)
    assert refused(tokens, f"Bearer {short}") == 401
    assert name(tokens, long, "upload") == "long"
    tokens.revoke("long")
    tokens.revoke("long")
    assert refused(tokens, f"Bearer {long}") == 401
    assert [token.revoked for token in tokens.listed()] == [None, calendar.now]


def test_every_process_sees_a_change_at_once(tokens, tmp_path):
    secret = tokens.make("a", ["read"])
    other = Tokens(tmp_path)
    assert name(other, secret, "read") == "a"
    other.revoke("a")
    assert refused(tokens, f"Bearer {secret}", "read") == 401


@pytest.mark.parametrize(("called", "scopes"), [("a", ["read"]), ("b", ["write"]), ("b", []),
                                              ("", ["read"]), ("b\n", ["read"])])  # fmt: skip
def test_what_cannot_be_a_token_is_not_made(tokens, called, scopes):
    tokens.make("a", ["upload"])
    with pytest.raises(UsageError):
        tokens.make(called, scopes)
    assert [token.name for token in tokens.listed()] == ["a"]


def test_a_token_that_would_be_past_is_not_made(tokens, calendar):
    with pytest.raises(UsageError):
        tokens.make("a", ["read"], calendar.now)
    with pytest.raises(UsageError):
        tokens.revoke("a")


def test_a_damaged_list_admits_nobody_and_is_not_replaced(tokens, tmp_path):
    secret = tokens.make("a", ["upload"])
    (tmp_path / ".serve" / "tokens.json").write_text("[")
    for call in (lambda: name(tokens, secret, "upload"), lambda: tokens.make("b", ["read"])):
        with pytest.raises(EnvironmentFault):
            call()


def test_the_log_of_changes_has_each_and_goes_on_after_a_line_that_was_cut_off(tokens, tmp_path):
    tokens.make("a", ["upload"])
    log = tmp_path / ".serve" / "changes.jsonl"
    with log.open("a") as file:
        file.write('{"time": "2026')
    tokens.revoke("a")
    lines = log.read_text().splitlines()
    assert [json.loads(lines[n])["action"] for n in (0, 2)] == ["make token", "revoke token"]
    assert [line["result"] for line in tokens.changes.read()] == ["made", "revoked"]
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("verb", ["make", "revoke"])
def test_a_folder_that_cannot_be_written_is_said(cli, tmp_path, verb):
    (tmp_path / ".serve").touch()
    code, out, err = cli("serve", "token", verb, "ci", "--data", str(tmp_path))
    assert (code, out) == (2, "")
    assert str(tmp_path) in err
