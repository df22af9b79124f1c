"""Archives that are not bundles, and bundles that were changed."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from trainmark.errors import EnvironmentFault
from trainmark.results import archive, bundle

if TYPE_CHECKING:
    from pathlib import Path


def write_changed_bundle(
    path: Path,
    *,
    items: dict[str, bytes | None] | None = None,
    manifest: dict[str, Any] | None = None,
) -> Path:
    """Write a bundle again, changed.

    Args:
        items: new or changed contents by name of the file; a content of None: without the file.
        manifest: new or changed values by key of the manifest.
    """
    with zipfile.ZipFile(path) as zipped:
        contents: dict[str, bytes | None] = {name: zipped.read(name) for name in zipped.namelist()}
    changed_manifest = json.loads(contents["manifest.json"] or b"") | (manifest or {})
    contents["manifest.json"] = json.dumps(changed_manifest).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in (contents | (items or {})).items():
            if content is not None:
                zipped.writestr(name, content)
    return path


def verify_bundle(path: Path) -> tuple[int, list[str]]:
    """Return the exit code of the bundle's verification, and the codes of what is broken in it."""
    verification = bundle.verify(path)
    broken = [
        sentence.code
        for check in verification.checks
        if check.state == "broken"
        for sentence in check.sentences
    ]
    return verification.exit_code, broken


@pytest.mark.parametrize(
    "items",
    [
        {"1-toy/record.json": b"{}"},  # another content
        {"1-toy/plan.json": None},  # missing
        {"../climbs.txt": b"x"},  # not in the manifest
    ],
)
def test_files_that_differ_from_the_manifest_are_found(
    bundle_path: Path, items: dict[str, bytes | None]
) -> None:
    # A bundle is a ZIP file with the files of a run in the folder 1-toy, and a manifest that lists
    # them with their hashes. ``items`` are changed contents by name, None: without the file. The
    # result is the exit code, and the code of the only broken check.
    assert verify_bundle(write_changed_bundle(bundle_path, items=items)) == (1, ["bundle_altered"])


def test_changed_byte_of_a_compressed_file_is_found(bundle_path: Path) -> None:
    with zipfile.ZipFile(bundle_path) as zipped:
        info = zipped.getinfo("1-toy/events.rank0.jsonl")
        # A local header has 30 bytes before the name. The compressed content follows it; the byte
        # at 40 is changed.
        offset = info.header_offset + 30 + len(info.filename) + 40
    content = bytearray(bundle_path.read_bytes())
    content[offset] ^= 1  # one bit
    bundle_path.write_bytes(content)
    # The exit code, and the code of the only broken check.
    assert verify_bundle(bundle_path) == (1, ["bundle_altered"])


def test_figures_that_contradict_their_evidence_are_found(bundle_path: Path) -> None:
    # The manifest lists each file with its size and hash; 1-toy is the folder of the bundle's run.
    with zipfile.ZipFile(bundle_path) as zipped:
        document = json.loads(zipped.read("1-toy/record.json"))
        files = json.loads(zipped.read("manifest.json"))["files"]
    document["figures"]["p_train"]["value"] *= 10
    text = json.dumps(document).encode()
    # The manifest fits the forged record, so only the evidence can tell.
    for entry in files:
        if entry["name"] == "1-toy/record.json":
            entry |= {"bytes": len(text), "sha256": sha256(text).hexdigest()}
    write_changed_bundle(bundle_path, items={"1-toy/record.json": text}, manifest={"files": files})
    code, broken = verify_bundle(bundle_path)
    assert code == 1
    assert "evidence_disagrees" in broken


