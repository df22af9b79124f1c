"""Plan files: what they say, and every way to get one wrong with its line."""

from __future__ import annotations

import itertools
import os
import string
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.data.yaml_text import read
from trainmark.errors import UsageError
from trainmark.plan.plan_file import (
    Entry,
    attempt_name,
    attempt_number,
    is_plan_file,
    read_plan_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from trainmark.plan.plan_file import PlanFile

    Write = Callable[[str | bytes], Path]

PLANS = Path(__file__).parents[2] / "plans"
FULL = """\
name: two-of-a-kind
device: cuda
launcher: local
site: site.yaml
order: runs
out: results/here

runs:
  - case: toy            # nothing else is needed
  - name: second
    case: toy:pytorch:cpu:1:2:1
    recipe: tiny
    data: data/sst2
    device: cpu
    launcher: slurm
    site: sites/here.yaml
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
    assert (plan.launcher, plan.site, plan.order) == ("local", Path("site.yaml"), "runs")
    assert plan.entries == (
        Entry(name="toy", where=f"{path}, line 9", case="toy", options={"overrides": {}}),
        Entry(
            name="second",
            where=f"{path}, line 10",
            case="toy:pytorch:cpu:1:2:1",
            data=Path("data/sst2"),
            device="cpu",
            launcher="slurm",
            site=Path("sites/here.yaml"),
            options={
                "recipe_name": "tiny",
                "nproc": 2,
                "nnodes": 1,
                "repeat_count": 5,
                "timeout_s": 1000.0,
                "seed": 7,
                "sample_every_s": 0.5,
                "peak_tflops": 989.0,
                # As they are written: the same words as KEY=VALUE on the command line.
                "overrides": {
                    "bs": "16",
                    "lr": "1e-4",
                    "compile": "yes",
                    "target_value": "none",
                    "precision": "bf16",
                },
            },
        ),
    )


def test_what_is_not_said_has_its_default(parse: Callable[[str], PlanFile]) -> None:
    plan = parse("runs:\n- {case: toy, recipe: tiny}\n- case: toy:pytorch:cpu:1:2:1\n")
    assert (plan.name, plan.device, plan.out) == ("plan", "accelerator", None)
    assert (plan.launcher, plan.site, plan.order) == (None, None, "rounds")
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
        ("runs:\n- case: toy\n  set: {bs: [[1]]}\n", ["line 3: bs[1] is a list", "one value"]),
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
        ("runs:\n" + "- case: toy\n" * 1_001, ["line 1002: more than 1,000 runs"]),
        ("order: rouns\nruns: []\n", ["line 1: no order 'rouns'", "did you mean rounds?"]),
        ("runs:\n- case: toy\n  world: 2\n", ["line 3: world is a number '2'", "quotes"]),
        ("runs:\n- case: toy\n  world: 2x\n", ["line 3: '2x' is no world", "as 2x8"]),
        ("runs:\n- case: toy\n  world: [1x1, 99999x1]\n", ["line 3: '99999x1' is no world"]),
        ("runs:\n- case: toy\n  nproc: 2\n  world: 1x2\n", ["line 4: world beside nnodes"]),
        (
            "runs:\n- case: toy\n  world:\n  - 1x1\n  - 01x1\n",
            ["line 5: world has 1x1 twice", "line 4"],
        ),
        (
            "runs:\n- case: toy\n  set:\n    bs: [8, 4,\n      8]\n",
            ["line 5: bs has 8 twice", "line 4"],
        ),
        ("runs:\n- case: []\n", ["line 2: case is an empty list"]),
        ("runs:\n- case: toy\n  repeat: [1, 2]\n", ["line 3: repeat is a list", "whole number"]),
        ("runs:\n- case: toy\n  recipe: [tiny, [x]]\n", ["line 3: recipe[2] is a list"]),
        ("runs:\n- case: [toy, TOY]\n", ["line 2: a second run is called TOY"]),
        (
            "runs:\n- {case: toy, world: [1x1]}\n- {case: toy, name: toy-1x1}\n",
            ["line 3: a second run is called toy-1x1", "line 2"],
        ),
        (
            "runs:\n- case: toy\n- case: toy\n  set: {bs: ["
            + ", ".join(map(str, range(1, 1001)))
            + "]}\n",
            ["line 3: more than 1,000 runs"],
        ),
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


def test_lists_become_an_entry_for_each_combination(parse: Callable[[str], PlanFile]) -> None:
    plan = parse("""\
runs:
- case: [toy, glm]
  recipe: tiny
  world: [1x1, 2x8]
  repeat: 3
  set: {precision: fp32, bs: [8, 16]}
- {name: named, case: [toy], recipe: [a, b], device: [cpu, fake], world: 1x2}
""")
    assert [entry.name for entry in plan.entries] == [
        "toy-tiny-1x1-bs_8", "toy-tiny-1x1-bs_16", "toy-tiny-2x8-bs_8", "toy-tiny-2x8-bs_16",
        "glm-tiny-1x1-bs_8", "glm-tiny-1x1-bs_16", "glm-tiny-2x8-bs_8", "glm-tiny-2x8-bs_16",
        "named-toy-a-cpu", "named-toy-a-fake", "named-toy-b-cpu", "named-toy-b-fake",
    ]  # fmt: skip
    last = plan.entries[7]
    assert (last.case, last.where.rpartition(", ")[2]) == ("glm", "line 2")
    assert last.options == {
        "recipe_name": "tiny",
        "nnodes": 2,
        "nproc": 8,
        "repeat_count": 3,
        "overrides": {"precision": "fp32", "bs": "16"},
    }
    named = plan.entries[-1]
    assert (named.case, named.device) == ("toy", "fake")
    assert named.options == {"recipe_name": "b", "nnodes": 1, "nproc": 2, "overrides": {}}


VALUES = {
    "case": ["toy", "glm", "gpt"], "recipe": ["tiny", "full"], "device": ["cpu", "fake"],
    "world": ["1x1", "1x2", "2x8"], "bs": ["8", "16"], "lr": ["1e-4", "3e-4"], "gas": ["1", "2"],
}  # fmt: skip


@st.composite
def _matrices(draw: st.DrawFn) -> dict[str, list[str]]:
    names = draw(st.sets(st.sampled_from(list(VALUES)[1:]))) | {"case"}
    return {
        name: draw(st.lists(st.sampled_from(VALUES[name]), min_size=1, unique=True))
        for name in draw(st.permutations(sorted(names)))
    }


def _text(axes: dict[str, list[str]]) -> str:
    own = {"case", "recipe", "device", "world"}
    lists = {name: f"{name}: [{', '.join(values)}]" for name, values in axes.items()}
    fields = ", ".join(text for name, text in lists.items() if name not in own)
    keys = [text for name, text in lists.items() if name in own]
    return "runs:\n- {" + ", ".join([*keys, f"set: {{{fields}}}"]) + "}\n"


def _point(entry: Entry) -> dict[str, str]:
    said = entry.options | {"case": entry.case, "device": entry.device}
    world = {"world": f"{said['nnodes']}x{said['nproc']}"} if "nnodes" in said else {}
    found = {"case": said["case"], "recipe": said.get("recipe_name"), "device": said["device"]}
    return {key: text for key, text in found.items() if text} | world | said["overrides"]


@given(_matrices())
def test_every_combination_is_there_once_under_a_name_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, axes: dict[str, list[str]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "plan.yaml"
    path.write_text(_text(axes))
    entries = read_plan_file(path).entries
    points = [tuple(_point(entry)[name] for name in axes) for entry in entries]
    assert sorted(points) == sorted(itertools.product(*axes.values()))
    assert len({entry.name.lower() for entry in entries}) == len(entries)


@given(_matrices(), st.randoms())
def test_an_entry_keeps_its_name_whatever_else_is_in_the_lists(
    tmp_path_factory: pytest.TempPathFactory, axes: dict[str, list[str]], random: Random
) -> None:
    """Also in another order of keys and values; so its launches are found again."""
    path = tmp_path_factory.mktemp("any") / "plan.yaml"
    named = {}
    less = {name: random.sample(values, random.randint(1, len(values)))
            for name, values in axes.items()}  # fmt: skip
    for lists in (axes, dict(reversed(less.items()))):
        path.write_text(_text(lists))
        found = {str(sorted(_point(x).items())): x.name for x in read_plan_file(path).entries}
        named[len(named)] = found
    assert named[1].items() <= named[0].items()


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
    assert list(found) == ["batch_sizes.yaml", "demo.yaml", "gpt_reproduction.yaml"]
    assert [entry.name for entry in found["batch_sizes.yaml"].entries] == [
        "toy-tiny-bs_32-precision_fp32",
        "toy-tiny-bs_32-precision_bf16",
        "toy-tiny-bs_64-precision_fp32",
        "toy-tiny-bs_64-precision_bf16",
    ]
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
    worlds = [f"{world}-bs_{size}" for world in ("1x1", "1x2") for size in (8, 16)]
    combined = [f"{case}-tiny-{rest}" for case in ("toy", "distilbert_sst2") for rest in worlds]
    assert [entry.name for entry in plan.entries] == ["toy", "small-batch", *combined]
