"""A data folder that is whole or absent: lock, manifest, resume."""

import json

import pytest

from trainmark.data import prepared
from trainmark.errors import DataError, EnvironmentFault

MADE_OF = {"format": 1, "case": "fake", "sources": [{"name": "a", "size_bytes": 1}]}
FRESH = {"counts": {}, "parts": []}
ABC = {
    "size_bytes": 3,
    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
}


def resume(data, said=None, **changes):
    say = [].append if said is None else said.append
    return prepared.resume(data, made_of={**MADE_OF, **changes}, fresh=FRESH, say=say)


def finished(data):
    unfinished = resume(data)
    unfinished.write("sub/abc.txt", lambda staging: staging.write_bytes(b"abc"))
    unfinished.save()
    unfinished.finish(print)


def test_a_folder_takes_its_name_last(tmp_path):
    data = tmp_path / "data"
    unfinished = resume(data)
    assert unfinished.write("sub/abc.txt", lambda staging: staging.write_bytes(b"abc")) == 3
    assert unfinished.files == {"sub/abc.txt": ABC}
    assert not data.exists()
    unfinished.finish(print)
    assert sorted(p.name for p in tmp_path.rglob("*")) == [
        "abc.txt",
        "data",
        "manifest.json",
        "sub",
    ]
    manifest = json.loads((data / "manifest.json").read_bytes())
    assert manifest == {
        **MADE_OF, **FRESH, "complete": True, "files": {"sub/abc.txt": ABC}
    }  # fmt: skip


def test_fresh_values_are_never_shared_between_calls(tmp_path):
    resume(tmp_path / "one").manifest["parts"].append(1)
    assert resume(tmp_path / "two").manifest["parts"] == []
    assert FRESH["parts"] == []


def test_what_was_saved_is_gone_on_with_and_what_was_not_is_not(tmp_path):
    data, said = tmp_path / "data", []
    first = resume(data)
    first.write("abc.txt", lambda staging: staging.write_bytes(b"abc"))
    first.manifest["parts"].append(7)
    first.save()
    first.write("late.txt", lambda staging: staging.write_bytes(b"late"))
    again = resume(data, said)
    assert again.files == {"abc.txt": ABC}
    assert again.manifest["parts"] == [7]
    assert said == ["going on with the unfinished .data.partial"]
    (again.partial / "abc.txt").write_bytes(b"xyz")
    assert resume(data).files == {}


@pytest.mark.parametrize("change", [{"format": 2}, {"case": "other"}, {"sources": []}])
def test_an_unfinished_folder_made_of_something_else_begins_anew(tmp_path, change):
    first = resume(tmp_path / "data")
    first.write("abc.txt", lambda staging: staging.write_bytes(b"abc"))
    first.save()
    again = resume(tmp_path / "data", **change)
    assert again.files == {}
    assert list(again.partial.iterdir()) == []


def test_what_still_fits_of_something_else_is_gone_on_with(tmp_path):
    data, said = tmp_path / "data", []
    first = resume(data)
    for name in ("abc.txt", "late.txt"):
        first.write(name, lambda staging: staging.write_bytes(b"abc"))
    first.save()

    def salvage(unfinished):
        del unfinished.files["late.txt"]
        return True

    made_of = {**MADE_OF, "sources": ["new"]}
    again = prepared.resume(data, made_of=made_of, fresh=FRESH, say=said.append, salvage=salvage)
    assert again.files == {"abc.txt": ABC}
    assert again.manifest["sources"] == ["new"]
    assert said == ["going on with the unfinished .data.partial"]


def test_a_finished_folder_is_checked_and_mended(tmp_path):
    data, said = tmp_path / "data", []
    finished(data)
    assert resume(data, said) is None
    assert said == [f"{data} is already prepared: 1 files checked by sha256"]
    (data / "sub" / "abc.txt").unlink()
    unfinished = resume(data, said)
    assert said[1] == "damaged or missing, written again: sub/abc.txt"
    assert unfinished.files == {}
    assert not unfinished.manifest["complete"]
    assert not data.exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sources": []}, "prepared from other raw files"),
        ({"tokenizer": "x"}, "was not written by prepare"),
        ({"format": 3}, "was not written by prepare"),
    ],
)
def test_a_finished_folder_made_of_something_else_is_refused(tmp_path, change, says):
    finished(tmp_path / "data")
    with pytest.raises(DataError, match=says):
        resume(tmp_path / "data", **change)
    assert (tmp_path / "data" / "sub" / "abc.txt").read_bytes() == b"abc"


def test_the_option_that_differs_is_named(tmp_path):
    resume(tmp_path / "data", tokenizer="a").finish(print)
    with pytest.raises(DataError, match="prepared with another tokenizer"):
        resume(tmp_path / "data", tokenizer="b")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"case": "fake", "format": 1}'])
def test_a_torn_manifest_is_not_ours(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match="was not written by prepare"):
        resume(tmp_path)


def test_the_lock_is_held_once_and_left_behind_by_nobody(tmp_path):
    data = tmp_path / "data"
    with prepared.alone(data, print) as folder:
        assert folder == data
        with (
            pytest.raises(EnvironmentFault, match="another prepare is at work"),
            prepared.alone(data, print),
        ):
            raise AssertionError("entered twice")
    assert list(tmp_path.iterdir()) == []


def test_what_the_system_refuses_is_said_with_the_file(tmp_path):
    with (
        pytest.raises(EnvironmentFault, match="No such file") as caught,
        prepared.alone(tmp_path / "data", print),
    ):
        (tmp_path / "absent").read_bytes()
    assert caught.value.where == str(tmp_path / "absent")


def test_a_write_that_fails_leaves_nothing_under_the_final_name(tmp_path):
    unfinished = resume(tmp_path / "data")

    def half(staging):
        staging.write_bytes(b"ha")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        unfinished.write("abc.txt", half)
    assert not (unfinished.partial / "abc.txt").exists()
    assert unfinished.files == {}


def test_a_folder_is_written_by_one_call_at_a_time(tmp_path):
    with prepared.alone(tmp_path / "data", print) as data:
        assert data == tmp_path / "data"
        with (
            pytest.raises(EnvironmentFault, match="another prepare is at work") as caught,
            prepared.alone(data, print),
        ):
            raise AssertionError("entered twice")
        assert caught.value.where == str(data)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".data.lock").write_text("")  # of a killed process: it holds nothing
    with prepared.alone(data, print):
        pass
