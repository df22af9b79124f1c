"""Resolving: every argument is checked before anything starts and recorded in the plan."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import FakeVendor, check_golden
from trainmark import cases, devices
from trainmark.cases.toy import data
from trainmark.cases.toy.case import CASE as TOY
from trainmark.errors import DataError, EnvironmentFault, UsageError
from trainmark.launch.cluster import TESTED, Cluster
from trainmark.plan import plan, recipes, resolving
from trainmark.plan.choosing import choose_work, refuse_unsuitable_device
from trainmark.plan.request import RunRequest
from trainmark.protocols.tested import RECORDED_OUTPUTS
from trainmark.recipe import Recipe
from trainmark.record.trust import grade_launch
from trainmark.spec import DataFacts, RankMemory
from trainmark.torch_version import refuse_missing_features

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def _one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make plans the same on every machine.

    Each machine has two accelerators, four cores, torch 2.13 and version 0.0.0 of this program.
    """
    vendors = {"fake": FakeVendor(), "cpu": FakeVendor("cpu", devices=4, product="Fake CPU")}
    monkeypatch.setattr(devices, "list_vendors", lambda: vendors)
    monkeypatch.setattr("trainmark.torch_version._read_version", lambda _: "2.13.0+cpu")
    monkeypatch.setattr(resolving, "__version__", "0.0.0")


@pytest.fixture
def resolve(tmp_path: Path) -> Any:
    """Return a function that plans a run of a case.

    Its arguments are the case, as a name or a case key, and fields of the request. Two of them are
    not fields: ``assignments``, changes of the recipe as KEY=VALUE, and ``remote``, what a launcher
    knows of other machines. Without a device in the key or the fields, the run is on the CPU.
    """

    def call(case_word: str = "toy", **fields: Any) -> plan.Plan:
        # As on the command line: ``name=value`` of the recipe, and ``case:recipe``.
        changes = recipes.parse_assignments(fields.pop("assignments", ()))
        device = None if ":" in case_word else "cpu"  # a case key contains the device
        remote = fields.pop("remote", None)  # what a launcher for other machines knows of them
        request_fields = {"device": device, "out": tmp_path / "run", "overrides": changes, **fields}
        request = RunRequest.build(case=case_word, **request_fields)
        cache = tmp_path / "cache"
        return resolving.resolve(
            request, generated_root=cache, now=NOW, run_token="abc123", remote=remote
        )

    return call


def drop_unstable_parts(resolved: plan.Plan, tmp_path: Path) -> str:
    """Return the text of a plan without this machine's folders and the data's digests."""
    text = resolved.model_dump_json(indent=2).replace(str(tmp_path.resolve()), "/somewhere")
    # The folder of generated data has a digest in its name.
    text = re.sub(r"toy-[0-9a-f]{16}", "toy-0123456789abcdef", text)
    return text.replace(resolved.data.content_id, "fedcba9876543210") + "\n"


def test_plan_of_the_toy_case_matches_its_golden_file(resolve: Any, tmp_path: Path) -> None:
    check_golden("plan_toy.json", drop_unstable_parts(resolve(), tmp_path))


def test_written_plan_is_read_back(resolve: Any, tmp_path: Path) -> None:
    # ``resolve`` plans a run of the toy case with these changes of its recipe; bs is short for
    # ``micro_batch_size``.
    saved_plan = resolve(assignments=["bs=96", "precision=bf16"])
    saved_plan.save(tmp_path)
    assert plan.Plan.read(tmp_path) == saved_plan
    assert saved_plan.load_recipe().micro_batch_size == 96
    assert saved_plan.load_case() is cases.load("toy")


def test_plan_from_a_key_equals_plan_from_options(resolve: Any) -> None:
    # model:framework:device:nodes:ranks:repeats. A plan names the installed torch as its framework,
    # which is 2.13 in this file, as a fixture sets it; ``resolve`` plans for the CPU.
    by_key = resolve("toy:pytorch_2.13:cpu:1:2:3")
    by_options = resolve("toy", nproc=2, repeat=3)
    assert by_key == by_options
    assert by_key.case_key == "toy:pytorch_2.13:cpu:1:2:3"
    assert (by_key.world_size, by_key.repeat_count) == (2, 3)


