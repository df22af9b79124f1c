"""Names of nodes: in the record of a run as they are, and elsewhere under a stable pseudonym."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.fakes import launch_event, make_event, measure, write_events, write_run
from trainmark.events.timeline import read_run
from trainmark.results.pseudonyms import KEY_FILE, load_key, make_pseudonym
from trainmark.results.redaction import Redactor

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

KEY = bytes(range(32))


def test_pseudonym_depends_only_on_name_and_key() -> None:
    # ``KEY``: the bytes 0 to 31, in place of a user's random key of 32 bytes.
    first = make_pseudonym("gpu-node17", KEY)

    # The first 8 hexadecimal digits of the name's HMAC-SHA256 with the key. Later versions must
    # give the same pseudonyms.
    assert first == "<host-e95a0b49>"
    assert make_pseudonym("gpu-node17", KEY) == first
    assert make_pseudonym("gpu-node18", KEY) != first
    assert make_pseudonym("gpu-node17", KEY[::-1]) != first
    assert make_pseudonym(first, KEY) == first  # a pseudonym is not replaced again


def test_key_is_created_once_and_readable_only_by_its_user(tmp_path: Path) -> None:
    key = load_key(tmp_path / "cache")

    assert key is not None
    assert len(key) == 32  # bytes
    assert load_key(tmp_path / "cache") == key
    assert (tmp_path / "cache" / KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_key_that_was_not_written_completely_is_made_again(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"short")  # as a process leaves it that dies meanwhile

    key = load_key(tmp_path)

    assert key is not None
    assert len(key) == 32  # bytes
    assert load_key(tmp_path) == key


def test_without_a_stored_key_all_nodes_share_one_name(tmp_path: Path) -> None:
    # Pseudonyms are made with a secret key, which cannot be stored here. Without it a name could be
    # guessed from its pseudonym, so all names become the same word.
    (tmp_path / "cache").write_text("a file where the folder should be")

    assert load_key(tmp_path / "cache") is None
    assert make_pseudonym("gpu-node17", key=None) == "<host>"


def test_node_names_become_the_same_pseudonyms_in_all_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The folder in which the key of the pseudonyms is made and kept. None in ``node_names``: a node
    # whose name is not known.
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path))
    document = {"environment": {"node_names": ["gpu-node17", None, "gpu-node18"]}}
    line = {"event": "launch", "node_name": "gpu-node17"}

    redacted = Redactor().redact_document(document)["environment"]["node_names"]

    expected = [make_pseudonym(name, load_key()) for name in ("gpu-node17", "gpu-node18")]
    assert redacted == [expected[0], None, expected[1]]
    assert Redactor().redact_document(line)["node_name"] == expected[0]
    # What is redacted already stays as it is.
    redacted_twice = Redactor().redact_document({"node_names": redacted})
    assert redacted_twice == {"node_names": redacted}


def test_record_of_one_machine_has_its_name(tmp_path: Path) -> None:
    # The launch event names the machine. The only rank just started, as no more is needed.
    run_dir = write_run(
        tmp_path / "run", [launch_event(node_name="gpu-node17")], [make_event("start", 1, pid=1)]
    )

    assert measure(read_run(run_dir, 1)).environment["node_names"] == ["gpu-node17"]


def test_record_of_several_machines_has_their_names_in_the_order_of_nodes(tmp_path: Path) -> None:
    # Three ranks, each of which only started. The job was launched on the machine login1, which is
    # none of its three nodes; nodes 0 and 1 wrote files with their names.
    starts = [[make_event("start", 1, pid=1)]] * 3
    run_dir = write_run(tmp_path / "run", [launch_event(node_name="login1")], *starts)
    for number, name in enumerate(("gpu-node18", "gpu-node17")):
        launch = launch_event(node=number, node_name=name)
        write_events(run_dir / f"events.node{number}.jsonl", [launch])

    environment = measure(read_run(run_dir, world_size=3, nodes=3)).environment

    # The third node never answered.
    assert environment["node_names"] == ["gpu-node18", "gpu-node17", None]


def test_record_of_an_earlier_version_has_no_names(tmp_path: Path) -> None:
    # Its launch events did not have ``node_name``. The only rank just started.
    run_dir = write_run(tmp_path / "run", [launch_event()], [make_event("start", 1, pid=1)])

    assert "node_names" not in measure(read_run(run_dir, 1)).environment
