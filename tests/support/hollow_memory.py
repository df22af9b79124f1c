"""Memory of the published recipes on the hollow card, compared with the prediction.

Builds each case's job with the shapes of a recipe, takes three steps, and reads torch's allocator.
Each recipe runs in a process of its own, with a group of as many ranks as the recipe is for, of
which only rank 0 exists. ``python -m support.hollow_memory ROWS`` measures all recipes with one
release of torch, and ``python -m support.hollow_memory ROWS ROWS PAGE`` writes the page of several.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support import hollow_attention
from trainmark import cases, devices
from trainmark.protocols import Batch, Counts, JobContext
from trainmark.train.read_ahead import map_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.protocols import Device

GIB = 2**30
STEPS = 3
GLM_CHOICES = 10  # candidates of a sample; ReCoRD has 2 to 30
# Rows of the tables of Criteo's click logs with the categories that occur at least 15 times, as in
# NVIDIA's DLRM example (DeepLearningExamples, PyTorch/Recommendation/DLRM); 2026-11-28.
CRITEO_ROWS = (
    7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209,
    10667, 104, 4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35,
)  # fmt: skip


class Memory(NamedTuple):
    """Peaks of a recipe in bytes; None if the card's memory is too small."""

    case: str
    recipe: str
    precision: str
    ranks: int
    predicted: int  # of ``reserved``, by the program before the run
    allocated: int | None  # by tensors
    reserved: int | None  # by torch's allocator, with what it keeps

    @property
    def deviation(self) -> float | None:
        """Return how far the prediction is from the reserved memory, as a fraction of it."""
        return None if self.reserved is None else self.predicted / self.reserved - 1


class SkipRandomValues(TorchDispatchMode):
    """Skip drawing random values in place, which takes minutes and changes no size."""

    SKIPPED = frozenset({torch.ops.aten.normal_, torch.ops.aten.uniform_})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # ``SKIPPED``: the operations ``normal_`` and ``uniform_``.
        if func.overloadpacket in self.SKIPPED:
            return args[0]  # the tensor as it is
        return func(*args, **(kwargs or {}))


class Rows:
    """Stands for a split of which only the length and these facts are read."""

    truncated = 0
    shortened = None
    num_documents = 1
    num_rows = 1_000_000
    num_choices = torch.ones(1)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __len__(self) -> int:
        return self.num_rows


# ---- each case: its data's stand-in, a micro-batch, and the predicted reserved bytes ----
# Values are without effect: the card computes nothing. Shapes and types are those of the case.


def build_distilbert(recipe: Any, ranks: int) -> tuple[Any, Batch, int]:
    """Return DistilBERT's stand-in for data, a micro-batch, and the predicted reserved bytes."""
    from transformers import DistilBertConfig

    from trainmark.cases.distilbert_sst2 import data
    from trainmark.cases.distilbert_sst2.data.model_files import read_config

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(DistilBertConfig().to_dict()))
        config = read_config(Path(folder))
    # Values do not matter, as the device computes nothing; shapes and types are those of the case.
    # ``Rows`` stands for a split of the data, of which only the length and a few facts are read.
    size, length = recipe.micro_batch_size, recipe.seq_length
    tensors = (
        torch.ones(size, length, dtype=torch.long),  # ids
        torch.ones(size, length, dtype=torch.bool),  # mask of attention
        torch.zeros(size, dtype=torch.long),  # labels
    )
    loaded = SimpleNamespace(config=config, train=Rows(), validation=Rows())
    batch = Batch(tensors, make_token_counts(size, length), step_samples=size, closes_step=True)
    return loaded, batch, data.predict(config, recipe, ranks).reserved