@pytest.mark.parametrize(
    "key",
    ["toy:pytorch:cpu:1:1", "toy::cpu:1:1:1", "toy:pytorch:cpu:one:1:1", "toy:pytorch:cpu:1:0:1"],
)
def test_a_bad_key_is_named(resolve: Any, key: str) -> None:
    with pytest.raises(UsageError, match="is not a case key"):
        resolve(key)


def test_values_are_parsed_by_the_fields_type(resolve: Any) -> None:
    # Short names of recipe fields, and texts as on the command line. ``fix_hp``: the changes that
    # the closed rules allow; ``extra``: the others. ``amp`` is another word for fp16.
    args = ["bs=96", "lr=0.00015", "precision=amp", "compile=true", "target=none", "steps=none"]
    resolved = resolve(assignments=args)
    assert resolved.fix_hp == {
        "micro_batch_size": 96,
        "learning_rate": 0.00015,
        "precision": "fp16",
        "compile": True,
    }
    assert resolved.extra == {"target_value": None}  # max_steps was none before, so it is no change
    assert resolved.recipe["target_value"] is None
    assert "performance-only" in resolved.labels  # as there is no target


def test_tunable_fields_are_listed_and_fixed_fields_make_the_run_open(resolve: Any) -> None:
    # ``fix_hp`` lists the changes that the closed rules allow, here of the batch size (bs) and of
    # the accumulation of gradients (gas); ``extra`` lists all others.
    closed = resolve(assignments=["bs=96", "gas=2"])
    assert (closed.rules, closed.extra) == ("closed", {})
    # Weight decay and the number of epochs are fixed by the closed rules.
    opened = resolve(assignments=["bs=96", "wd=0.1", "epochs=3"])
    assert opened.fix_hp == {"micro_batch_size": 96}
    assert opened.extra == {"weight_decay": 0.1, "max_epochs": 3}
    assert opened.rules == "open"


@pytest.mark.parametrize(
    ("name", "world", "standard"),
    [
        ("standard-1x8", "1x8", "standard-1x8"),
        ("throughput-1x1", "1x1", "standard-1x1"),
        ("throughput-1x1", "1x8", "standard-1x8"),  # the run's number of ranks takes precedence
        ("standard-1x1", "1x8", "standard-1x8"),
        ("throughput-1x1", "1x4", "standard-1x1"),  # then the world it was written for
        ("long", "1x2", "standard-1x1"),  # then the nearest by the ratio of ranks
        ("long", "1x3", "standard-1x8"),  # 8 / 3 is less than 3 / 1
        ("long", "4x8", "standard-1x8"),
        ("tiny", "1x1", "tiny"),  # its generated data is other work: compared with itself
    ],
)
def test_a_run_is_compared_with_a_standard_recipe(name: str, world: str, standard: str) -> None:
    # ``name``: the recipe that is run; ``world``: nodes x ranks of each, on which it runs;
    # ``standard``: the recipe with whose values it is compared. ``make_sized_case`` has the
    # standards for 1x1 and 1x8. ``find_recipe_world`` reads the world from a recipe's name.
    case = make_sized_case()
    recipes_with_world = {
        key: replace(recipe, world=find_recipe_world(key)) for key, recipe in case.recipes.items()
    }
    case = replace(case, recipes=recipes_with_world)
    assert recipes.find_standard_recipe(case, name, world=world) == standard


def find_recipe_world(name: str) -> str | None:
    """Return nodes x ranks at the end of a recipe's name, such as "1x8"; None: it has none."""
    world = name.rpartition("-")[2]
    return world if "x" in world else None


