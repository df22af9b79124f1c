"""A data folder that is whole or absent, with its manifest."""

import json

import pytest

from trainmark.data import prepared
from trainmark.errors import DataError, EnvironmentFault

ABC = {  # how a manifest describes a file with the content "abc"
    "size_bytes": 3,
    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
}


@pytest.fixture
def raw(tmp_path):
    """Return a source folder with one file of three bytes."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_bytes(b"abc")
    return tmp_path / "raw"


def write_prepared(raw, *, fail=False, progress_lines=None, **options):
    """Write ``data`` with sub/abc.txt and late.txt; return "abc" and "late" for those it made.

    Args:
        raw: the source folder, beside which ``data`` is written.
        fail: whether the disk is full before the second file is whole.
        progress_lines: gets the lines of progress; None: they are dropped.
        options: of ``write_data_folder``, which are part of the manifest.
    """
    calls = []

    def make(name, content=b"abc"):
        """Return a function that writes a file and notes its name in ``calls``."""

        def write_it(target):
            calls.append(name)
            target.write_bytes(content)

        return write_it

    options = {"case": "fake", "format_version": 1, **options}
    say = (progress_lines if progress_lines is not None else []).append
    sources = {"a.txt": raw / "a.txt"}
    with prepared.write_data_folder(
        raw.parent / "data", raw, sources, say, **options
    ) as partial_folder:
        if partial_folder is not None:  # None: ``data`` is already complete
            partial_folder.write_file("sub/abc.txt", make("abc"))
            if fail:
                (partial_folder.folder / "late.txt").write_text("begun")
                raise OSError(28, "No space left on device")  # 28 is ENOSPC
            partial_folder.write_file("late.txt", make("late"))
    return calls


def test_folder_gets_its_name_when_complete_and_is_written_once(raw, tmp_path):
    # ``write_prepared`` writes the files sub/abc.txt and late.txt into ``data``, and returns a word
    # for each that it made. ``raw`` is the source folder, with the file a.txt.
    assert write_prepared(raw) == ["abc", "late"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "raw"]
    # ``ABC``: size and digest of the content "abc", which the source and both written files have.
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_bytes())
    assert manifest == {
        "case": "fake",
        "format": 1,
        "sources": [{"name": "a.txt", **ABC}],
        "counts": {},
        "files": {"sub/abc.txt": ABC, "late.txt": ABC},
    }
    # A second call finds the folder and does nothing.
    progress_lines = []
    assert write_prepared(raw, progress_lines=progress_lines) == []
    assert "is already prepared" in progress_lines[-1]


def test_folder_of_an_option_with_several_values_is_written_once(raw):
    # ``write_prepared`` writes the folder unless it is complete, and returns the names of the files
    # that it made: two, then none. ``splits`` is an option that the manifest keeps. The manifest is
    # JSON, in which the tuple is a list.
    assert write_prepared(raw, splits=("train", "test")) == ["abc", "late"]
    assert write_prepared(raw, splits=("train", "test")) == []


def test_interrupted_preparation_resumes(raw, tmp_path):
    # ``write_prepared`` returns the files that the call made: with ``fail`` only sub/abc.txt. All
    # have the content "abc", which ``ABC`` describes in the manifest.
    with pytest.raises(EnvironmentFault, match="No space left") as caught:
        write_prepared(raw, fail=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".data.partial", "raw"]
    assert ".data.partial" in caught.value.fix
    assert write_prepared(raw) == ["late"]  # the first file was kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "raw"]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "late.txt",
        "manifest.json",
        "sub",
    ]
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_bytes())
    assert manifest["files"] == {"sub/abc.txt": ABC, "late.txt": ABC}


def test_file_of_a_killed_call_is_not_part_of_the_data(raw, tmp_path):
    # ``write_prepared`` writes two files with the content "abc", which ``ABC`` describes in the
    # manifest, and returns which ones it made; with ``fail`` the disk is full after the first.
    with pytest.raises(EnvironmentFault):
        write_prepared(raw, fail=True)
    # The first call finished sub/abc.txt. Now a file that `write_atomically` leaves if the process
    # is killed while it writes the state.
    (tmp_path / ".data.partial" / f".{prepared.STATE_FILE}.1a2b3c4d.tmp").write_text("{")
    assert write_prepared(raw) == ["late"]
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_bytes())
    assert manifest["files"] == {"sub/abc.txt": ABC, "late.txt": ABC}
    names = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert names == ["late.txt", "manifest.json", "sub"]


def test_manifest_of_a_killed_call_is_not_listed_in_the_manifest(raw, tmp_path, monkeypatch):
    remove_tree = prepared.shutil.rmtree

    def stop_at_work_folder(folder, **options):
        """Stop as Ctrl-C does when the intermediate files are removed, after the manifest."""
        if folder.name == prepared.WORK_FOLDER:
            raise KeyboardInterrupt
        remove_tree(folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(prepared.shutil, "rmtree", stop_at_work_folder)
        with pytest.raises(KeyboardInterrupt):
            write_prepared(raw)
    assert (tmp_path / ".data.partial" / "manifest.json").is_file()

    assert write_prepared(raw) == []  # both files are kept
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_bytes())
    assert manifest["files"] == {"sub/abc.txt": ABC, "late.txt": ABC}


def change_source(raw):
    """Change the source, which has ``abc``; return no options."""
    (raw / "a.txt").write_bytes(b"xyz")
    return {}


def change_option(raw):
    """Return an option of the second call that the first one did not have."""
    return {"seed": 2}


def damage_part(raw):
    """Change a file that the first call has written; return no options."""
    (raw.parent / ".data.partial" / "sub" / "abc.txt").write_bytes(b"xyz")
    return {}


def damage_state(raw):
    """Make the notes of what is finished unreadable; return no options."""
    (raw.parent / ".data.partial" / prepared.STATE_FILE).write_text("{")
    return {}


@pytest.mark.parametrize("change", [change_source, change_option, damage_part, damage_state])
def test_outdated_or_damaged_parts_are_rebuilt(raw, tmp_path, change):
    with pytest.raises(EnvironmentFault):
        write_prepared(raw, fail=True)
    # ``write_prepared`` returns the files that the call made; with ``fail`` it ends after the
    # first. ``change`` spoils the source, an option, a written file or the notes of what is
    # finished, and returns the options of the second call; so the file that the first call had
    # written is written again.
    assert write_prepared(raw, **change(raw)) == ["abc", "late"]
    assert (tmp_path / "data" / "sub" / "abc.txt").read_bytes() == b"abc"


def test_unchanged_source_is_not_hashed_again(raw, monkeypatch):
    # ``raw`` is the source folder, with one file, "a.txt". With ``fail`` the call ends after the
    # first of its two files; the second call resumes.
    with pytest.raises(EnvironmentFault):
        write_prepared(raw, fail=True)
    hashed_files = []
    original = prepared.compute_fingerprint

    def compute_fingerprint(file, *arguments):
        hashed_files.append(file.name)
        return original(file, *arguments)

    monkeypatch.setattr(prepared, "compute_fingerprint", compute_fingerprint)
    write_prepared(raw)
    # The file that the first call wrote, and the new one. The source "a.txt" is not among them: it
    # is known by its size and time since the first call.
    assert hashed_files == ["abc.txt", "late.txt"]


def test_data_error_leaves_no_folder(raw, tmp_path):
    def prepare():  # finds a fault of the data after it has written a file
        with prepared.write_data_folder(
            tmp_path / "data", raw, {}, print, case="a", format_version=1
        ) as partial_folder:
            partial_folder.write_file("a", lambda target: target.write_bytes(b"a"))
            raise DataError("row 3")

    # Unlike after an interruption, nothing is kept to resume: the same fault would come again. Only
    # the source is left.
    with pytest.raises(DataError, match="row 3"):
        prepare()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]


def test_a_stage_is_done_once_and_its_result_kept(raw, tmp_path):
    def prepare(*, stop):
        """Run a stage, then stop or finish the folder; return the stages whose work was done."""
        calls = []

        def count():
            calls.append("count")
            return [1, 2]

        sources = {"a.txt": raw / "a.txt"}
        with prepared.write_data_folder(
            tmp_path / "data", raw, sources, print, case="a", format_version=1
        ) as writer:
            # The result of ``count``, or the one that an earlier call stored for this stage.
            rows = writer.run_stage("count", count)
            if stop:
                raise KeyboardInterrupt
            assert rows == [1, 2]
            (writer.work / "scratch").write_bytes(b"x")  # not part of the finished folder
        return calls

    with pytest.raises(KeyboardInterrupt):
        prepare(stop=True)
    assert prepare(stop=False) == []  # the second call has the result, but not the work
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["manifest.json"]


@pytest.mark.parametrize("begin", [b"", b"begin"])
@pytest.mark.parametrize("end", [b"", b"end"])
def test_copy_of_a_sparse_file_is_sparse(tmp_path, begin, end, monkeypatch):
    monkeypatch.setattr(prepared, "BLOCK_BYTES", 1 << 16)
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.write(begin)
        file.truncate(1 << 24)  # zeros that use no space on the disk
        file.seek(1 << 24)
        file.write(end)
    # Blocks of 64 KiB that hold only zeros are skipped, so that of 16 MiB less than 1 MiB is
    # stored.
    prepared.copy_file(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks * 512 < 1 << 20  # a block has 512 bytes on every system


class Units(prepared.Reporter):
    """Collects stages with their units."""

    def __init__(self):
        super().__init__(lambda _: None)
        self.stages = {}

    def begin(self, stage, total, done=0):
        """Note a new stage with the units of work in it, and how many of them are done."""
        self.stages[stage] = [total, done]
        self.stage = stage

    def advance(self, units):
        """Add finished units to the stage that began last."""
        self.stages[self.stage][1] += units


def test_copied_file_counts_as_progress_even_if_already_copied(raw, tmp_path):
    def prepare(*, stop):  # returns units in total and units done, by stage
        units = Units()  # collects the reports of progress
        sources = {"a.txt": raw / "a.txt"}
        with prepared.write_data_folder(
            tmp_path / "data", raw, sources, units, case="a", format_version=1
        ) as writer:
            units.begin("writing", total=3)  # the bytes of a.txt
            writer.copy_file("copied", raw / "a.txt")
            if stop:
                raise KeyboardInterrupt
        return units.stages

    with pytest.raises(KeyboardInterrupt):
        prepare(stop=True)
    # By stage, bytes in total and bytes done; the stage "checking" finds the digests of the
    # sources. a.txt, "abc", has 3; the first call copied it, so the second one counts it as done
    # without copying.
    assert prepare(stop=False) == {"checking 1 files": [3, 3], "writing": [3, 3]}
    assert (tmp_path / "data" / "copied").read_bytes() == b"abc"


@pytest.mark.parametrize(
    ("options", "expected_error"),
    [({"tokenizer": "x"}, "with the same tokenizer"), ({"case": "b"}, "with the same case")],
)
def test_finished_folder_of_another_case_or_tokenizer_is_refused(
    raw, tmp_path, options, expected_error
):
    # Without ``options`` the folder is of the case "fake" and has no tokenizer. "late.txt" is the
    # last of its two files, with the content "abc".
    write_prepared(raw)
    with pytest.raises(DataError, match=expected_error):
        write_prepared(raw, **options)
    # The folder is as it was.
    assert (tmp_path / "data" / "late.txt").read_bytes() == b"abc"


def test_folder_has_only_one_writer_at_a_time(raw, tmp_path):
    # The first ``write_data_folder`` is entered, and the second one must raise before its body
    # runs.
    data = tmp_path / "data"
    with (
        prepared.write_data_folder(data, raw, {}, print, case="a", format_version=1),
        pytest.raises(EnvironmentFault, match="another `trainmark prepare` is using"),
        prepared.write_data_folder(data, raw, {}, print, case="a", format_version=1),
    ):
        raise AssertionError("entered twice")


def test_folder_inside_its_source_is_refused(raw):
    with (
        pytest.raises(DataError, match="lies inside the raw data folder"),
        prepared.write_data_folder(raw / "data", raw, {}, print, case="a", format_version=1),
    ):
        raise AssertionError("entered")
