"""What the server's OpenAPI document admits, asked in many ways: no fault, and answers as it says.

Examples follow a fixed seed, so that what is found is found again.
"""

from __future__ import annotations

from itertools import product

import pytest

from hostile_records import hostile
from many_records import write_runs
from trainmark.record import record
from trainmark.server.app import create_app
from trainmark.server.settings import Settings
from trainmark.server.tokens import Tokens

schemathesis = pytest.importorskip(
    "schemathesis", reason="no schemathesis here (make test-engines)"
)
from hypothesis import HealthCheck, given, settings  # noqa: E402 - comes with schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

EXAMPLES = 15  # for each operation, of what it admits and of what it does not


# 414: of an address that is too long, which breaks other rules too.
REFUSED = ["400", "401", "403", "404", "405", "409", "413", "414", "415", "422", "429"]
REFUSALS = schemathesis.Config.from_dict(
    {"checks": {"negative_data_rejection": {"expected-statuses": REFUSED}}}
)
bounded = settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@schemathesis.serializer("application/zip")
def bundle(_, value):
    """Send what is made up for a bundle as it is."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    write_runs(folder)
    (folder / "hostile").mkdir()
    record.write(hostile(run_id="hostile"), folder / "hostile")
    return folder


def ask(schema, **more):
    """Send examples of every operation; return how many operations there are."""
    operations = [found.ok() for found in schema.get_all_operations()]
    for operation, mode in product(operations, schemathesis.GenerationMode):
        # Any text is a path and any bytes are a body, as the document has it.
        if list(operation.query) or mode is schemathesis.GenerationMode.POSITIVE:
            given(operation.as_strategy(generation_mode=mode))(bounded(_asked(more)))()
    return len(operations)


def _asked(more):
    def asked(case):
        case.call_and_validate(excluded_checks=[positive_data_acceptance], **more)

    return asked


@pytest.mark.parametrize(("read", "token"), [("public", False), ("token", False), ("token", True)])
def test_answers_are_as_the_document_says(store, read, token):
    app = create_app(Settings(store=str(store), rate=0.0, read=read))
    secret = Tokens(store).make(f"{read}-{token}", ["read", "upload"])
    told = {"Authorization": f"Bearer {secret}"}
    path = "/openapi.json"
    open_api = schemathesis.openapi.from_asgi(path, app, config=REFUSALS, headers=told)
    assert ask(open_api, headers=told if token else {}) >= 10