def build_glm(recipe: Any, ranks: int) -> tuple[Any, Batch, int]:
    """Return GLM's stand-in for data, a micro-batch, and the predicted reserved bytes.

    Each sample has ``GLM_CHOICES``, 10, candidate answers, each a sequence of its own with a single
    token to predict. Values do not matter, as the device computes nothing; shapes and types are
    those of the case. ``Rows`` stands for a split of the data, of which only the length and a few
    facts are read.
    """
    from trainmark.cases.glm_superglue import data
    from trainmark.cases.glm_superglue.job import ScoreLayout, SequenceTensors

    samples, length = recipe.micro_batch_size, recipe.seq_length
    sequences = samples * GLM_CHOICES
    numbers = torch.arange(sequences)
    ids = torch.zeros(sequences, length, dtype=torch.long)
    middle = torch.full((sequences,), length // 2)
    # Ids (any), positions and block positions, each with memory of its own, as in the case; for
    # each sequence one prefix length, target row and target id (any).
    inputs = (ids + 5, ids, ids.clone(), middle, numbers * length, middle)
    batch = Batch(
        (
            SequenceTensors(inputs, numbers),
            ScoreLayout(numbers // GLM_CHOICES, numbers % GLM_CHOICES, samples, GLM_CHOICES),
        ),
        Counts(
            samples=samples,
            sequences=sequences,
            tokens=sequences * length,
            tokens_padded=sequences * length,
        ),
        step_samples=samples,
        closes_step=True,
    )
    loaded = SimpleNamespace(train=Rows(), validation=Rows())
    prediction = data.predict(recipe, ranks, choices=float(GLM_CHOICES), tokens=None)
    return loaded, batch, prediction.reserved


def build_llama2(recipe: Any, ranks: int) -> tuple[Any, Batch, int]:
    """Return Llama 2's stand-in for data, a micro-batch, and the predicted reserved bytes."""
    from trainmark.cases.llama2_7b_lora.estimates import predict_peak_bytes
    from trainmark.cases.llama2_7b_lora.model_files import PRESETS

    # Values do not matter, as the device computes nothing; shapes and types are those of the case.
    # ``Rows`` stands for a split of the data, of which only the length and a few facts are read.
    size, length = recipe.micro_batch_size, recipe.seq_length
    ids = torch.ones(size, length, dtype=torch.long)
    config = PRESETS[recipe.model_size]
    loaded = SimpleNamespace(config=config, train=Rows(), mmlu=None)
    batch = Batch(
        (ids, ids.clone(), 1e-3),  # ids, targets, and the factor of the summed loss
        make_token_counts(size, length),
        step_samples=size,
        closes_step=True,
    )
    return loaded, batch, predict_peak_bytes(config, recipe, ranks).reserved


def build_dlrm(recipe: Any, ranks: int) -> tuple[Any, Batch, int]:
    """Return DLRM's stand-in for data, a micro-batch, and the predicted reserved bytes."""
    from trainmark.cases.dlrm_criteo import embeddings, hybrid, job
    from trainmark.cases.dlrm_criteo.placement import place_tables, predict
    from trainmark.spec import RankMemory

    def leave_unfilled(out: Any, **_: Any) -> None:
        """Leave a table as it is: drawing its rows takes minutes."""

    # Replaced for good: this process measures one recipe alone.
    embeddings.fill_rows = hybrid.fill_rows = leave_unfilled
    job.SplitReader = Rows  # reads no files
    # ``CRITEO_ROWS`` has the rows of each table of the published data.
    memory = RankMemory(torch.cuda.get_device_properties(0).total_memory)
    placement = place_tables(memory, CRITEO_ROWS, recipe.embedding_dim, ranks)
    size, num_numerical = recipe.micro_batch_size, 13  # as Criteo's data has
    tensors = (
        torch.zeros(size, num_numerical, dtype=torch.float16),  # numbers of this rank's samples
        torch.zeros(size),  # labels
        # Categories of all ranks' samples, for the tables that this rank has.
        torch.zeros(len(placement.list_tables(0)), size * ranks, dtype=torch.int32),
    )
    loaded = SimpleNamespace(
        spec=SimpleNamespace(num_numerical=num_numerical, cardinalities=CRITEO_ROWS)
    )
    batch = Batch(
        tensors, Counts(samples=size, sequences=size), step_samples=size * ranks, closes_step=True
    )
    return loaded, batch, predict(recipe, placement, num_numerical).reserved


def build_gpt(recipe: Any, ranks: int) -> tuple[Any, Batch, int]:
    """Return GPT's stand-in for data, a micro-batch, and the predicted reserved bytes.

    Reserved are the bytes that torch's allocator takes from the device.
    """
    from trainmark.cases.gpt_megatron import data

    return (*make_next_token_data(recipe), data.predict(recipe, ranks).reserved)


def build_llama31(recipe: Any, ranks: int) -> tuple[Any, Batch, int]:
    """Return Llama 3.1's stand-in for data, a micro-batch, and the predicted reserved bytes."""
    from trainmark.cases.llama31_8b import data

    return (*make_next_token_data(recipe), data.predict(recipe, ranks).reserved)


def build_gpt_oss(recipe: Any, ranks: int) -> tuple[Any, Batch, int]:
    """Return GPT-OSS's stand-in for data, a micro-batch, and the predicted reserved bytes."""
    from trainmark.cases.gpt_oss_20b import data
    from trainmark.train import experts

    rows = recipe.micro_batch_size * recipe.seq_length * recipe.top_k  # of tokens for experts
    rows_by_rank = [rows // recipe.expert_parallel] * recipe.expert_parallel

    def make_equal_loads(*_: Any) -> tuple[list[int], list[int]]:
        """Return equal numbers of rows sent to and received from each rank.

        The real ones follow from the router's choice, which the hollow card does not compute.
        """
        return rows_by_rank, rows_by_rank

    # Replaced for good: this process measures one recipe alone.
    experts.count_rows_of_ranks = make_equal_loads
    return (*make_next_token_data(recipe), data.predict(recipe, ranks).reserved)


def make_next_token_data(recipe: Any) -> tuple[Any, Batch]:
    """Return the stand-in for the data of a language model, and a micro-batch."""
    size, length = recipe.micro_batch_size, recipe.seq_length
    # Values do not matter, as the device computes nothing. ``Rows`` stands for a split of the data,
    # of which only the length and a few facts are read.
    ids = torch.ones(size, length + 1, dtype=torch.long)  # the last one is only a target
    loaded = SimpleNamespace(train=Rows(), validation=Rows())
    return loaded, Batch(ids, make_token_counts(size, length), step_samples=size, closes_step=True)


def make_token_counts(size: int, length: int) -> Counts:
    """Return the counts of ``size`` samples, each a sequence of ``length`` tokens."""
    tokens = size * length
    return Counts(samples=size, sequences=size, tokens=tokens, tokens_padded=tokens)


# Builder, and fields of the recipe with which no file is read.
CASES = {
    "distilbert_sst2": (build_distilbert, {"init": "random"}),
    "glm_superglue": (build_glm, {"init": "random"}),
    "llama2_7b_lora": (
        build_llama2,
        {"init": "random", "data": "generated", "mmlu_mode": "off", "target_value": None},
    ),
    "dlrm_criteo": (build_dlrm, {}),
    "gpt_megatron": (build_gpt, {}),
    "llama31_8b": (build_llama31, {}),
    "gpt_oss_20b": (build_gpt_oss, {}),
}


# ---- a measurement ----


def iterate_published_recipes() -> Iterator[tuple[str, str]]:
    """Return case and name of every recipe but the tiny ones, which are for tests."""
    for case in CASES:
        for recipe in cases.load(case).recipes:
            if recipe != "tiny":
                yield case, recipe


def read_num_ranks(recipe_name: str) -> int:
    """Return for how many ranks a recipe is: ``standard-2x8`` for 16, ``mp-...`` for 8."""
    if recipe_name.startswith("mp-"):
        return 8
    for part in recipe_name.split("-"):
        nodes, x, devices_per_node = part.partition("x")
        if x and nodes.isdigit() and devices_per_node.isdigit():
            return int(nodes) * int(devices_per_node)
    return 1


def measure(case: str, recipe_name: str) -> Memory:
    """Measure a recipe in a process of its own, whose parent has imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers", "trainmark.cases"])
    with context.Pool(1) as pool:
        return pool.apply(_measure_here, (case, recipe_name))


def _measure_here(case: str, recipe_name: str) -> Memory:
    """Take some steps of a recipe in this process; return the peaks of torch's allocator.

    The device is the hollow card: its driver allocates memory, but computes nothing. In three steps
    (``STEPS``) all memory that training needs is taken.
    """
    ranks = read_num_ranks(recipe_name)
    device = devices.choose_vendor("nvidia").open(local_rank=0, ranks_here=1)
    # The recipe's ``fields`` are changed so that the job reads no file.
    build_inputs, fields = CASES[case]
    recipe = replace(cases.load(case).recipes[recipe_name], **fields)
    if recipe.kernels is None:  # planning, which is skipped here, would choose them
        recipe = replace(recipe, kernels="library")
    if ranks > 1:
        join_alone(ranks, sharded=getattr(recipe, "fsdp", False))
    # A stand-in for the case's data, one micro-batch, and the bytes predicted for ``reserved``.
    loaded, batch, predicted = build_inputs(recipe, ranks)
    row_without_peaks = Memory(
        case=case,
        recipe=recipe_name,
        precision=recipe.precision,
        ranks=ranks,
        predicted=predicted,
        allocated=None,
        reserved=None,
    )
    device.set_precision(recipe.precision)
    context = JobContext(recipe=recipe, data_dir=Path(), rank=0, world_size=ranks, device=device)
    try:
        with SkipRandomValues():
            job = cases.import_part(case, "job").build(context, loaded)
        for _ in range(STEPS):
            job.step(micro_batches(batch, recipe.grad_accum_steps, device))
    except torch.OutOfMemoryError:
        return row_without_peaks
    return row_without_peaks._replace(
        allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved()
    )


def micro_batches(batch: Batch, accumulated: int, device: Device) -> Iterator[Batch]:
    """Yield the micro-batches of a step: one, or two if the recipe accumulates gradients.

    More than two would take the same memory. ``accumulated``: how many the recipe has.
    """
    count = min(accumulated, 2)
    for number in range(count):
        is_last = number == count - 1
        step_samples = batch.step_samples * count  # of all micro-batches of the step
        micro_batch = replace(batch, step_samples=step_samples, closes_step=is_last)
        yield map_tensors(micro_batch, device.place)


def join_alone(ranks: int, *, sharded: bool) -> None:
    """Make a group of ``ranks`` in which this process is rank 0 and no other rank exists.

    Sharded models use torch's own fake group. Replicated models use DDP, which needs the futures of
    a group of NCCL; on the hollow card, which computes nothing, NCCL waits for no other rank.
    """
    from torch import distributed as dist
    from torch.nn.parallel import distributed as replicas
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def accept(*_: Any, **__: Any) -> None:
        """Compare nothing: the other ranks' parameters never come."""

    if sharded:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        return
    replicas._verify_param_shape_across_processes = accept
    replicas._sync_module_states = accept
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=ranks)


# ---- the table ----


class Table(NamedTuple):
    """The memory of every recipe with one release of torch."""

    torch: str
    rows: list[Memory]


def format_table(tables: list[Table]) -> str:
    """Return one Markdown table of all releases; the prediction is the same for all.

    Args:
        tables: for each release of torch its version and a row for each recipe, with the peaks of
            allocated and reserved memory. All have the same recipes in the same order.
    """
    head = ["case", "recipe", "precision", "ranks", "predicted"]
    for table in tables:
        head += [f"allocated, {table.torch}", f"reserved, {table.torch}", "deviation"]
    lines = [f"| {' | '.join(head)} |", f"|---|---|---|{'---:|' * (len(head) - 3)}"]
    for rows in zip(*(table.rows for table in tables), strict=True):
        first = rows[0]
        cells = [
            first.case,
            first.recipe,
            first.precision,
            str(first.ranks),
            format_gib(first.predicted),
        ]
        for row in rows:
            cells += format_peaks(row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_peaks(row: Memory) -> tuple[str, str, str]:
    """Return the cells of a recipe with one release of torch: allocated, reserved, deviation.

    The peaks are None if the card's memory was too small. The deviation is that of the prediction
    from the reserved memory, as a fraction of it.
    """
    if row.allocated is None or row.reserved is None:
        return "out of memory", "", ""
    return format_gib(row.allocated), format_gib(row.reserved), f"{row.deviation:+.1%}"


def format_gib(size: int) -> str:
    return f"{size / GIB:.2f}"


PAGE = """# The hollow card: memory and attention

Written by `support.hollow_memory` with torch {torch}; see `tests/hollow/README.md`.
The hollow card computes nothing: this page holds no number that a card computed, and no speed. No
real card has confirmed it.

## Memory

The peak of torch's caching allocator on one rank, in GiB, over three steps with the shapes of each
recipe, and what the program predicts before a run. Allocated: tensors. Reserved: with what the
allocator keeps. Deviation: of the prediction from the reserved memory. A context, cuDNN's plans and
NCCL's buffers come on top. GLM: {choices} candidates a sample, sequences of full length. With
several ranks, the other ranks do not exist, and rank 0 is measured.

{memory}

## Attention

The kernel of torch's attention that a training step runs on compute capability 9.0, as the record
names it, with the shapes of the tiny recipes, with torch 2.11.0 and 2.15.0. Not run: the host reads
numbers of rows that the card does not compute.

{attention}
"""


def write_rows(file: Path) -> None:
    """Measure every recipe with the installed torch and write the rows as JSON.

    A row is a ``Memory``, a tuple with the memory that a recipe needs.
    """
    rows = [measure(case, recipe) for case, recipe in iterate_published_recipes()]
    document = {"torch": torch.__version__.partition("+")[0], "rows": rows}
    file.write_text(json.dumps(document))


def read_rows(file: Path) -> Table:
    """Read what ``write_rows`` wrote."""
    document = json.loads(file.read_text())
    return Table(document["torch"], [Memory(*row) for row in document["rows"]])


def write_page(tables: list[Table], file: Path) -> None:
    """Write the page of ``benchmarks/results``.

    ``PAGE`` is its text with four places to fill; ``GLM_CHOICES`` is a number that it states.

    Args:
        tables: the measured rows, for each release of torch.
    """
    file.write_text(
        PAGE.format(
            torch=" and ".join(table.torch for table in tables),
            choices=GLM_CHOICES,
            memory=format_table(tables),
            attention=hollow_attention.format_table(),
        )
    )


if __name__ == "__main__":
    *row_files, result = map(Path, sys.argv[1:])  # without row files, the result is one
    if row_files:
        write_page([read_rows(file) for file in row_files], result)
    else:
        write_rows(result)