def test_default_of_a_shipped_recipe_is_no_change() -> None:
    standard = Recipe(target_value=0.9, max_epochs=10, weight_decay=0.1)
    shipped_recipe = replace(standard, target_value=None, max_steps=100, micro_batch_size=96)

    def compare_changes(**by_hand: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the changes that the rules allow (``fix_hp``), and the others (``extra``)."""
        return recipes.compare_with_standard(
            replace(shipped_recipe, **by_hand), named=shipped_recipe, standard=standard
        )

    # The shipped recipe's own target and steps say how much is trained, so they are no change. Its
    # batch size is a change, which the closed rules allow.
    assert compare_changes() == ({"micro_batch_size": 96}, {})
    assert compare_changes(micro_batch_size=32) == ({}, {})  # back at the standard's
    assert compare_changes(max_steps=50) == ({"micro_batch_size": 96}, {"max_steps": 50})
    assert compare_changes(target_value=0.9)[1] == {}  # that of the standard
    assert compare_changes(weight_decay=0.0, seed=7)[1] == {"weight_decay": 0.0}  # a seed is free


@pytest.mark.parametrize(
    ("word", "what", "fix"),
    [
        ("micro_batch=96", "unknown recipe field 'micro_batch'", "did you mean micro_batch_size?"),
        ("bs=many", "recipe field micro_batch_size: 'many' is not valid", "recipe's value (64)"),
        ("bs=0", "it must be greater than 0", "recipe's value (64)"),
        ("bs=none", "recipe field micro_batch_size: None is not valid", "recipe's value (64)"),
        ("lr=inf", "it must be a finite number", "recipe's value (0.003)"),
        ("precision=fp8", "precision=fp8 cannot be used with toy", "use precision=bf16"),
        ("compile=maybe", "recipe field compile: 'maybe' is not valid", "recipe's value (False)"),
        ("data=real", "data cannot be set directly", "choose another --recipe"),
        ("eval_every_epochs=none", "cannot be reached without an evaluation", "target_value=none"),
        (
            "eval_from_sample=100",
            "has no effect without eval_every_samples",
            "set eval_every_samples too",
        ),
    ],
)
def test_invalid_argument_is_refused(resolve: Any, word: str, what: str, fix: str) -> None:
    # ``word``: a change of the toy recipe "tiny", as on the command line. Its own values, which the
    # advice (``fix``) names, are a batch size of 64 and a learning rate of 0.003.
    with pytest.raises(UsageError) as caught:
        resolve(assignments=[word])
    assert what in str(caught.value)
    assert fix in str(caught.value)
    assert caught.value.exit_code == 2


@dataclass(frozen=True, kw_only=True)
class EvenRecipe(Recipe):
    """A case's own type of recipe, which refuses values that contradict each other."""

    def __post_init__(self) -> None:
        if self.warmup_steps % self.window_steps:
            raise ValueError("warmup_steps must be a multiple of window_steps")


def test_fields_that_a_recipe_refuses_together_are_named_with_its_reason() -> None:
    # ``EvenRecipe`` is a recipe of this file that refuses any warm-up that is not a whole number of
    # windows: 10 steps are two windows of 5, but two and a half of 4. The reason is its own text.
    recipe = EvenRecipe(warmup_steps=10, window_steps=5)
    with pytest.raises(UsageError) as caught:
        recipes.apply_overrides(recipe, {"window_steps": "4"})
    assert caught.value.what == "window_steps=4 cannot be used with this recipe"
    assert caught.value.where == "recipe"
    assert caught.value.rule == "warmup_steps must be a multiple of window_steps"


@pytest.mark.parametrize(
    ("case", "args", "what", "fix"),
    [
        (
            "dlrm_criteo",
            (),
            "replay_every_windows=5 cannot be used with dlrm_criteo",
            "replay_every_windows=none",
        ),
        (
            "gpt_oss_20b",
            (),
            "replay_every_windows=5 cannot be used with gpt_oss_20b",
            "replay_every_windows=none",
        ),
        (
            "gpt_megatron",
            ("tensor_parallel=2",),
            "replay_every_windows=5 cannot be used with tensor_parallel=2",
            "or tensor_parallel=1",
        ),
        (
            # 40 steps after the warm-up are four windows of 10.
            "toy",
            ("max_steps=50", "warmup_steps=10", "window_steps=10"),
            "replay_every_windows=5, but the run might have only 4 measured windows",
            "use a smaller value, or more steps",
        ),
        (
            # 4,096 samples are 32 steps of two ranks: three windows after the warm-up.
            "toy",
            ("max_epochs=1", "warmup_steps=10", "window_steps=10"),
            "replay_every_windows=5, but the run has at most 3 measured windows",
            "use a smaller value, or more epochs or steps",
        ),
    ],
)
def test_useless_window_repeats_are_refused(
    resolve: Any, case: str, args: tuple[str, ...], what: str, fix: str
) -> None:
    # Every fifth window of steps is to be run again and its results compared bit by bit. With
    # these cases and options, repeats cannot be compared, or never occur. The steps of two cases
    # also change tables or counts, which cannot be restored; tensor-parallel ranks exchange
    # activations, so that a difference could not be traced to one of them.
    with pytest.raises(UsageError) as caught:
        resolve(case, assignments=["replay_every_windows=5", *args], nproc=2)
    assert what in str(caught.value)
    assert fix in str(caught.value)


def test_run_with_just_enough_windows_for_a_repeat_is_planned(resolve: Any) -> None:
    # 41 steps after the warm-up are five windows, the last of a single step: just enough, as each
    # fifth window is repeated. With fewer windows the plan would be refused.
    args = ["max_steps=51", "warmup_steps=10", "window_steps=10", "target_value=none"]

    plan = resolve(assignments=["replay_every_windows=5", *args])

    assert plan.recipe["replay_every_windows"] == 5


def test_windows_that_an_epoch_ends_early_count_for_repeats(resolve: Any) -> None:
    # The toy case has 4,096 samples and a micro-batch of 64, so an epoch of two ranks is 32 steps,
    # at whose end a window ends too. After the warm-up of 10 steps, the first epoch has windows of
    # 10, 10 and 2 steps, and the second of 10, 10, 10 and 2. These are seven, just enough for the
    # seventh to be repeated; with fewer the plan would be refused.
    args = ["max_epochs=2", "warmup_steps=10", "window_steps=10", "replay_every_windows=7"]

    assert resolve(assignments=args, nproc=2).recipe["replay_every_windows"] == 7


def test_windows_that_an_evaluation_ends_early_count_for_repeats(resolve: Any) -> None:
    # An epoch of the toy case is 32 steps of 128 samples on two ranks. An evaluation after every
    # 256 samples ends a window after every second step: the 22 steps after the warm-up are 11
    # windows, although a window may have 10 steps. The limit is above that, because it does not
    # assume where windows begin.
    args = ["max_epochs=1", "warmup_steps=10", "window_steps=10"]

    plan = resolve(
        assignments=[*args, "eval_every_samples=256", "replay_every_windows=11"], nproc=2
    )

    assert plan.recipe["replay_every_windows"] == 11
    # No interval of evaluations makes more windows than measured steps.
    with pytest.raises(UsageError, match="the run has at most 22 measured windows"):
        resolve(assignments=[*args, "eval_every_samples=1", "replay_every_windows=23"], nproc=2)


def make_sized_case() -> cases.Case:
    """Return the toy case with recipes for one and eight ranks; ``tiny`` alone generates data."""
    generated, real = Recipe(data="generated"), Recipe()
    names = ("standard-1x1", "standard-1x8", "throughput-1x1", "long")
    return replace(TOY, recipes={"tiny": generated, **dict.fromkeys(names, real)})


@pytest.mark.parametrize(
    ("name", "world", "real_data", "chosen"),
    [
        (None, "1x8", False, "tiny"),  # no recipe was named
        (None, "1x8", True, "standard-1x8"),
        ("standard", "1x1", True, "standard-1x1"),
        ("throughput", "1x1", True, "throughput-1x1"),
        ("standard-1x8", "1x1", True, "standard-1x8"),  # named in full: as asked, and labelled
        ("long", "1x4", False, "long"),
        ("tiny", "1x1", True, "tiny"),
    ],
)
def test_recipe_is_chosen_by_number_of_ranks(
    name: str | None, world: str, real_data: bool, chosen: str
) -> None:
    # ``name``: what the user named, a recipe or a family of them such as "standard"; ``real_data``:
    # a folder of data was given too. ``tiny`` alone generates its data.
    assert (
        recipes.choose_recipe(make_sized_case(), name, world=world, real_data=real_data) == chosen
    )


def test_real_data_recipe_needs_existing_data(
    resolve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="no such file"):
        resolve(data=tmp_path / "nowhere", recipe="tiny")
    # A case whose recipe standard-1x1 trains on real data, unlike those of the toy case.
    monkeypatch.setattr(cases, "load", lambda _: make_sized_case())
    # No folder was given at all.
    with pytest.raises(UsageError, match="recipe standard-1x1 trains on real data"):
        resolve(recipe="standard")


@pytest.mark.parametrize("split", ["train_samples", "eval_samples"])
def test_data_without_samples_is_refused(
    resolve: Any, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    # What a check of the data finds: five samples of each part, but none of ``split``. ``resolve``
    # plans a run of the toy case, whose check of the data is replaced.
    facts = replace(
        DataFacts(train_samples=5, eval_samples=5, content_id="id", layout="npz"), **{split: 0}
    )
    monkeypatch.setattr(data, "check", lambda folder, recipe: facts)
    with pytest.raises(DataError, match=r"no (training|evaluation) samples"):
        resolve()


def test_more_ranks_than_accelerators_are_refused(resolve: Any) -> None:
    # The fixtures of this file give the machine two accelerators of the vendor "fake".
    assert resolve(device="fake", nproc=2).device.product_names == ["Fake Accelerator 1"] * 2
    with pytest.raises(
        EnvironmentFault, match="3 fake devices are needed, but this machine has 2"
    ) as caught:
        resolve(device="fake", nproc=3)
    assert "--nproc" in (caught.value.fix or "")


@pytest.mark.parametrize(
    # ``can_exchange``: whether ranks on such devices can exchange tensors.
    ("torch_type", "backend", "can_exchange"),
    [
        ("cpu", "gloo", True),
        ("acme", "accl", True),  # a backend of its own
        ("acme", "cpu:gloo,acme:gloo", True),  # gloo, declared for this device
        ("acme", "gloo", False),  # gloo alone is for CPUs
        ("acme", "", False),
    ],
)
def test_two_ranks_without_collectives_are_refused(
    resolve: Any, monkeypatch: pytest.MonkeyPatch, torch_type: str, backend: str, can_exchange: bool
) -> None:
    vendor = FakeVendor(torch_type=torch_type, collective_backend=backend)
    monkeypatch.setattr(devices, "list_vendors", lambda: {"fake": vendor})
    assert resolve(device="fake", nproc=1).nproc == 1
    if can_exchange:
        assert resolve(device="fake", nproc=2).nproc == 2
        return
    with pytest.raises(EnvironmentFault) as refused:
        resolve(device="fake", nproc=2)
    assert refused.value.where == "device fake"
    assert "--nproc 1" in (refused.value.fix or "")


def test_case_receives_the_memory_of_a_rank(resolve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # ``data`` is the toy case's module for its data. It has no check of the memory (``check_fit``),
    # so that this one is added (``raising=False``).
    def refuse(folder: Path, recipe: Recipe, world_size: int, memory: RankMemory) -> None:
        calls.append((world_size, memory))
        if memory.rank_bytes < 40:  # of 64 bytes, one rank gets 64, each of two ranks 32
            raise EnvironmentFault("does not fit")

    calls: list[tuple[int, RankMemory]] = []
    vendors = {"cpu": FakeVendor("cpu", memory_bytes=64)}
    monkeypatch.setattr(devices, "list_vendors", lambda: vendors)
    monkeypatch.setattr(data, "check_fit", refuse, raising=False)
    resolve(nproc=1)
    with pytest.raises(EnvironmentFault, match="does not fit"):
        resolve(nproc=2)
    vendors["cpu"].memory_bytes = None  # unknown: the ranks check it
    resolve(nproc=2)
    # Two ranks share the 64 bytes of the machine.
    assert calls == [
        (1, RankMemory(rank_bytes=64, machine_bytes=64)),
        (2, RankMemory(rank_bytes=32, machine_bytes=64)),
    ]


def test_vendor_and_launcher_without_real_runs_are_named_in_the_plan(
    resolve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``unproven``: what a run uses that real runs have not tested enough, and what tested it.
    # ``RECORDED_OUTPUTS`` is such a text, and ``TESTED`` has those of launchers. A CPU and a launch
    # on this machine are well tested.
    here = resolve()
    assert here.unproven == {}
    assert "unproven" not in here.model_dump_json()  # an empty field is not written
    vendor = FakeVendor("fake", tested=RECORDED_OUTPUTS)
    monkeypatch.setattr(devices, "list_vendors", lambda: {"fake": vendor})
    # The cluster's file names the launcher, ``--launcher`` is not given.
    remote = Cluster(launcher="slurm").find_remote_target(launcher=None)
    submitted = resolve(device="fake", remote=remote)
    assert submitted.unproven == {"fake": RECORDED_OUTPUTS, "slurm": TESTED["slurm"]}
    assert submitted.describe_unproven() == [
        "fake, tested on: recorded outputs of its tool, but no real card yet",
        "slurm, tested on: two nodes on one host, but no real cluster yet",
    ]
    submitted.save(tmp_path)
    assert plan.Plan.read(tmp_path) == submitted


def test_several_machines_need_another_launcher(resolve: Any) -> None:
    # Two nodes are asked for by the key or by the recipe.
    # A key is model:framework:device:nodes:ranks:repeats. The usual launcher starts ranks on this
    # machine only, so at most one node.
    for word, recipe_name in (("toy:pytorch:cpu:2:1:1", None), ("distilbert", "standard-2x8")):
        with pytest.raises(EnvironmentFault, match="2 nodes are needed, but at most 1") as caught:
            resolve(word, recipe=recipe_name)
        assert "--launcher" in (caught.value.fix or "")


def test_nproc_option_means_one_machine() -> None:
    # ``choose_work`` returns the case, the recipe and the numbers of nodes and ranks; ``world`` is
    # nodes x ranks of each. A recipe's name ends with the world for which it was written.
    as_in_recipe = choose_work(RunRequest(case="distilbert", recipe="standard-2x8"))
    assert as_in_recipe.world == "2x8"
    with_nproc = choose_work(RunRequest(case="distilbert", recipe="standard-2x8", nproc=4))
    assert (with_nproc.world, with_nproc.recipe_name) == ("1x4", "standard-2x8")
    # Unless a case key (model:framework:device:nodes:ranks:repeats) names the number of nodes.
    keyed = choose_work(RunRequest(case="distilbert:pytorch:cpu:2:8:1", nproc=4))
    assert keyed.nnodes == 2


def test_labels_name_every_deviation_of_the_run(
    resolve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Five ranks on four cores; a peak that the user gave.
    for label, fields in (("oversubscribed", {"nproc": 5}), ("given-peak", {"peak_tflops": 1.5})):
        assert label not in resolve(nproc=4).labels
        assert label in resolve(**fields).labels
    assert resolve(peak_tflops=1.5).peak_tflops == 1.5
    assert "simulated-device" not in resolve(device="fake").labels
    # A vendor that is used only if it is named simulates a device.
    monkeypatch.setattr(FakeVendor, "named_only", True, raising=False)
    assert "simulated-device" in resolve(device="fake").labels
    # ``TOY`` is the toy case. A recipe for eight ranks is labelled if the run has another number.
    recipe = replace(TOY.recipes["tiny"], world="1x8")
    monkeypatch.setattr(cases, "load", lambda _: replace(TOY, recipes={"tiny": recipe}))
    assert "recipe-written-for-1x8" in resolve().labels
    assert "recipe-written-for-1x8" not in resolve(nproc=8).labels


def test_forced_expert_balance_is_labelled_and_not_to_be_quoted(resolve: Any) -> None:
    bound = resolve("gpt_oss_20b", assignments=["routing=balanced", "target=none"])
    assert "balanced-bound" in bound.labels
    assert "balanced-bound" not in resolve("gpt_oss_20b").labels
    # Only the attributes of a measurement that the grade of trust reads. ``matmul_swing``: how much
    # a rank's speed changed while it was measured before training; 0: it was steady.
    measured: Any = SimpleNamespace(
        labels=["balanced-bound"], ranks=[SimpleNamespace(matmul_swing=0.0)]
    )
    trust = grade_launch(measured, status="passed", figures={}, findings=[])
    assert trust.grade == "do_not_quote"
    assert trust.reasons[0].code == "trust_balanced_bound"


@pytest.mark.parametrize("seconds", [0.01, 3_601.0])
def test_sampling_interval_out_of_bounds_is_refused(resolve: Any, seconds: float) -> None:
    # Seconds between two readings of the devices: more than an hour, or so few that the readings
    # would disturb the run.
    with pytest.raises(UsageError) as caught:
        resolve(sample_every=seconds)
    assert caught.value.where == "--sample-every"


def test_every_repeat_is_a_launch_with_its_own_folder(resolve: Any) -> None:
    # The plan of three launches, from which the plan of the second one is made.
    first = resolve(repeat=3)
    second = resolving.plan_launch(first, 2)
    assert second.run_id == f"{first.run_id}-r2"
    assert second.run_dir == f"{first.run_dir}/r2"
    assert (second.repeat_index, second.recipe, second.data) == (2, first.recipe, first.data)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, ""),
        ({"micro_batch_size": 96, "learning_rate": 0.00015}, "bs=96,lr=0.00015"),
        ({"learning_rate": 24.0}, "lr=24"),
        ({"learning_rate": 1.23456789012e-05}, "lr=0.0000123456789012"),
        ({"learning_rate": 2e16}, "lr=20000000000000000"),
        ({"precision": "bf16", "compile": True}, "precision=bf16,compile=true"),
        ({"seq_length": None}, "seq_length=none"),
    ],
)
def test_changed_hyperparameters_are_written_as_on_the_founding_pages(
    values: dict[str, Any], text: str
) -> None:
    # ``values``: changed fields of a recipe. The pages of results that this program began with
    # print such changes with short names, and numbers without an exponent.
    assert recipes.format_fix_hp(values) == text


def test_a_plan_refuses_unknown_keys(resolve: Any, tmp_path: Path) -> None:
    # No field of a plan is called "surprise".
    document = json.loads(resolve().model_dump_json())
    (tmp_path / plan.PLAN_FILE).write_text(json.dumps(document | {"surprise": 1}))
    with pytest.raises(ValueError, match="surprise"):
        plan.Plan.read(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "nproc"), [("checkpoint_every_steps", "2", 1), ("fsdp", "true", 2)]
)
def test_feature_missing_from_the_installed_torch_is_refused(
    monkeypatch: pytest.MonkeyPatch, field: str, value: str, nproc: int
) -> None:
    # Both fields need torch 2.11. Other tests of this file, and the first call below, take the
    # installed torch for 2.13, as a fixture sets it.
    request = RunRequest(case="gpt_megatron", recipe="tiny", nproc=nproc, overrides={field: value})
    recipe = choose_work(request).recipe
    vendor = FakeVendor("cpu", devices=4)
    # FSDP is only refused with this backend, with which it gets wrong gradients in torch 2.7.1.
    vendor.collective_backend = "gloo"
    refuse_unsuitable_device(vendor, recipe, nproc, ranks_share_cores=False)  # raises nothing
    monkeypatch.setattr("trainmark.torch_version._read_version", lambda _: "2.7.1")
    with pytest.raises(EnvironmentFault, match=r"2\.11 or newer, but 2\.7\.1") as caught:
        refuse_unsuitable_device(vendor, recipe, nproc, ranks_share_cores=False)
    assert caught.value.where == f"recipe field {field}"


@pytest.mark.parametrize(
    ("backend", "is_refused"),
    [
        ("gloo", True),
        ("cpu:gloo,acme:gloo", True),
        ("cpu:gloo,acme:accl", False),
        ("accl", False),
    ],
)
def test_old_torch_has_no_fsdp_on_devices_that_gloo_serves(
    monkeypatch: pytest.MonkeyPatch, backend: str, is_refused: bool
) -> None:
    request = RunRequest(case="gpt_megatron", recipe="tiny", overrides={"fsdp": "true"})
    recipe = choose_work(request).recipe
    vendor = FakeVendor(torch_type="acme", collective_backend=backend)
    # With gloo, FSDP of torch 2.7.1 gets wrong gradients.
    monkeypatch.setattr("trainmark.torch_version._read_version", lambda _: "2.7.1")
    if not is_refused:
        refuse_missing_features(recipe, vendor, ranks=2)  # raises nothing
        return
    with pytest.raises(EnvironmentFault) as caught:
        refuse_missing_features(recipe, vendor, ranks=2)
    assert caught.value.where == "recipe field fsdp"


def test_ranks_that_share_a_model_train_the_same_samples() -> None:
    recipe = {"micro_batch_size": 4, "grad_accum_steps": 2}
    # Samples of a step of all 8 ranks: 8 x 4 of a micro-batch x 2 micro-batches accumulated = 64.
    assert recipes.compute_step_samples(recipe, 8) == 64
    # 8 ranks in groups of 2, each of which trains one model: 4 times 8 samples.
    assert recipes.compute_step_samples({**recipe, "tensor_parallel": 2}, 8) == 32
