"""Shell completion, as each shell asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from trainmark import cases

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'trainmark'; from trainmark.cli.app import main; main()",
]
GPT_RECIPES = [*cases.load("gpt_megatron").recipes]


def complete_in_bash(line: str, folder: Path, **more: str) -> list[str]:
    """Return the completions that bash gets at the end of a line.

    ``PROGRAM`` starts trainmark in a new process. It prints completions if the environment has the
    words of the line and the number of the last one, as bash sets them.

    Args:
        folder: the working directory.
        more: further environment variables.
    """
    # bash gives = as a word of its own; for that, a line of the tests has blanks around it.
    args = line.split(" ")
    environment = os.environ | {
        "_TRAINMARK_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(args),
        "COMP_CWORD": str(len(args) - 1),
        **more,
    }
    process = subprocess.run(
        PROGRAM, env=environment, capture_output=True, text=True, cwd=folder, check=True
    )
    assert process.stderr == ""
    return process.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trainmark au", ["audit"]),
        ("trainmark run distil", ["distilbert_sst2", "distilbert"]),
        ("trainmark run gpt --recipe ", GPT_RECIPES),
        ("trainmark run gpt_megatron bs=8 --recipe standard", ["standard-1x1", "standard-1x8"]),
        ("trainmark run toy --launcher s", ["slurm", "ssh"]),
        ("trainmark run toy --follow m", ["mlflow"]),
        ("trainmark follow runs/a --to w", ["wandb"]),
        ("trainmark run toy --device nv", ["nvidia"]),
        ("trainmark run toy prec", ["precision="]),
        ("trainmark run toy precision = b", ["bf16"]),
        ("trainmark run toy compile = ", ["true", "false"]),
        ("trainmark run distilbert init=p", ["init=pretrained"]),
        ("trainmark check to", ["toy"]),
        ("trainmark prepare gpt tok", ["tokenizer="]),
        ("trainmark results p_c", ["p_core="]),
        ("trainmark list dev", ["devices"]),
        ("trainmark run plans/", ["plans/demo.yaml"]),
    ],
)
def test_shell_completes(line: str, expected: list[str], tmp_path: Path) -> None:
    # ``GPT_RECIPES``: the names of all recipes of the case gpt_megatron, whose alias is gpt.
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "demo.yaml").touch()
    (tmp_path / "plans" / "notes.txt").touch()  # no plan file, so not completed
    assert complete_in_bash(line, tmp_path) == expected


def test_bash_completes_the_value_behind_an_equals_sign(tmp_path: Path) -> None:
    values = ["fp32", "tf32", "bf16", "fp16", "fp8"]
    assert complete_in_bash("trainmark run toy precision =", tmp_path) == values


def complete_in_zsh(line: str) -> str:
    """Return the completions with their descriptions that zsh gets at the end of a line.

    ``PROGRAM`` starts trainmark in a new process. It prints completions if the environment has the
    line, as zsh sets it.
    """
    environment = os.environ | {
        "_TRAINMARK_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": line,
    }
    process = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=True)
    return process.stdout


def test_zsh_completes_key_and_value_as_one_word() -> None:
    assert '"precision=bf16"' in complete_in_zsh("trainmark run toy precision=b")


def test_description_of_shared_recipe_names_all_its_cases() -> None:
    # Many cases have a recipe named tiny. It is completed before the case is known, so its
    # description, which zsh shows beside it, has the names of the cases.
    completions = complete_in_zsh("trainmark run --recipe tiny")
    loaded_cases, _ = cases.load_all()
    for case in loaded_cases:
        if "tiny" in case.recipes:
            assert case.name in completions


@pytest.mark.parametrize("line", ["trainmark run ", "trainmark run toy --device "])
def test_completion_imports_no_torch(line: str, tmp_path: Path) -> None:
    args = line.split(" ")
    # Importing torch takes seconds, and each press of the tab key starts a process.
    script = (
        "import os, sys\n"
        f"os.environ.update(_TRAINMARK_COMPLETE='complete_bash', COMP_WORDS={line!r},"
        f" COMP_CWORD={str(len(args) - 1)!r})\n"
        "sys.argv = ['trainmark']\n"
        "from trainmark.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert process.stdout.split()[-1] == "False"
