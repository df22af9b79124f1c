"""Plain tables with one planted error each, and honest ones; written before their rules.

Four forms that are common in public: language models (Markdown), image models (CSV), two
precisions beside each other under headings (Markdown), and a sweep of one model. Honest rows follow
one simple machine: a device trains at a share of its dense peak, more devices lose a little.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Device(NamedTuple):
    """A device: its name in tables, memory (GB), and dense peaks (TFLOP/s) by precision."""

    name: str
    memory_gb: float
    peaks: dict[str, float]


class LanguageModel(NamedTuple):
    """A language model: its name, parameters, layers and width."""

    name: str
    parameters: float
    layers: int
    width: int


class ImageModel(NamedTuple):
    """An image model trained on ImageNet: FLOP a sample, epochs, final accuracy in percent."""

    name: str
    flops: float
    epochs: int
    accuracy: float


IMAGENET = 1_281_167  # training images
DEVICES = (
    Device("A100-SXM4-80GB", 80, {"bf16": 312, "tf32": 156, "fp32": 19.5}),
    Device("H100 SXM", 80, {"bf16": 989, "fp32": 67}),
    Device("MI300X", 192, {"bf16": 1307.4, "fp32": 163.4}),
    Device("B200", 180, {"bf16": 2250, "fp32": 80}),
)
LANGUAGE_MODELS = (
    LanguageModel(name="llama2 7b", parameters=6.74e9, layers=32, width=4096),
    LanguageModel(name="llama3 8b", parameters=8.03e9, layers=32, width=4096),
    LanguageModel(name="qwen2.5_7b", parameters=7.0e9, layers=28, width=3584),
    LanguageModel(name="mpt-13b", parameters=13.0e9, layers=40, width=5120),
)
IMAGE_MODELS = (
    ImageModel(name="resnet50", flops=2.45e10, epochs=90, accuracy=76.8),
    ImageModel(name="vit", flops=1.05e11, epochs=300, accuracy=79.9),
)


@dataclass
class LanguageRow:
    """A row of a language model's table before it is printed."""

    model: str
    device: str
    gpus: int
    precision: str
    sequence: int  # tokens
    micro_batch: int
    tokens_gpu: float  # per second, of one device
    tokens: float  # per second, of all devices
    step_ms: float
    mfu: float  # percent
    memory: float  # GiB, the peak

    HEAD = (
        "Model",
        "Hardware",
        "# GPUs",
        "Precision",
        "Seq length",
        "Micro batch size",
        "GradAccum",
        "Throughput (tokens/s/GPU)",
        "Throughput (tokens/s)",
        "Step time (ms)",
        "MFU (%)",
        "Peak memory (GiB)",
    )

    def cells(self) -> tuple[str, ...]:
        """Return the row as it is printed, in the order of the columns that ``HEAD`` names.

        Rates are in tokens per second, of one device (``tokens_gpu``) and of all (``tokens``);
        ``mfu`` is in percent of the device's peak, ``memory`` in GiB.
        """
        return (
            self.model,
            self.device,
            str(self.gpus),
            self.precision,
            str(self.sequence),
            str(self.micro_batch),
            "1",  # gradient accumulation
            f"{self.tokens_gpu:,.0f}",
            f"{self.tokens:,.0f}",
            f"{self.step_ms:,.1f}",
            f"{self.mfu:.2f}",
            f"{self.memory:.1f}",
        )


@dataclass
class ImageRow:
    """A row of an image model's table before it is printed."""

    model: str
    device: str
    nodes: int
    per_node: int  # devices of a node
    precision: str
    batch: int  # of one device
    epochs: int
    rate: float  # images per second, of all devices
    hours: float  # of the whole training
    accuracy: float  # percent

    HEAD = (
        "model",
        "device",
        "nodes",
        "gpus_per_node",
        "precision",
        "batch_size_per_gpu",
        "epochs",
        "images_per_second",
        "time to train (h)",
        "top-1 accuracy (%)",
    )

    def cells(self) -> tuple[str, ...]:
        """Return the row as it is printed, in the order of the columns that ``HEAD`` names.

        ``per_node`` is the devices of a node, ``batch`` the images of a step on one device,
        ``rate`` the images per second of all devices, ``hours`` the time of the whole training.
        """
        return (
            self.model,
            self.device,
            str(self.nodes),
            str(self.per_node),
            self.precision,
            str(self.batch),
            str(self.epochs),
            f"{self.rate:.1f}",
            f"{self.hours:.2f}",
            f"{self.accuracy:.2f}",
        )