# A file in the manifest. Its hash is that of no file, but has the form of one.
VALID_ENTRY = {"name": "1-toy/record.json", "bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "manifest",
    [
        {"schema_version": 1},  # an older version
        {"files": []},  # the schema wants at least one
        {"more": 1},  # an unknown key
        *(
            {"files": [VALID_ENTRY | {"name": name}]}
            for name in ("../x.txt", "/etc/passwd", "1-toy/../x")  # each leaves its folder
        ),
    ],
)
def test_invalid_manifest_is_refused(bundle_path: Path, manifest: dict[str, Any]) -> None:
    # ``manifest`` has the changed keys. The schema is checked before the files are compared: exit
    # code 2, not 1 as for an altered file. So the hashes of ``VALID_ENTRY``, an entry of the right
    # form, need not be those of the content.
    items: dict[str, bytes | None] = {}  # changed contents by name; None removes a file
    names = [file["name"] for file in manifest.get("files", [])]
    if names:  # a bundle that has exactly the listed files, and not those of its runs
        with zipfile.ZipFile(bundle_path) as zipped:
            for name in zipped.namelist():
                if "/" in name:  # a run's file; the bundle's own, such as the manifest, stay
                    items[name] = None
        for name in names:
            items[name] = b"x"
    changed = write_changed_bundle(bundle_path, items=items, manifest=manifest)
    with pytest.raises(archive.BundleError) as refused, archive.unpack_temporarily(changed):
        pass
    assert refused.value.exit_code == 2
    assert str(refused.value.where).startswith(str(bundle_path))


def test_bundle_above_the_size_limit_is_refused(bundle_path: Path, tmp_path: Path) -> None:
    # The files of the bundle have more than 1000 bytes, the limit that is set here.
    with pytest.raises(archive.BundleError, match="at most 1,000") as refused:
        archive.unpack(bundle_path, tmp_path / "none", max_bytes=1000)
    assert refused.value.exit_code == 2
    assert not (tmp_path / "none").exists()


