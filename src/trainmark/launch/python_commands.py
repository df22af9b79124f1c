"""Build commands of Python processes that import nothing from the working directory.

A user may have a ``json.py`` there. From Python 3.11 on, the option ``-P`` keeps the directory off
the import path of a process, and a variable does so for all its child processes. Python 3.10 has
neither: there the command removes the directory from the path before the first import.
"""

from __future__ import annotations

import sys

# Environment of child processes, which they pass on to their own children.
SAFE_PATH_VARIABLES = {"PYTHONSAFEPATH": "1"}
_DROP_DIRECTORY = "import sys; del sys.path[0]; "
_RUN_MODULE = (
    "from runpy import run_module; run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def build_module_command(module: str, *words: str, python: str | None = None) -> list[str]:
    """Return the command that runs ``module`` with the arguments ``words``, as ``-m`` does.

    The process imports nothing from the working directory.

    Args:
        python: path or name of the interpreter; None: the one that runs this code. Both are taken
            to have the same version.
    """
    python = python or sys.executable
    if sys.version_info >= (3, 11):  # ``-P`` keeps the working directory off the import path
        return [python, "-P", "-m", module, *words]
    # Older interpreters have no ``-P``: the code for ``-c`` removes the working directory from the
    # import path, then runs the module.
    return [python, "-c", _DROP_DIRECTORY + _RUN_MODULE, module, *words]


def build_code_command(code: str, *words: str) -> list[str]:
    """Return the command that runs ``code`` with the arguments ``words``, as ``-c`` does.

    The process imports nothing from the working directory.
    """
    if sys.version_info >= (3, 11):  # ``-P`` keeps the working directory off the import path
        return [sys.executable, "-P", "-c", code, *words]
    # Older interpreters have no ``-P``: code in front removes the directory from the import path.
    return [sys.executable, "-c", _DROP_DIRECTORY + code, *words]
