"""What can look embeddings up here, asked while planning.

Owns which packages the second engine needs. No torch, and the packages are not imported.
"""

from __future__ import annotations

from importlib.util import find_spec

from trainmark.errors import EnvironmentFault

INSTALL_COMMAND = "make install-recsys"
PACKAGES = ("torchrec", "fbgemm_gpu")


def missing_packages() -> list[str]:
    """Return what the second engine needs and is not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def require_engine(engine: str) -> None:
    """Refuse an engine whose packages are not installed.

    Raises:
        EnvironmentFault: it names the packages and the command that installs them.
    """
    missing = missing_packages()
    if engine == "torchrec" and missing:
        raise EnvironmentFault(
            f"engine={engine} needs {' and '.join(missing)}",
            rule="not installed beside this program",
            remedy=f"{INSTALL_COMMAND}, or engine=plain",
        )