def test_invalid_archive_is_refused(tmp_path: Path, bundle_path: Path) -> None:
    path = tmp_path / "x.trainmark.zip"
    other = tmp_path / "notes.txt"
    other.write_text("no archive")
    for wrong in (path, other):  # there is no such file; a file of another kind
        with pytest.raises(archive.BundleError, match="not a bundle") as refused:
            bundle.verify(wrong)
        assert (refused.value.exit_code, refused.value.where) == (2, str(wrong))
    # An empty file, a ZIP file without entries, and one that was cut off. They have the name of a
    # bundle, and so count as an altered one (exit code 1), not as a file of another kind.
    for content in (b"", b"PK\5\6" + bytes(18), bundle_path.read_bytes()[:-30]):
        path.write_bytes(content)
        with (
            pytest.raises(archive.AlteredError, match="was altered") as altered,
            archive.unpack_temporarily(path),
        ):
            pass
        assert (altered.value.exit_code, altered.value.where) == (1, str(path))


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ENOSPC, "set TMPDIR to a folder on another disk"),
        (errno.EDQUOT, "set TMPDIR to a folder on another disk"),
        (errno.EACCES, "make the file readable, and TMPDIR a writable folder"),
        (errno.EIO, "make the file readable, and TMPDIR a writable folder"),
    ],
)
def test_only_a_full_disk_is_to_be_replaced_by_another_disk(
    bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fix: str
) -> None:
    # The system's errors are: no space, no space left of the user's share, no permission, and a
    # disk that cannot be read. ``fix`` is the advice of the program's error.
    def raise_error(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(zipfile, "ZipFile", raise_error)
    with pytest.raises(EnvironmentFault, match="cannot unpack") as refused:
        archive.unpack(bundle_path, tmp_path)
    assert refused.value.fix == fix


@pytest.mark.parametrize("manifest", [None, b"{", b""])
def test_bundle_without_readable_manifest_is_altered(
    bundle_path: Path, manifest: bytes | None
) -> None:
    # The manifest is missing (None), cut off, or empty. ``verify_bundle`` returns the exit code and
    # the codes of the broken checks.
    write_changed_bundle(bundle_path, items={"manifest.json": manifest})
    assert verify_bundle(bundle_path) == (1, ["bundle_altered"])
    # A file with another name is of another kind.
    other = bundle_path.rename(bundle_path.with_name("other.zip"))
    with pytest.raises(archive.BundleError, match="not a bundle") as refused:
        bundle.verify(other)
    assert refused.value.exit_code == 2


def test_changed_byte_in_the_directory_of_the_archive_is_found(bundle_path: Path) -> None:
    """The directory is behind all files, and has an entry for each, of which a byte is changed."""
    content = bundle_path.read_bytes()
    with zipfile.ZipFile(bundle_path) as zipped:
        directory = zipped.start_dir
    for name in (b"manifest.json", b"plan.json"):
        changed = bytearray(content)
        changed[content.index(name, directory)] ^= 1  # a bit of a letter of the name
        bundle_path.write_bytes(changed)
        assert verify_bundle(bundle_path) == (1, ["bundle_altered"])
    # The offset of an entry is the 4 bytes before its name; this one is its highest byte.
    changed = bytearray(content)
    changed[content.index(b"1-toy/plan.json", directory) - 1] ^= 0x80
    bundle_path.write_bytes(changed)
    assert verify_bundle(bundle_path) == (1, ["bundle_altered"])


@pytest.mark.parametrize(
    "damage",
    [
        {"compress_type": zipfile.ZIP_BZIP2},
        {"compress_type": zipfile.ZIP_LZMA},
        {"compress_type": 99},  # no compression that Python knows
        {"flag_bits": 1},  # encrypted
        {"header_offset": 2**63},  # where the entry begins: one byte more than a file can have
    ],
)
def test_damaged_entry_in_the_directory_of_the_archive_is_found(
    bundle_path: Path, damage: dict[str, int]
) -> None:
    """``damage`` has the changed fields of an entry in the directory at the end of the archive.

    The entry is that of a file of the run, whose content stays as it is: compressed by deflate.
    """
    with zipfile.ZipFile(bundle_path, "a") as zipped:
        for name, value in damage.items():
            setattr(zipped.getinfo("1-toy/plan.json"), name, value)
        zipped.comment = b"changed"  # so that the directory is written again
    assert verify_bundle(bundle_path) == (1, ["bundle_altered"])


def test_entry_that_ends_early_is_found_and_explained(bundle_path: Path, tmp_path: Path) -> None:
    # The directory says that a file of the run is stored uncompressed and has a million bytes,
    # which is more than follow in the archive.
    with zipfile.ZipFile(bundle_path, "a") as zipped:
        entry = zipped.getinfo("1-toy/plan.json")
        entry.compress_type = zipfile.ZIP_STORED
        entry.compress_size = entry.file_size = 10**6
        zipped.comment = b"changed"  # so that the directory is written again
    with pytest.raises(archive.AlteredError) as altered:
        archive.unpack(bundle_path, tmp_path / "unpacked")
    assert altered.value.what.endswith("not a bundle: the content of an entry ends early")


def test_name_that_cannot_be_decoded_is_found(bundle_path: Path) -> None:
    content = bytearray(bundle_path.read_bytes())
    with zipfile.ZipFile(bundle_path) as zipped:
        offset = content.index(b"1-toy/plan.json", zipped.start_dir)
    # An entry of the directory has 46 bytes before the name, of which the byte at 9 has the flag
    # for names in UTF-8.
    content[offset - 46 + 9] |= 0x08
    content[offset] = 0xFF  # no character of UTF-8 begins with this byte
    bundle_path.write_bytes(content)
    assert verify_bundle(bundle_path) == (1, ["bundle_altered"])


@pytest.mark.parametrize("names", [("1-toy/x", "1-toy/x"), ("1-toy/r1", "1-toy/r1/x")])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_at_one_place_are_found(bundle_path: Path, names: tuple[str, str]) -> None:
    """The files that the manifest lists are in the archive; but one folder cannot hold both."""
    with zipfile.ZipFile(bundle_path) as zipped:
        manifest = json.loads(zipped.read("manifest.json"))
    content = b"x"
    digest = sha256(content).hexdigest()
    manifest["files"] = [{"name": name, "bytes": len(content), "sha256": digest} for name in names]
    with zipfile.ZipFile(bundle_path, "w") as zipped:
        for name in names:
            zipped.writestr(name, content)
        zipped.writestr("manifest.json", json.dumps(manifest))
    assert verify_bundle(bundle_path) == (1, ["bundle_altered"])