@dataclass
class PairRow:
    """A row with two precisions side by side."""

    gpus: int
    batch: int  # of one device
    fp32: float  # sequences per second, of all devices
    mixed: float

    HEAD = (
        "GPUs",
        "Batch size / GPU",
        "Sequence length",
        "Throughput - FP32 (sequences/sec)",
        "Throughput - mixed precision (sequences/sec)",
        "Throughput speedup",
    )

    def cells(self) -> tuple[str, ...]:
        """Return the row as it is printed; rates are in sequences per second of all devices."""
        return (
            str(self.gpus),
            str(self.batch),
            "512",  # the sequence length
            f"{self.fp32:.2f}",
            f"{self.mixed:.2f}",
            f"{self.mixed / self.fp32:.2f}",  # speedup
        )


@dataclass
class SweepRow:
    """A row of a sweep over numbers of devices, with the rate of one device alone."""

    device: str
    gpus: int
    tokens_gpu: float
    auc: float

    HEAD = ("Accelerator", "Devices", "Global batch size", "tokens/s/device", "AUC")

    def cells(self) -> tuple[str, ...]:
        """Return the row as it is printed; ``tokens_gpu``: tokens per second of one device."""
        return (
            self.device,
            str(self.gpus),
            str(self.gpus * 64),  # the global batch: 64 samples on each device
            f"{self.tokens_gpu:.1f}",
            f"{self.auc:.4f}",
        )


Rows = list[LanguageRow] | list[ImageRow] | list[PairRow] | list[SweepRow]


@dataclass
class Section:
    """A heading and the table below it."""

    title: str
    rows: Rows = field(default_factory=list)


class Document(NamedTuple):
    """A file: its ending and its text, and the line of each row by section and place."""

    ending: str
    text: str
    lines: dict[tuple[int, int], int]


