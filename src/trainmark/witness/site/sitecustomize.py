"""Load Trainmark's probe into this interpreter as soon as the program has imported torch.

Python imports a module of this name at its start. If another file of this name would have been
imported instead, it is run too. This file imports only the standard library, and must never keep
the program from running.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import sys
import time
from importlib.machinery import PathFinder
from typing import Any

START_NS = time.perf_counter_ns()  # of this process, for the probe
_PID = os.getpid()
# Set in a process that torchrun started as a rank, and so in all processes that this one starts.
_RANK_PROCESS_VARIABLE = "TRAINMARK_RANK_PROCESS"


def _run_hidden_module() -> None:
    """Run the ``sitecustomize`` that would have been imported without this one."""
    # Without pathlib, whose import would take longer than all else here.
    this_folder = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120
    other_folders = [path for path in sys.path if os.path.realpath(path) != this_folder]
    spec = PathFinder.find_spec("sitecustomize", other_folders)
    if spec is None or spec.loader is None:
        return
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _TorchFinder:
    """Finds torch in the usual way, and installs the hooks after its first import."""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return torch's spec, whose loader also installs the hooks; None for other modules."""
        if name != "torch":
            return None
        spec = None  # as the finder returns it that would have found torch without this one
        for finder in list(sys.meta_path):  # a copy: a finder may remove itself
            # Python also passes over a finder that is too old to have ``find_spec``.
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        if spec is not None and spec.loader is not None:
            import_torch = spec.loader.exec_module

            def import_and_hook(module: Any) -> None:
                import_torch(module)
                # This finder stays until torch is imported, and not only found: a program may call
                # ``importlib.util.find_spec`` before it imports torch. Once it is gone, the hooks
                # are installed, and a further spec of torch installs none.
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _install_hooks()

            loader: Any = spec.loader
            loader.exec_module = import_and_hook
        return spec


def _install_hooks() -> None:
    """Install the probe's hooks; print why if its package cannot be imported."""
    try:
        from trainmark.witness.hooks import install
    except ImportError as error:  # the environment is not the one that the launcher checked
        sys.stderr.write(f"trainmark: the probe cannot be imported: {error}\n")
        return
    install(START_NS)


def _is_started_as_rank() -> bool:
    """Tell whether Trainmark's launcher started this process, rather than a program in it."""
    return os.environ.get("TRAINMARK_PARENT") == str(os.getppid()) and "RANK" in os.environ


def _claim_torchrun_rank() -> bool:
    """Tell whether torchrun itself started this process.

    Processes that this one starts inherit torchrun's variables. They also inherit the variable that
    is set here, by which they know that they are not the rank. A second call returns False too.
    """
    is_first = "TORCHELASTIC_RUN_ID" in os.environ and _RANK_PROCESS_VARIABLE not in os.environ
    if is_first:
        os.environ[_RANK_PROCESS_VARIABLE] = "1"
    return is_first


def _report_untrained() -> None:
    """Report at the end of a rank's process if the program has not trained at all."""
    if os.getpid() != _PID:
        return  # this is a forked child, and not the process that was started as the rank
    from trainmark.witness.process import report_untrained

    report_untrained(START_NS)


def _report_failure(kind: Any, error: BaseException, trace: Any) -> None:
    """Report the exception that ends the program, and print it as before."""
    # A forked child has another id. It is not the process that was started as the rank.
    if os.getpid() == _PID:
        from trainmark.witness.process import report_failure

        report_failure(error, START_NS)
    _print_failure(kind, error, trace)


_print_failure = sys.excepthook
if "TRAINMARK_WITNESS" in os.environ:
    sys.meta_path.insert(0, _TorchFinder())
    if _is_started_as_rank():
        atexit.register(_report_untrained)
        sys.excepthook = _report_failure
    elif _claim_torchrun_rank():
        sys.excepthook = _report_failure
_run_hidden_module()
