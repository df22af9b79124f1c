"""What can look embeddings up here, asked while planning.

Owns which packages the second engine needs and which rows it takes. No torch, and the
packages are not imported.
"""

from __future__ import annotations

from importlib.util import find_spec

from trainmark.errors import EnvironmentFault, UsageError

INSTALL_COMMAND = "make install-recsys"
PACKAGES = ("torchrec", "fbgemm_gpu")
WIDTH_MULTIPLE = 4  # numbers of a row that a kernel of fbgemm takes at once


def missing_packages() -> list[str]:
    """Return what the second engine needs and is not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def require_engine(engine: str, embedding_dim: int) -> None:
    """Refuse an engine that does not take such rows or whose packages are not installed.

    Raises:
        UsageError: ``embedding_dim`` is no width of its kernels.
        EnvironmentFault: it names the packages and the command that installs them.
    """
    if engine == "torchrec" and embedding_dim % WIDTH_MULTIPLE:
        raise UsageError(
            f"embedding_dim={embedding_dim} does not go with engine={engine}",
            where="recipe field embedding_dim",
            rule=f"its kernels take multiples of {WIDTH_MULTIPLE}",
            remedy="another embedding_dim, or engine=plain",
        )
    missing = missing_packages()
    if engine == "torchrec" and missing:
        raise EnvironmentFault(
            f"engine={engine} needs {' and '.join(missing)}",
            rule="not installed beside this program",
            remedy=f"{INSTALL_COMMAND}, or engine=plain",
        )
