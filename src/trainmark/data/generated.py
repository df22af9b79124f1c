"""Where generated data lies, and how it comes to lie there whole.

Owns the cache of generated data: a folder per case and content, written under another
name and renamed, so that a run never reads half of it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from hashlib import sha256
from inspect import getfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.recipe import Recipe
    from trainmark.spec import Case

ROOT_VARIABLE = "TRAINMARK_CACHE"


def default_root() -> Path:
    """Return the cache folder: ``$TRAINMARK_CACHE``, or ``trainmark`` in the user's cache."""
    chosen = os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainmark"


def generated_folder(
    case: Case, recipe: Recipe, root: Path, *, generate: Callable[[Path, Any], None], sources: Path
) -> Path:
    """Return the folder with ``recipe``'s generated data, generating it when it is missing.

    The name holds a digest of the case's sources and of the recipe fields that the data
    depends on (``Case.data_fields``), so that a changed generator never meets old data and
    any other field finds the same data again. A generator can read no other field.

    Args:
        generate: writes the data into an empty folder; the case's ``data.generate``.
        sources: the case's folder.
    """
    fields = {name: getattr(recipe, name) for name in case.data_fields}
    # A case may borrow the generator of another one.
    folders = {sources, Path(getfile(generate)).parent}
    kinds = ("*.py", "*.toml")  # words that a generator draws from may stand in a table
    files = sorted({file for place in folders for kind in kinds for file in place.rglob(kind)})
    text = json.dumps(fields, sort_keys=True) + "".join(
        file.read_text(encoding="utf-8") for file in files
    )
    folder = root / f"{case.name}-{sha256(text.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        write_folder(folder, lambda place: generate(place, SimpleNamespace(**fields)))
    return folder


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Create ``folder`` with what ``fill`` writes: whole, or not at all.

    Raises:
        EnvironmentFault: the parent folder cannot be written.
    """
    staging: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        fill(staging)
        staging.chmod(0o755)
        staging.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else somebody finished the same content first: use theirs
            raise EnvironmentFault(
                f"cannot write there: {error.strerror or error}",
                where=str(folder.parent),
                remedy=f"free some space, or set {ROOT_VARIABLE} to a folder you may write to",
            ) from error
    finally:
        if staging:
            shutil.rmtree(staging, ignore_errors=True)
