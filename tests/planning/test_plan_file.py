"""Plan files: what they say, and every way to get one wrong with its line."""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.data.yaml_text import read
from trainmark.errors import UsageError
from trainmark.planning.plan_file import (
    Entry,
    attempt_name,
    attempt_number,
    is_plan_file,
    read_plan_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.planning.plan_file import PlanFile

    Write = Callable[[str | bytes], Path]

PLANS = Path(__file__).parents[2] / "plans"
FULL = """\
name: two-of-a-kind
device: cuda
out: results/here

runs:
  - case: toy            # nothing else is needed
  - name: second
    case: toy:pytorch:cpu:1:2:1
    recipe: tiny
    data: data/sst2
    device: cpu
    nproc: 2
    nnodes: 1
    repeat: 5
    timeout: 1e3
    seed: 7
    sample_every: 0.5
    peak_tflops: 989
    set: {bs: 16, lr: 1e-4, compile: yes, target_value: ~, precision: bf16}
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def call(text: str | bytes) -> Path:
        path = tmp_path / "plan.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return call


@pytest.fixture
def parse(write: Write) -> Callable[[str | bytes], PlanFile]:
    return lambda text: read_plan_file(write(text))


def fault(write: Write, text: str | bytes) -> str:
    """Return the message of a file that must be refused, its folder left out."""
    path = write(text)
    with pytest.raises(UsageError) as caught:
        read_plan_file(path)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_every_key_is_read(write: Write) -> None:
    path = write(FULL)
    plan = read_plan_file(path)
    assert (plan.name, plan.device, plan.out) == ("two-of-a-kind", "cuda", Path("results/here"))
    assert plan.entries == (
        Entry(name="toy", where=f"{path}, line 6", case="toy"),
        Entry(
            name="second",
            where=f"{path}, line 7",
            case="toy:pytorch:cpu:1:2:1",
            recipe="tiny",
            data=Path("data/sst2"),
            device="cpu",
            nproc=2,
            nnodes=1,
            repeat=5,
            timeout_s=1000.0,
            seed=7,
            sample_every_s=0.5,
            peak_tflops=989.0,
            # As they are written: the same words as KEY=VALUE on the command line.
            fields={
                "bs": "16",
                "lr": "1e-4",
                "compile": "yes",
                "target_value": "none",
                "precision": "bf16",
            },
        ),
    )


def test_what_is_not_said_has_its_default(parse: Callable[[str], PlanFile]) -> None:
    plan = parse("runs:\n- {case: toy, recipe: tiny}\n- case: toy:pytorch:cpu:1:2:1\n")
    assert (plan.name, plan.device, plan.out) == ("plan", "accelerator", None)
    assert [entry.name for entry in plan.entries] == ["toy-tiny", "toy-pytorch-cpu-1-2-1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["plan.yaml: the file is empty"]),
        ("- toy\n", ["line 1: the file is a list", "a mapping"]),
        ("toy\n", ["line 1: the file is text 'toy'"]),
        ("name: x\n", ["there are no runs", "- case: toy"]),
        ("runs: []\n", ["there are no runs"]),
        ("runs:\n", ["line 1: runs has no value", "a list"]),
        ("runs: {case: toy}\n", ["line 1: runs is a mapping", "a list"]),
        ("runs:\n- toy\n", ["line 2: runs[1] is text 'toy'"]),
        ("runs:\n- recipe: tiny\n", ["line 2: a run without a case", "trainmark list cases"]),
        ("rnus: []\n", ["line 1: unknown key 'rnus'", "did you mean runs?"]),
        ("runs:\n- case: toy\n  recipy: x\n", ["line 3: unknown key 'recipy'", "mean recipe?"]),
        ("runs:\n- case: toy\n  case: toy\n", ["line 3: case is given twice", "line 2 already"]),
        ("runs:\n- case: toy\n  set: {bs: 1, bs: 2}\n", ["line 3: bs is given twice"]),
        ("runs:\n- case: toy\n  set: {bs: [1]}\n", ["line 3: bs is a list", "one value"]),
        ("runs:\n- case: toy\n  set:\n", ["line 3: set has no value", "a mapping"]),
        ("runs:\n- case: 5\n", ["line 2: case is a number '5'", "put it in quotes"]),
        ("runs:\n- case:\n", ["line 2: case has no value", "must be text"]),
        ("runs:\n- case: ''\n", ["line 2: case is text ''"]),
        ("runs:\n- case: toy\n  nproc: two\n", ["line 3: nproc is text 'two'", "whole number"]),
        ("runs:\n- case: toy\n  nproc: '2'\n", ["nproc is text '2'", "whole number"]),
        ("runs:\n- case: toy\n  nproc: 1.5\n", ["nproc is a number '1.5'", "whole number"]),
        ("runs:\n- case: toy\n  nproc: 1:30\n", ["nproc is a number '1:30'", "whole number"]),
        ("runs:\n- case: toy\n  nproc: 0x8\n", ["nproc is a number '0x8'", "whole number"]),
        ("runs:\n- case: toy\n  seed: 99999999999999999999\n", ["seed is a number"]),
        ("runs:\n- case: toy\n  timeout: .inf\n", ["timeout is a number '.inf'", "as 900"]),
        ("runs:\n- case: toy\n  timeout: long\n", ["timeout is text 'long'", "as 900"]),
        ("runs:\n- case: toy\n  timeout: [9]\n", ["timeout is a list"]),
        ("name: ../up\nruns:\n- case: toy\n", ["line 1: name '../up' is no name of a folder"]),
        ("name: .\nruns:\n- case: toy\n", ["no name of a folder"]),
        ("name: yes\nruns:\n- case: toy\n", ["name is a truth value 'yes'", "quotes"]),
        ("yes: 1\n", ["line 1: a key is a truth value 'yes'"]),
        ("? [a]\n: 1\n", ["line 1: a key is a list"]),
        ("runs:\n- case: toy\n- case: toy\n", ["line 3: a second run is called toy", "line 2"]),
        ("runs:\n- {case: toy, name: A}\n- {case: toy, name: a}\n", ["second run is called a"]),
        (
            "runs:\n- {case: toy, name: a-2}\n- {case: toy, name: A}\n",
            ["line 2: a-2 is what an attempt of A is called", "NAME-2"],
        ),
        ("runs: &a\n- case: toy\n", ["line 1: anchors and aliases are not taken"]),
        ("name: !!python/name:os.system x\n", ["line 1: tags are not taken"]),
        ("runs:\n- case: ! toy\n", ["line 2: tags are not taken"]),
        ("a: " + "[" * 9 + "]" * 9 + "\n", ["line 1: nested too deep"]),
        ("runs: [\n" * 5_000, ["nested too deep"]),
        ("runs:\n- case: toy\n  - x\n", ["line 3: not YAML"]),
        ("runs:\n- case: 'toy\n", ["not YAML", "line 3"]),
        ("a: 1\n---\nb: 2\n", ["line 2: not YAML", "another document"]),
        ("name: a\n\x07: 1\n", ["line 2: a character that cannot be printed"]),
        (b"name: a\nout: \xff\xfe\n", ["line 2: not text", "UTF-8"]),
        (b"\x00\x01\x02", ["cannot be printed"]),
        ('out: "\\UFFFFFFFF"\n', ["not YAML"]),
        ('out: "a\\0b"\n', ["line 1: out is text", "can be printed"]),
        ('out: "\\ud800"\n', ["line 1: out is text", "can be printed"]),
        ('runs:\n- case: toy\n  data: "a\\nb"\n', ["line 3: data is text", "can be printed"]),
        ("runs:\n" + "- case: toy\n" * 1_001, ["more than 1,000 runs"]),
        ("#" * (256 * 1024 + 1), ["the file is too large", "256 KiB"]),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    write: Write, text: str | bytes, said: list[str]
) -> None:
    message = fault(write, text)
    assert message.startswith("plan.yaml")
    for part in said:
        assert part in message


def test_aliases_that_would_grow_are_refused_before_they_do(write: Write) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert "line 1: anchors and aliases are not taken" in fault(write, "\n".join(lines))


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "unreadable name"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / ("a\0b" if kind == "unreadable name" else kind)
    with pytest.raises(UsageError, match="cannot be read"):
        read_plan_file(path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "/dev/null"])
def test_only_a_regular_file_is_opened(tmp_path: Path, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="cannot be read: not a regular file"):
        read_plan_file(tmp_path / kind)


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("甲", "甲"),
        ("乙", "乙"),
        ("हि", "हि"),  # letters that differ in a mark alone stay apart
        ("हा", "हा"),
        ("e\u0301té 2", "e\u0301té-2"),
        ("a:b\\c\u3000d\u200be", "a-b-c-d-e"),
        ("a(1)", "a(1)"),
        ("\n", "plan"),
        ("界" * 80, "界" * 80),
        ("x" * 120, "x" * 120),
    ],
)
def test_the_folder_is_called_after_the_file(tmp_path: Path, stem: str, name: str) -> None:
    path = tmp_path / f"{stem}.yaml"
    path.write_text("runs:\n- case: toy\n", encoding="utf-8")
    assert read_plan_file(path).name == name


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(
    parse: Callable[[bytes], PlanFile],
) -> None:
    assert parse(b"\xef\xbb\xbfruns:\r\n- case: toy\r\n").entries[0].case == "toy"


@pytest.mark.parametrize("name", ["plan.yaml", "x/PLAN.YML", ".yaml"])
def test_a_plan_file_is_known_by_its_ending(name: str) -> None:
    assert is_plan_file(name)
    assert not is_plan_file(name + "x")


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_no_text_ends_in_anything_but_a_clear_refusal(
    tmp_path_factory: pytest.TempPathFactory, text: str | bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "plan.yaml"
    path.write_bytes(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
    with pytest.raises(UsageError) as caught:
        read_plan_file(path)
    assert caught.value.exit_code == 2


@given(
    st.dictionaries(
        st.text(string.ascii_letters, min_size=3, max_size=8).map("k_".__add__),
        st.integers(-(10**18), 10**18),
        min_size=1,
    )
)
def test_whole_numbers_are_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, numbers: dict[str, int]
) -> None:
    path = tmp_path_factory.mktemp("any") / "plan.yaml"
    path.write_text("".join(f"{key}: {number}\n" for key, number in numbers.items()))
    found = read(path).mapping()
    assert {key: value.whole() for key, value in found.items()} == numbers
    assert [value.line for value in found.values()] == list(range(1, len(numbers) + 1))


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True), st.integers(1, 10**6))
def test_attempts_are_found_again_by_their_folders(name: str, number: int) -> None:
    assert attempt_number(name, attempt_name(name, number)) == number


@pytest.mark.parametrize("folder", ["a-1", "a-02", "a-x", "a-", "b", "aa-2", "a-2-2", "a-0"])
def test_other_folders_are_nobodys_attempts(folder: str) -> None:
    assert attempt_number("a", folder) is None


def test_the_shipped_plans_can_be_read() -> None:
    found = {path.name: read_plan_file(path) for path in sorted(PLANS.glob("*.yaml"))}
    assert list(found) == ["demo.yaml", "gpt_reproduction.yaml"]
    assert [entry.name for entry in found["gpt_reproduction.yaml"].entries] == [
        "sp-bs8-fp32",
        "sp-bs16-fp16",
        "mp-bs8-fp32",
        "mp-bs16-fp16",
        "sp-bs16-bf16",
        "mp-bs16-bf16",
    ]
    assert found["gpt_reproduction.yaml"].device == "accelerator"
    assert found["demo.yaml"].device == "cpu"


@pytest.mark.parametrize("page", ["plans.md", "plans.zh.md"])
def test_the_documented_example_is_a_plan(parse: Callable[[str], PlanFile], page: str) -> None:
    guide = (PLANS.parent / "docs" / page).read_text(encoding="utf-8")
    plan = parse(guide.split("```yaml\n")[1].split("```")[0])
    assert [entry.name for entry in plan.entries] == ["toy", "small-batch"]
