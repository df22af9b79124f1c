"""Measure how fast an accelerator really trains.

``run``, ``load``, ``frame`` and the other functions of ``trainmark.api`` are found here too; they
are imported when they are first used. Type checkers read ``__init__.pyi``.
"""

__version__ = "0.1.0"
__all__ = [
    "Records",
    "accept",
    "audit_results",
    "check_rules",
    "compare",
    "follow",
    "frame",
    "load",
    "pack",
    "run",
    "table",
    "verify",
]


def __getattr__(name: str) -> object:
    """Return a function or class of ``trainmark.api``; Python calls this for names not yet here.

    ``trainmark.api`` is imported only then, at the first use, and not by ``import trainmark``.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("trainmark.api"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
