"""Signatures over a manifest, made and checked by ``ssh-keygen -Y``."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from trainmark.errors import EnvironmentFault
from trainmark.spec import Message, message

NAMESPACE = "trainmark"


def sign(content: bytes, key: Path) -> bytes:
    """Return the signature of ``content`` by the private key in a file, or by the agent's.

    Raises:
        EnvironmentFault: ``ssh-keygen`` is missing, or cannot sign with this key.
    """
    ended = _keygen("sign", "-f", key, content=content)
    if ended.returncode or not ended.stdout:
        raise EnvironmentFault(f"cannot sign: {_said(ended)}", where=str(key))
    return ended.stdout


def signer_of(
    content: bytes, signature: bytes, allowed: Path | None, signer: str | None
) -> tuple[bool, Message]:
    """Tell whether a signature is right, and whose it is.

    Args:
        allowed: file of allowed signers, as ``ssh-keygen`` reads it; None: only whether the
            signature is that of the key which it names.
        signer: who must have signed; None: any of the allowed.

    Raises:
        EnvironmentFault: ``ssh-keygen`` or the file is missing.
    """
    if allowed is not None and not allowed.is_file():
        raise EnvironmentFault("no such file", where=str(allowed), remedy="see docs/bundle.md")
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "manifest.sig"
        file.write_bytes(signature)
        if allowed is None:
            ended = _keygen("check-novalidate", "-s", file, content=content)
            if ended.returncode:
                return False, message("bundle_signature_wrong", said=_said(ended))
            return True, message("bundle_signed", key=ended.stdout.decode().split()[-1])
        known = _keygen("find-principals", "-s", file, "-f", allowed, content=b"").stdout
        names = [signer] if signer else known.decode().splitlines()
        for name in names:
            words = ("-s", file, "-f", allowed, "-I", name)
            ended = _keygen("verify", *words, content=content)
            if not ended.returncode:
                return True, message("bundle_signer", signer=name)
    said = _said(ended) if names else "none of the allowed signers has this key"
    return False, message("bundle_signature_wrong", said=said)


def _said(ended: subprocess.CompletedProcess[bytes]) -> str:
    return (ended.stderr or ended.stdout).decode(errors="replace").strip()[-300:]


def _keygen(verb: str, *words: str | Path, content: bytes) -> subprocess.CompletedProcess[bytes]:
    command = ["ssh-keygen", "-Y", verb, "-n", NAMESPACE, *map(str, words)]
    try:
        return subprocess.run(command, input=content, capture_output=True, check=False)
    except FileNotFoundError:
        raise EnvironmentFault("ssh-keygen is not here", remedy="install OpenSSH") from None
