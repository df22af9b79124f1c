"""Plan files: their keys, the names of entries, and one refusal of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trainmark.errors import UsageError
from trainmark.plan.plan_file import (
    Entry,
    PlanFile,
    read_plan_file,
)
from trainmark.plan.request import RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    Parse = Callable[..., PlanFile]

PLANS = Path(__file__).parents[2] / "plans"
FULL = """\
name: two-of-a-kind
device: cuda

runs:
  - case: toy            # nothing else is needed
  - name: second
    case: toy:pytorch:cpu:1:2:1
    recipe: tiny
    data: data/sst2
    device: cpu
    launcher: slurm
    cluster: clusters/here.yaml
    nproc: 2
    nnodes: 1
    repeat: 5
    timeout: 1e3
    seed: 7
    sample_every: 0.5
    peak_tflops: 989
    set: {bs: 16, lr: 1e-4, compile: yes, target_value: ~, precision: bf16}
"""


def parse_file(path: Path, **options: Any) -> PlanFile:
    """Read a plan file as ``trainmark run FILE`` does, with these options of the command."""
    return read_plan_file(RunRequest(case=str(path), **options))


@pytest.fixture
def parse(tmp_path: Path) -> Parse:
    """Return a function that writes a plan file and reads it with options of the command line."""

    def call(text: str, **options: Any) -> PlanFile:
        path = tmp_path / "plan.yaml"
        path.write_text(text, encoding="utf-8")
        return parse_file(path, **options)

    return call


def test_every_key_is_read(parse: Parse, tmp_path: Path) -> None:
    # The first run of ``FULL`` has only a case, the second one every key of a run. The plan itself
    # has a name, which is also its folder in ``runs``, and a device: that of runs that name none.
    plan = parse(FULL)
    assert (plan.name, plan.out) == ("two-of-a-kind", Path("runs/two-of-a-kind"))
    where = f"{tmp_path / 'plan.yaml'}, runs"
    assert plan.entries == (
        Entry(
            name="toy",
            where=f"{where}[1]",
            case="toy",
            device="cuda",
            out="runs/two-of-a-kind/toy",
        ),
        Entry(
            name="second",
            where=f"{where}[2]",
            case="toy:pytorch:cpu:1:2:1",
            recipe="tiny",
            data="data/sst2",
            device="cpu",
            launcher="slurm",
            cluster="clusters/here.yaml",
            nproc=2,
            nnodes=1,
            repeat=5,
            timeout=1000,
            seed=7,
            sample_every=0.5,
            peak_tflops=989,
            out="runs/two-of-a-kind/second",
            # Kept as text, as KEY=VALUE on the command line.
            overrides={
                "bs": "16",
                "lr": "1e-4",
                "compile": "yes",
                "target_value": "none",
                "precision": "bf16",
            },
        ),
    )


def test_plan_file_has_defaults(parse: Parse) -> None:
    # The fixture writes the text into ``plan.yaml``, whose name without its ending is the plan's.
    # Without a device in the file, an entry asks for any accelerator.
    plan = parse("runs:\n- {case: toy, recipe: tiny}\n- case: toy:pytorch:cpu:1:2:1\n")
    assert (plan.name, plan.out) == ("plan", Path("runs/plan"))
    first, keyed = plan.entries
    assert (first.name, first.device, first.launcher) == ("toy-tiny", "accelerator", None)
    # The device is part of the key.
    assert (keyed.name, keyed.device) == ("toy-pytorch-cpu-1-2-1", None)


def test_options_override_the_file_or_are_refused(parse: Parse) -> None:
    # ``FULL`` is a plan file of two runs. It gives its second run another device, seed and so on.
    plan = parse(FULL, device="fake", seed=1, out="elsewhere", sample_every=0)
    for entry in plan.entries:
        assert (entry.device, entry.seed, entry.sample_every) == ("fake", 1, 0)
        assert entry.out == Path("elsewhere") / entry.name
    assert plan.entries[1].timeout == 1000  # as in the file
    # Options that only make sense for a single run.
    for option, expected_text in (
        ({"peak_tflops": 1}, "--peak-tflops cannot be used"),
        ({"overrides": {"bs": 1}}, "KEY=VALUE cannot be used"),
    ):
        with pytest.raises(UsageError, match=expected_text):
            parse(FULL, **option)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name: x\n", ["runs", "required"]),
        ("runs:\n- recipe: tiny\n", ["runs[1]: case", "required"]),
        ("runs:\n- case: toy\n- case: toy\n  recipy: x\n", ["runs[2]", "'recipy'"]),
        ("runs:\n- {case: toy, nproc: two}\n", ["runs[1]: nproc", "'two'", "whole number"]),
        ("runs:\n- {case: toy, name: ../up}\n", ["runs[1]: name", "folder name"]),
        (f"runs:\n- {{case: toy, name: {'x' * 101}}}\n", ["runs[1]: name", "100 characters"]),
        ("runs:\n- {case: toy, name: A}\n- {case: toy, name: a}\n", ["name a is used twice"]),
        (
            "runs:\n- {case: toy, seed: 1, set: {seed: [2]}}\n",
            ["runs[1]: set", "seed is given twice"],
        ),
        (  # a second attempt of the first run is in the folder ``a-2``
            "runs:\n- {case: toy, name: a}\n- {case: toy, name: A-2}\n",
            ["runs[2]", "attempt 2 of a would have a folder with this name"],
        ),
        ("runs:\n- {case: []}\n", ["runs[1]", "the list is empty"]),
        ("runs:\n- case: 'toy\n", ["not YAML"]),
        (
            "runs:\n- case: toy\n  repeat: 2\n  repeat: 3\n",
            ["plan.yaml, line 4", "repeat is given twice"],
        ),
        ("runs:\n- {case: toy, set: {bs: 2, bs: 3}}\n", ["line 2", "bs is given twice"]),
    ],
)
def test_a_fault_is_named_with_its_key(parse: Parse, text: str, parts: list[str]) -> None:
    # ``parse`` writes the text into plan.yaml and reads it. ``parts``: words of the error, with the
    # number of the run, counted from 1, and the key that is wrong.
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert "plan.yaml" in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_lists_become_an_entry_for_each_combination(parse: Parse) -> None:
    plan = parse("""\
