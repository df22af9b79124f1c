"""What is known of a model that a row names: its data, parameters and FLOPs.

From ``workloads.toml``; of language models that are not in it from the size in the name or in a
column of the row.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.data.documents import Frozen
from trainmark.judge.audit.qualities import words
from trainmark.plan import reference
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainmark.record.work import Row

# A sample has at least so many tokens if a page does not say how many: a lower bound of FLOPs.
SHORTEST_SEQUENCE = 128
_ALL, _ADAPTERS = 6.0, 4.0  # FLOPs of a token per parameter: all of them trained, adapters alone
_SIZE = re.compile(r"(?i)(?<![a-z0-9.])([0-9]+(?:\.[0-9]+)?)[ _-]?(b|m)(?![a-z0-9])")
# `30b-a3b`: of 30e9 parameters 3e9 compute each token.
_ACTIVE = re.compile(r"(?i)(?<![a-z0-9])a([0-9]+(?:\.[0-9]+)?)b(?![a-z0-9])")
_EXPERTS = re.compile(r"(?i)(?<![a-z0-9])[0-9]+x[0-9]+(?:\.[0-9]+)?b")  # `8x7b`
_COUNT = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BILLION = 1e9
_MIN_COLUMN = 1e6  # parameters; a smaller number in a column is no number of them
_SEQUENCES = (
    "seq_length", "seq", "seq_len", "seqlen", "max_seq_length", "max_seq_len", "sequence_length",
    "max_length", "max_position_embeddings", "mpe",
)  # fmt: skip
_SEQUENCE = re.compile(r"([0-9]{1,7})(k?)", re.IGNORECASE)


class Workload(Frozen):
    """What is known of a model that a page names, each with its source in ``workloads.toml``.

    Args:
        names: as pages print the model, in lower case, with one space for each ``-`` and ``_``.
        case: that is the same workload; the size of its data set is the case's.
        samples_per_pass: training samples of its data set.
        epochs: passes over them that its configuration allows.
        flops_per_sample: model FLOPs to train on one sample of a fixed size.
        parameters: in billions, the size in the model's name first.
        flops_per_parameter: of a token: 6 trains all, 4 trains adapters, 2 trains none of them.
        layers: with ``width``, of a transformer: attention costs 12 x layers x width x sequence
            FLOPs a token.
        matmul_parameters: of a transformer whose samples are sequences, without embeddings.
        sequence_length: tokens of such a sample in the standard configuration.
    """

    names: tuple[str, ...] = ()
    case: str | None = None
    source: str = ""
    samples_per_pass: int | None = None
    epochs: int | None = None
    flops_per_sample: float | None = None
    parameters: tuple[float, ...] = ()
    flops_per_parameter: tuple[float, ...] = (_ALL,)
    layers: int | None = None
    width: int | None = None
    matmul_parameters: float | None = None
    sequence_length: int | None = None

    def flops_of_sample(self, sequence: int | None) -> float | None:
        """Return the FLOPs to train on one sample of so many tokens; None: not known."""
        if self.matmul_parameters is None or self.layers is None or self.width is None:
            return self.flops_per_sample
        if sequence is None:
            return None
        attention = 12 * self.layers * self.width * sequence
        return sequence * (_ALL * self.matmul_parameters + attention)


@cache
def workload_of(case: str | None, model: str) -> Workload:
    """Return what is known of a case, or of the model with a printed name."""
    name = re.sub(r"[\s_-]+", " ", model).strip().lower()
    for known in workloads():
        if name in known.names or (case is not None and known.case == case):
            break
    else:
        return Workload()
    if known.case is None:
        return known
    size = reference.read_references(known.case).samples_per_pass
    return known.model_copy(update={"samples_per_pass": size})


def workload_of_row(row: Row) -> Workload:
    """Return what is known of a row's model, by its name, its size, or the size in its name."""
    known = workload_of(row.case, row.model)
    if known.names:
        return known
    size = parameters_in(row.changes.get("parameters", "")) or parameters_in(row.model)
    is_known = not is_mixture(row.model) or _ACTIVE.search(row.model)
    if size is None or not is_known:
        return Workload()
    factor = _ADAPTERS if trains_adapters(row) else _ALL
    return Workload(parameters=(size / _BILLION,), flops_per_parameter=(factor,))


def unknown_models(rows: Iterable[Row]) -> tuple[int, dict[str, int]]:
    """Return how many rows name no model, and how many name each model that is not known."""
    unnamed, unknown = 0, Counter[str]()
    for row in rows:
        if workload_of_row(row) != Workload():
            continue
        if row.case or row.model:
            unknown[row.case or row.model] += 1
        else:
            unnamed += 1
    return unnamed, dict(unknown)


def parameters_in(text: str) -> float | None:
    """Return the parameters that a name or a cell says: ``qwen3_8b``, ``7 B``, ``6658859008``."""
    if active := _ACTIVE.search(text):
        return float(active[1]) * _BILLION
    if _EXPERTS.search(text):
        return None
    if size := _SIZE.search(text.replace("_", " ")):
        return float(size[1]) * (_BILLION if size[2].lower() == "b" else 1e6)
    if _COUNT.fullmatch(text) and (count := float(text.replace(",", ""))) >= _MIN_COLUMN:
        return count
    return None


def is_mixture(model: str) -> bool:
    """Tell whether a model is a mixture of experts, of which a token needs a part alone."""
    name = " ".join(words(model))
    has_sizes = _EXPERTS.search(model) or _ACTIVE.search(model)
    return bool(has_sizes) or any(word in name for word in _document()["mixtures"])


def trains_adapters(row: Row) -> bool:
    """Tell whether a row, its changes or the headings above it say that adapters are trained."""
    settings = " ".join(f"{name} {value}" for name, value in row.changes.items())
    named = words(f"{row.model} {row.section} {row.configuration} {settings} {row.file}")
    whole = parameters_in(row.changes.get("parameters", ""))
    trained = parameters_in(row.changes.get("trainable_parameters", ""))
    few = whole is not None and trained is not None and trained < whole / 2
    return few or not {*_document()["adapters"]}.isdisjoint(named)


def sequence_of(changes: Mapping[str, str]) -> tuple[bool, int | None]:
    """Return whether changes name a sequence length, and the length; None: it is not one number."""
    lower = {name.lower().replace(" ", "_"): value for name, value in changes.items()}
    for name in _SEQUENCES:
        if name in lower:
            match = _SEQUENCE.fullmatch(lower[name].strip())
            thousands = 1024 if match and match[2] else 1
            return True, int(match[1]) * thousands if match else None
    return False, None


@cache
def workloads() -> list[Workload]:
    """Return what ``workloads.toml`` holds."""
    entries = (*_document()["workload"], *_document()["sizes"])
    return [Workload.model_validate(entry) for entry in entries]


@cache
def _document() -> dict[str, Any]:
    return read_toml(Path(__file__).with_name("workloads.toml"))
