"""Signatures by real keys, made here."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest

from trainmark.errors import EnvironmentFault
from trainmark.library import bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is missing")


def key(folder: Path, name: str, kind: str = "ed25519") -> Path:
    path = folder / name
    words = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", name, "-f", str(path)]
    subprocess.run(words, check=True)
    return path


@pytest.fixture
def signers(tmp_path: Path) -> Path:
    """Return a file that allows two signers; their keys are beside it."""
    lines = []
    for name, kind in (("lab@example.org", "ed25519"), ("other@example.org", "ecdsa")):
        public = key(tmp_path, name, kind).with_name(f"{name}.pub").read_text()
        lines.append(f'{name} namespaces="trainmark" {public}')
    path = tmp_path / "signers"
    path.write_text("".join(lines))
    return path


@pytest.fixture
def signed(run_dir: Path, signers: Path) -> Path:
    path = signers.with_name("signed.trainmark.zip")
    bundle.pack([[run_dir]], path, key=signers.with_name("lab@example.org"))
    return path


def judged(path: Path, *more: object) -> tuple[int, str, str]:
    """Return exit code, state and code of the signature."""
    allowed, signer = (*more, None, None)[:2]
    found = bundle.verify(path, allowed=allowed, signer=signer)  # type: ignore[arg-type]
    (check,) = [check for check in found.checks if check.name == "signature"]
    return found.exit_code, check.state, check.said[0].code


@needs_ssh
def test_a_signature_is_held_against_the_allowed_signers(
    signed: Path, packed: Path, signers: Path, tmp_path: Path
) -> None:
    assert judged(signed) == (0, "noted", "bundle_signed")
    assert judged(signed, signers) == (0, "held", "bundle_signer")
    assert judged(signed, signers, "lab@example.org") == (0, "held", "bundle_signer")
    assert judged(signed, signers, "other@example.org") == (1, "broken", "bundle_signature_wrong")
    assert judged(signed, signers, "nobody") == (1, "broken", "bundle_signature_wrong")
    assert judged(packed, signers) == (1, "broken", "bundle_unsigned")
    strangers = tmp_path / "strangers"
    strangers.write_text(signers.read_text().splitlines()[1] + "\n")
    assert judged(signed, strangers) == (1, "broken", "bundle_signature_wrong")
    with pytest.raises(EnvironmentFault, match="no such file"):
        bundle.verify(signed, allowed=tmp_path / "none")


@needs_ssh
def test_a_signature_of_another_manifest_or_of_nothing_is_wrong(
    signed: Path, signers: Path
) -> None:
    with zipfile.ZipFile(signed) as archive:
        items = {name: archive.read(name) for name in archive.namelist()}
    own, signature = items["manifest.json"], items["manifest.json.sig"]
    for manifest, wrong in ((own + b"\n", signature), (own, b""), (own, b"\xff" * 100)):
        with zipfile.ZipFile(signed, "w") as archive:
            changed = {"manifest.json": manifest, "manifest.json.sig": wrong}
            for name, content in (items | changed).items():
                archive.writestr(name, content)
        assert judged(signed) == (1, "broken", "bundle_signature_wrong")
        assert judged(signed, signers) == (1, "broken", "bundle_signature_wrong")


@needs_ssh
def test_the_program_signs_and_verifies(
    run_dir: Path, signers: Path, trainmark_ends: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = str(signers.with_name("x.trainmark.zip"))
    private = str(signers.with_name("lab@example.org"))
    assert trainmark_ends("bundle", str(run_dir), "-o", path, "--sign", private) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{path}\n"
    assert "signed" in printed.err
    words = ("--allowed-signers", str(signers), "--signer", "lab@example.org", "--json")
    assert trainmark_ends("verify", path, *words) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert {check["name"]: check["state"] for check in document["checks"]} == {
        "archive": "held", "signature": "held", "record": "held", "audit": "held", "trust": "noted",
    }  # fmt: skip
    assert trainmark_ends("verify", path, "--signer", "lab@example.org") == 2
    assert trainmark_ends("bundle", str(run_dir), "-o", path, "--sign", "/none") == 2
    assert "cannot sign" in capsys.readouterr().err
    assert judged(signers.with_name("x.trainmark.zip"), signers)[0] == 0  # as it was


def test_without_ssh_keygen_nothing_is_signed_or_said_of_a_signature(
    run_dir: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="ssh-keygen"):
        bundle.pack([[run_dir]], tmp_path / "x.trainmark.zip", key=tmp_path / "key")
    assert judged(packed) == (0, "noted", "bundle_unsigned")