runs:
- case: [toy, glm]
  recipe: tiny
  nproc: [1, 8]
  repeat: 3
  set: {precision: fp32, bs: [8, 16]}
- {name: named, case: toy, recipe: [a, b], nnodes: 2}
""")
    assert [entry.name for entry in plan.entries] == [
        *(
            f"{case}-tiny-nproc_{nproc}-bs_{size}"
            for case in ("toy", "glm")
            for nproc in (1, 8)
            for size in (8, 16)
        ),
        "named-recipe_a",
        "named-recipe_b",
    ]
    last = plan.entries[7]  # of the first eight: 2 cases x 2 numbers of ranks x 2 batch sizes
    assert (last.case, last.recipe, last.nnodes, last.nproc) == ("glm", "tiny", None, 8)
    assert (last.repeat, last.overrides) == (3, {"precision": "fp32", "bs": "16"})
    named_entry = plan.entries[-1]
    assert (named_entry.case, named_entry.recipe, named_entry.nnodes, named_entry.overrides) == (
        "toy",
        "b",
        2,
        {},
    )


def test_the_shipped_plans_can_be_read() -> None:
    entries = {path.stem: parse_file(path).entries for path in sorted(PLANS.glob("*.yaml"))}
    # ``PLANS``: the folder of plan files that come with the program. The first combines batch sizes
    # 32 and 64 with fp32 and bf16; the last lists six runs of one and of eight devices.
    assert list(entries) == ["batch_sizes", "demo", "gpt_reproduction"]
    assert entries["batch_sizes"][1].name == "toy-tiny-bs_32-precision_bf16"
    gpt = entries["gpt_reproduction"]
    assert (len(gpt), gpt[0].name, gpt[0].device) == (6, "sp-bs8-fp32", "accelerator")


@pytest.mark.parametrize("page", ["measuring.md", "measuring.zh.md"])
def test_documented_example_is_a_valid_plan(parse: Parse, page: str) -> None:
    # ``PLANS`` is the repository's folder of plan files. The guide in ``docs``, beside it, shows a
    # plan file in its first YAML block. It lists a run of toy, one
    # with a name, and combinations of two cases, two numbers of ranks and two batch sizes.
    guide = (PLANS.parent / "docs" / page).read_text(encoding="utf-8")
    plan = parse(guide.split("```yaml\n")[1].split("```")[0])
    changes = [f"nproc_{count}-bs_{size}" for count in (1, 2) for size in (8, 16)]
    combined = [f"{case}-tiny-{name}" for case in ("toy", "distilbert_sst2") for name in changes]
    assert [entry.name for entry in plan.entries] == ["toy", "small-batch", *combined]
