"""A data folder that is whole or absent, with its manifest."""

import json

import pytest

from trainmark.data import prepared
from trainmark.errors import DataError, EnvironmentFault

ABC = {
    "size_bytes": 3,
    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
}


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_bytes(b"abc")
    return tmp_path / "raw"


def write(raw, *, fail=False, said=None, **options):
    """Write ``data`` with two files; return the calls that made something."""
    made = []

    def make(name, content=b"abc"):
        def write_it(target):
            made.append(name)
            target.write_bytes(content)

        return write_it

    options = {"case": "fake", "form": 1, **options}
    say = (said if said is not None else []).append
    sources = {"a.txt": raw / "a.txt"}
    with prepared.writing(raw.parent / "data", raw, sources, say, **options) as unfinished:
        if unfinished is not None:
            unfinished.file("sub/abc.txt", make("abc"))
            if fail:
                (unfinished.folder / "late.txt").write_text("begun")
                raise OSError(28, "No space left on device")
            unfinished.file("late.txt", make("late"))
    return made


def test_a_folder_takes_its_name_last_and_is_written_once(raw, tmp_path):
    assert write(raw) == ["abc", "late"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "raw"]
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_bytes())
    assert manifest == {
        "case": "fake", "format": 1, "sources": [{"name": "a.txt", **ABC}], "counts": {},
        "files": {"sub/abc.txt": ABC, "late.txt": ABC},
    }  # fmt: skip
    said = []
    assert write(raw, said=said) == []
    assert "is already prepared" in said[-1]


def test_an_interrupted_call_leaves_nothing(raw, tmp_path):
    with pytest.raises(EnvironmentFault, match="No space left"):
        write(raw, fail=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["raw"]
    assert write(raw) == ["abc", "late"]


@pytest.mark.parametrize(
    ("options", "says"),
    [({"tokenizer": "x"}, "with this tokenizer"), ({"case": "b"}, "with this case")],
)
def test_a_finished_folder_made_of_something_else_is_refused(raw, tmp_path, options, says):
    write(raw)
    with pytest.raises(DataError, match=says):
        write(raw, **options)
    assert (tmp_path / "data" / "late.txt").read_bytes() == b"abc"


def test_a_folder_is_written_by_one_call_at_a_time_and_not_into_its_source(raw, tmp_path):
    data = tmp_path / "data"
    with (
        prepared.writing(data, raw, {}, print, case="a", form=1),
        pytest.raises(EnvironmentFault, match="another prepare is at work"),
        prepared.writing(data, raw, {}, print, case="a", form=1),
    ):
        raise AssertionError("entered twice")
    with (
        pytest.raises(DataError, match="lies inside the raw one"),
        prepared.writing(raw / "data", raw, {}, print, case="a", form=1),
    ):
        raise AssertionError("entered")