def format_markdown(title: str, sections: list[Section]) -> Document:
    """Return the sections as a page in Markdown: a heading and a table for each.

    A ``Document`` has the ending of the file's name, its text, and the line of each row.
    """
    text = [f"# {title}", ""]
    lines = {}  # line of each row, by the section's number and the row's index in the section
    for number, section in enumerate(sections):
        head = section.rows[0].HEAD
        text += [f"## {section.title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for index, row in enumerate(section.rows):
            text.append(f"| {' | '.join(row.cells())} |")
            lines[number, index] = len(text)  # the number of this line, from 1
        text.append("")
    return Document(".md", "\n".join(text), lines)


def format_csv(section: Section) -> Document:
    """Return one section as CSV: the ending of the file's name, its text, the line of each row."""
    table = [section.rows[0].HEAD, *(row.cells() for row in section.rows)]
    # Lines count from 1, and the first one is the head.
    lines = {(0, index): index + 2 for index in range(len(section.rows))}
    return Document(".csv", "\n".join(",".join(row) for row in table) + "\n", lines)


def make_language_rows(rng: random.Random) -> list[LanguageRow]:
    """Return correct rows of one model on one device, on 8, 16 and 32 devices."""
    model, device = rng.choice(LANGUAGE_MODELS), rng.choice(DEVICES)
    sequence, micro_batch = rng.choice((2048, 4096)), rng.choice((2, 4, 8))
    counts_attention = rng.choice((False, True))  # published MFU comes with and without it
    # FLOPs for each parameter: 2 in the forward pass, 4 in the backward pass.
    flops_per_token = 6 * model.parameters
    if counts_attention:
        flops_per_token += 12 * model.layers * model.width * sequence
    share_of_peak = rng.uniform(0.28, 0.52)
    memory = device.memory_gb * rng.uniform(0.4, 0.85)
    rows = []
    for gpus in (8, 16, 32):
        # Tokens per second of one device, whose peak is in TFLOP/s (1e12).
        rate = share_of_peak * device.peaks["bf16"] * 1e12 / flops_per_token
        rows.append(
            LanguageRow(
                model=model.name,
                device=device.name,
                gpus=gpus,
                precision="bf16",
                sequence=sequence,
                micro_batch=micro_batch,
                tokens_gpu=rate,
                tokens=rate * gpus,
                step_ms=1000 * micro_batch * sequence / rate,
                mfu=100 * share_of_peak,
                memory=memory,
            )
        )
        share_of_peak *= rng.uniform(0.93, 0.99)  # more devices lose a little
        memory *= rng.uniform(0.9, 0.99)  # and need a little less memory each
    return rows


def make_image_rows(rng: random.Random) -> list[ImageRow]:
    """Return correct rows of one model on one device, on 1, 8 and 16 devices."""
    model, device = rng.choice(IMAGE_MODELS), rng.choice(DEVICES)
    share_of_peak = rng.uniform(0.1, 0.3)
    rows = []
    for nodes, per_node in ((1, 1), (1, 8), (2, 8)):
        # Samples per second of all devices; a peak is in TFLOP/s (1e12), ``flops`` is of a sample.
        rate = share_of_peak * device.peaks["bf16"] * 1e12 / model.flops * nodes * per_node
        # ``IMAGENET``: number of training images, those of an epoch; 3600 s are an hour.
        training_hours = model.epochs * IMAGENET / rate / 3600
        rows.append(
            ImageRow(
                model=model.name,
                device=device.name,
                nodes=nodes,
                per_node=per_node,
                precision="bf16",
                batch=256,
                epochs=model.epochs,
                rate=rate,
                hours=training_hours * rng.uniform(1.02, 1.07),  # with evaluations
                accuracy=model.accuracy + rng.uniform(-0.2, 0.2),
            )
        )
        share_of_peak *= rng.uniform(0.9, 0.98)  # more devices lose a little
    return rows


def make_precision_pair_rows(rng: random.Random) -> list[PairRow]:
    """Return correct rows of BERT-large on V100 in fp32 and mixed precision."""
    fp32, mixed = rng.uniform(7.5, 10.5), rng.uniform(28, 38)  # sequences/s of one device
    rows = []
    scaling = 1.0  # rate of a device among ``gpus`` devices, divided by its rate alone
    for gpus in (1, 4, 8):
        rows.append(
            PairRow(
                gpus=gpus,
                batch=rng.choice((4, 8)),
                fp32=fp32 * gpus * scaling,
                mixed=mixed * gpus * scaling,
            )
        )
        scaling *= rng.uniform(0.92, 0.98)
    return rows


def make_sweep_rows(rng: random.Random) -> list[SweepRow]:
    """Return correct rows of a model with an AUC on 8 to 64 devices of one kind."""
    device = rng.choice(DEVICES)
    # Ranges of random numbers are what is plausible of real results.
    rate = rng.uniform(2000, 9000)  # tokens/s of one device
    rows = []
    for gpus in (8, 16, 32, 64):
        auc = 0.8025 + rng.uniform(-0.0008, 0.0008)
        rows.append(SweepRow(device=device.name, gpus=gpus, tokens_gpu=rate, auc=auc))
        rate *= rng.uniform(0.93, 0.99)  # more devices lose a little
    return rows


def make_language_page(rng: random.Random) -> Document:
    """Return a correct page of a language model."""
    return format_markdown("Pre-training throughput", [Section("Results", make_language_rows(rng))])


def make_pair_sections(rng: random.Random) -> list[Section]:
    """Return the two tables of a page with two precisions."""
    machine = "NVIDIA DGX-1 (8x V100 32GB)"
    return [
        Section(f"Pre-training on {machine}", make_precision_pair_rows(rng)),
        Section(f"Fine-tuning on {machine}", make_precision_pair_rows(rng)),
    ]


def iterate_correct_documents() -> Iterator[Document]:
    """Yield files that together have 88 correct rows.

    A page of a language model has 3, as has a file of an image model. A page with two precisions
    has two tables of 3, and one of a recommender has 4.
    """
    rng = random.Random(20270101)  # any seed: the same files each time
    for _ in range(8):
        yield make_language_page(rng)
    for _ in range(8):
        yield format_csv(Section("", make_image_rows(rng)))
    for _ in range(4):
        yield format_markdown("bert large uncased", make_pair_sections(rng))
    for _ in range(4):
        yield format_markdown("Recommender", [Section("Scaling", make_sweep_rows(rng))])


class Plant(NamedTuple):
    """A file with one error, its kind, and the lines of which a finding must name one."""

    kind: str
    document: Document
    lines: tuple[int, ...]


class TableMistake(NamedTuple):
    """A kind of mistake.

    Args:
        times: in how many files it is planted, one row each.
        change: returns the wrong row for a correct one.
        row: index of the row that becomes wrong; None: a random one.
    """

    times: int
    change: Callable[[Any], Any]
    row: int | None = None


# By kind of mistake.
LANGUAGE: dict[str, TableMistake] = {
    "step time in seconds under ms": TableMistake(
        times=2,
        change=lambda row: replace(row, step_ms=row.step_ms / 1000),
    ),
    "memory in MiB under GiB": TableMistake(
        times=2, change=lambda row: replace(row, memory=row.memory * 1024)
    ),
    "rate of a device and of all swapped": TableMistake(
        times=2,
        change=lambda row: replace(row, tokens=row.tokens_gpu, tokens_gpu=row.tokens),
    ),
    "MFU and memory swapped": TableMistake(
        times=1,
        change=lambda row: replace(row, memory=row.mfu * 4, mfu=row.memory * 4),
    ),
    "tokens counted twice": TableMistake(
        times=2,
        change=lambda row: replace(row, tokens=2 * row.tokens, tokens_gpu=2 * row.tokens_gpu),
    ),
    "MFU by half of the peak": TableMistake(
        times=2, change=lambda row: replace(row, mfu=row.mfu * 2)
    ),
    "MFU by the peak of another device": TableMistake(
        times=2,
        change=lambda row: replace(row, mfu=row.mfu * 989 / 756),
    ),
    "MFU 11% high": TableMistake(
        times=2, change=lambda row: replace(row, mfu=row.mfu * 2500 / 2250)
    ),
    "fraction under percent": TableMistake(
        times=1, change=lambda row: replace(row, mfu=row.mfu / 100)
    ),
    "sequences in the column of tokens": TableMistake(
        times=2,
        change=lambda row: replace(row, tokens=row.tokens / row.sequence),
    ),
    "digit of the total": TableMistake(
        times=2, change=lambda row: replace(row, tokens=row.tokens * 0.31)
    ),
    "above the peak": TableMistake(
        times=2,
        row=0,
        change=lambda row: replace(
            row,
            tokens=row.tokens * 150 / row.mfu,
            tokens_gpu=row.tokens_gpu * 150 / row.mfu,
            step_ms=row.step_ms * row.mfu / 150,
            mfu=95.0,
        ),
    ),
    "more memory than the card": TableMistake(
        times=2, change=lambda row: replace(row, memory=row.memory * 3)
    ),
    "no throughput": TableMistake(times=1, change=lambda row: replace(row, tokens_gpu=0.0)),
    "precision that the card lacks": TableMistake(
        times=2,
        change=lambda row: replace(row, device="V100-SXM2-32GB", memory=20.0),
    ),
}
IMAGES: dict[str, TableMistake] = {
    "hours hold seconds": TableMistake(
        times=3, change=lambda row: replace(row, hours=row.hours * 3600)
    ),
    "hours hold minutes": TableMistake(
        times=2, change=lambda row: replace(row, hours=row.hours * 60)
    ),
    "counted once a device": TableMistake(
        times=2, row=1, change=lambda row: replace(row, rate=row.rate * 8)
    ),
    "rate of a device in the column of all": TableMistake(
        times=2, row=2, change=lambda row: replace(row, rate=row.rate / 16)
    ),
    "fraction among percent": TableMistake(
        times=3, change=lambda row: replace(row, accuracy=row.accuracy / 100)
    ),
    "accuracy above its range": TableMistake(
        times=1, change=lambda row: replace(row, accuracy=row.accuracy + 40)
    ),
    "decimal of the accuracy": TableMistake(
        times=2, change=lambda row: replace(row, accuracy=row.accuracy / 10)
    ),
    "eight slower than one": TableMistake(
        times=2,
        row=1,
        change=lambda row: replace(row, rate=row.rate / 11, hours=row.hours * 11),
    ),
    "time halved": TableMistake(times=2, change=lambda row: replace(row, hours=row.hours / 2.3)),
    "negative time": TableMistake(times=1, change=lambda row: replace(row, hours=-row.hours)),
    "epochs of another row": TableMistake(
        times=1, change=lambda row: replace(row, hours=row.hours * 3)
    ),
}
PAIRS: dict[str, TableMistake] = {
    "two precisions swapped": TableMistake(
        times=2, change=lambda row: replace(row, fp32=row.mixed, mixed=row.fp32)
    ),
    "one device of another unit": TableMistake(
        times=1, row=2, change=lambda row: replace(row, mixed=row.mixed * 60)
    ),
    "scaling impossible": TableMistake(
        times=2, row=2, change=lambda row: replace(row, fp32=row.fp32 * 2, mixed=row.mixed * 2)
    ),
}
SWEEPS: dict[str, TableMistake] = {
    "all devices in the column of one": TableMistake(
        times=2,
        row=3,
        change=lambda row: replace(row, tokens_gpu=row.tokens_gpu * row.gpus),
    ),
    "quality above its range": TableMistake(
        times=1, change=lambda row: replace(row, auc=row.auc * 1.5)
    ),
    "percent among fractions": TableMistake(
        times=2, change=lambda row: replace(row, auc=row.auc * 100)
    ),
    "decimal of the quality": TableMistake(
        times=1, change=lambda row: replace(row, auc=row.auc / 10)
    ),
    "more devices slower in all": TableMistake(
        times=1, row=1, change=lambda row: replace(row, tokens_gpu=row.tokens_gpu * 0.3)
    ),
}


def iterate_planted_documents() -> Iterator[Plant]:
    """Yield files with one error each: of one row, then of kinds that span several rows.

    ``LANGUAGE``, ``IMAGES``, ``PAIRS`` and ``SWEEPS`` have the mistakes of a form of table by name:
    in how many files each is planted (``times``), in which row, and how the row changes.
    """
    rng = random.Random(4711)  # any seed: the same files each time
    for mistakes, make_rows in (
        (LANGUAGE, make_language_rows),
        (IMAGES, make_image_rows),
        (PAIRS, make_precision_pair_rows),
        (SWEEPS, make_sweep_rows),
    ):
        for kind, mistake in mistakes.items():
            for _ in range(mistake.times):
                rows = make_rows(rng)  # type: ignore[operator]
                # Any row, or the only one in which such a mistake can be seen.
                index = rng.randrange(len(rows)) if mistake.row is None else mistake.row
                rows[index] = mistake.change(rows[index])
                yield _plant(kind, rows, index)
    for _ in range(3):
        sections = make_pair_sections(rng)
        sections[1].rows[1] = sections[0].rows[1]
        document = format_markdown("bert large uncased", sections)
        yield Plant(
            "row copied under another heading",
            document,
            (document.lines[0, 1], document.lines[1, 1]),  # a finding may name either row
        )
    for factor in (1.25, 0.8):
        rows = make_image_rows(rng)
        # Invented rows of another card: those of the first one, times a constant.
        copies = [
            replace(row, device="K200", rate=row.rate * factor, hours=row.hours / factor)
            for row in rows
        ]
        document = format_csv(Section("", rows + copies))
        lines = tuple(document.lines[0, len(rows) + index] for index in range(len(copies)))
        yield Plant("rows of one card times a constant", document, lines)


def _plant(kind: str, rows: Rows, index: int) -> Plant:
    """Return the file of rows of which the one at ``index`` is wrong."""
    if isinstance(rows[0], ImageRow):
        document = format_csv(Section("", rows))
    elif isinstance(rows[0], PairRow):
        title = "Pre-training on NVIDIA DGX-1 (8x V100 32GB)"
        document = format_markdown("bert large uncased", [Section(title, rows)])
    else:
        document = format_markdown("Results", [Section("Training", rows)])
    # ``lines`` has the line of each row, by the numbers of the section and of the row in it.
    return Plant(kind, document, (document.lines[0, index],))
