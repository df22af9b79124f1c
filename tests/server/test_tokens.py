"""Upload tokens: secrets are shown once and never stored; only valid tokens admit."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from functools import reduce
from operator import and_, or_

import pytest

from trainmark.errors import UsageError
from trainmark.server.serving import RefusedRequestError, Tokens


@pytest.fixture
def tokens(tmp_path):
    return Tokens(tmp_path)


def is_admitted(tokens, authorization):
    """Return whether a request with this Authorization header is admitted."""
    try:
        tokens.authenticate(authorization)
    except RefusedRequestError:
        return False
    return True


def test_a_secret_has_256_bits_that_vary_and_is_in_no_file(tokens, tmp_path):
    secrets = {tokens.create(f"t{number}") for number in range(64)}
    assert len(secrets) == 64
    # 43 characters of base64 hold 256 bits.
    assert all(re.fullmatch(r"trainmark_[A-Za-z0-9_-]{43}", secret) for secret in secrets)
    # Each of the bits is 0 in some secret and 1 in another: a random one is equal in all 64 with a
    # probability of 2**-63.
    numbers = [int.from_bytes(urlsafe_b64decode(secret[10:] + "="), "big") for secret in secrets]
    assert (reduce(and_, numbers), reduce(or_, numbers)) == (0, 2**256 - 1)
    texts = [path.read_text() for path in (tmp_path / ".serve").iterdir()]
    # Without ``trainmark_``, the beginning of all secrets.
    assert not [secret for secret in secrets for text in texts if secret[10:] in text]
    assert (tmp_path / ".serve").stat().st_mode & 0o777 == 0o700


def test_token_is_valid_until_its_line_is_deleted(tokens):
    secret, other = tokens.create("a"), tokens.create("b")
    assert is_admitted(tokens, f"Bearer {secret}")
    # The scheme may be in any case, and any number of spaces may follow.
    assert is_admitted(tokens, f"bearer  {other}")
    for wrong in (None, "", "Bearer", "Bearer trainmark_0", f"Basic {secret}", secret):
        assert not is_admitted(tokens, wrong)
    tokens.file.write_text(tokens.file.read_text().splitlines()[0])  # the line of a
    assert not is_admitted(tokens, f"Bearer {other}")
    assert is_admitted(tokens, f"Bearer {secret}")
    assert list(tokens.read_hashes()) == ["a"]


def test_taken_or_invalid_name_of_a_token_is_refused(tokens):
    tokens.create("a")
    for name in ("a", "../b"):  # a name that is taken, and one that is a path
        with pytest.raises(UsageError):
            tokens.create(name)
