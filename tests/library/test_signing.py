"""Signatures by real keys, made here."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from typing import TYPE_CHECKING, Any

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


def judged(path: Path, allowed: Path | None = None) -> tuple[int, str, str]:
    """Return exit code, state and code of the signature."""
    found = bundle.verify(path, allowed=allowed)
    (check,) = [check for check in found.checks if check.name == "signature"]
    return found.exit_code, check.state, check.said[0].code


@needs_ssh
def test_a_signature_is_held_against_the_allowed_signers(
    signed: Path, packed: Path, signers: Path, tmp_path: Path
) -> None:
    assert judged(signed) == (0, "noted", "bundle_signed")
    assert judged(signed, signers) == (0, "held", "bundle_signer")
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
    for manifest, wrong in ((own + b"\n", signature), (own, b"\xff" * 100)):
        with zipfile.ZipFile(signed, "w") as archive:
            changed = {"manifest.json": manifest, "manifest.json.sig": wrong}
            for name, content in (items | changed).items():
                archive.writestr(name, content)
        assert judged(signed, signers) == (1, "broken", "bundle_signature_wrong")


@needs_ssh
def test_the_program_signs_and_verifies(
    run_dir: Path, signers: Path, cli: Callable[..., Any]
) -> None:
    path = str(signers.with_name("x.trainmark.zip"))
    private = str(signers.with_name("lab@example.org"))
    code, out, err = cli("bundle", run_dir, "-o", path, "--sign", private)
    assert (code, out, "signed" in err) == (0, f"{path}\n", True)
    words = ("--allowed-signers", signers, "--json")
    code, out, _ = cli("verify", path, *words)
    (document,) = json.loads(out)
    assert code == 0
    assert {check["name"]: check["state"] for check in document["checks"]} == {
        "archive": "held", "signature": "held", "record": "held", "audit": "held", "trust": "noted",
    }  # fmt: skip
    code, _, err = cli("bundle", run_dir, "-o", path, "--sign", "/none")
    assert (code, "cannot sign" in err) == (2, True)
    assert judged(signers.with_name("x.trainmark.zip"), signers)[0] == 0  # as it was


def test_without_ssh_keygen_nothing_is_signed_or_said_of_a_signature(
    run_dir: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="ssh-keygen"):
        bundle.pack([[run_dir]], tmp_path / "x.trainmark.zip", key=tmp_path / "key")
    assert judged(packed) == (0, "noted", "bundle_unsigned")
