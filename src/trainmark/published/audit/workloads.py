"""Find what is known of a model that a printed row names: its data, parameters and FLOPs.

``workloads.toml`` lists models. For other language models, the number of parameters is read from
the name or from a column of the row.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.documents import Frozen
from trainmark.plan import reference
from trainmark.published.audit.qualities import split_words
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainmark.record.work import Row

# Tokens of a sample if a page does not say how many. They are few, so that the FLOPs that follow
# are a lower bound.
MIN_SEQUENCE = 128
# FLOPs of a token per parameter.
FLOPS_ALL_TRAINED = 6.0
FLOPS_ADAPTERS_TRAINED = 4.0
_SIZE_WITH_UNIT = re.compile(r"(?i)(?<![a-z0-9.])([0-9]+(?:\.[0-9]+)?)[ _-]?(b|m)(?![a-z0-9])")
# `30b-a3b`: of 30e9 parameters 3e9 compute each token.
_ACTIVE_PARAMETERS = re.compile(r"(?i)(?<![a-z0-9])a([0-9]+(?:\.[0-9]+)?)b(?![a-z0-9])")
_EXPERTS_TIMES_SIZE = re.compile(r"(?i)(?<![a-z0-9])[0-9]+x[0-9]+(?:\.[0-9]+)?b")  # `8x7b`
_COUNT = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MILLION = 1e6
_BILLION = 1e9
_MIN_PRINTED_COUNT = 1e6  # a smaller number in a cell is not a number of parameters
_SEQUENCE_SETTINGS = (
    "seq_length",
    "seq",
    "seq_len",
    "seqlen",
    "max_seq_length",
    "max_seq_len",
    "sequence_length",
    "max_length",
    "max_position_embeddings",
    "mpe",
)
_SEQUENCE_LENGTH = re.compile(r"([0-9]{1,3}(?:,[0-9]{3}){1,2}|[0-9]{1,7})(k?)", re.IGNORECASE)


class Workload(Frozen):
    """What is known of a model that a page names; a field is empty or None if it is not known.

    Args:
        names: the model as pages print it, in lower case, with one space for each ``-`` and ``_``.
        case: the case that is the same workload; its data set gives ``samples_per_pass``.
        source: where the facts come from.
        samples_per_pass: number of training samples in the data set.
        epochs: passes over the data set that the configuration allows.
        flops_per_sample: model FLOPs to train on one sample, if samples have a fixed size.
        parameter_billions: possible numbers of parameters in billions; that in the model's name
            first; of a mixture of experts only the parameters that a token uses.
        expert_billions: of a mixture of experts, billions of parameters in the experts that a token
            uses. ``parameter_billions`` includes them.
        flops_per_parameter: possible FLOPs of a token per parameter: 6 if all parameters are
            trained, 4 if adapters are, 2 if none are.
        layers: of a transformer: attention costs 12 x layers x width x sequence FLOPs a token.
        width: of a transformer, the hidden size.
        matmul_parameters: of a transformer whose samples are sequences, without embeddings.
        sequence_length: tokens of such a sample in the standard configuration.
    """

    names: tuple[str, ...] = ()
    case: str | None = None
    source: str = ""
    samples_per_pass: int | None = None
    epochs: int | None = None
    flops_per_sample: float | None = None
    parameter_billions: tuple[float, ...] = ()
    expert_billions: float | None = None
    flops_per_parameter: tuple[float, ...] = (FLOPS_ALL_TRAINED,)
    layers: int | None = None
    width: int | None = None
    matmul_parameters: float | None = None
    sequence_length: int | None = None

    def compute_sample_flops(self, sequence_length: int | None) -> float | None:
        """Return the FLOPs to train on one sample; None: not known.

        A transformer is described by its layers, its width (the hidden size) and its number of
        parameters without embeddings. Other models have a listed number of FLOPs, or none.

        Args:
            sequence_length: tokens of the sample; None: not known.
        """
        if self.matmul_parameters is None or self.layers is None or self.width is None:
            return self.flops_per_sample  # of a sample of fixed size, such as an image
        if sequence_length is None:
            return None
        # FLOPs of a token for the products of queries, keys and values, forward and backward (PaLM,
        # appendix B, https://arxiv.org/abs/2204.02311).
        attention = 12 * self.layers * self.width * sequence_length
        # A token also needs 6 FLOPs for each parameter.
        return sequence_length * (FLOPS_ALL_TRAINED * self.matmul_parameters + attention)


@cache
def find_workload(case: str | None, model: str) -> Workload:
    """Return what ``workloads.toml`` lists of a case or a model; an empty workload if nothing.

    Args:
        case: name of the case; None: the row is of no case of this program.
        model: name of the model as a page prints it.
    """
    # `workload.names` are the names that pages print, in this form: `llama2 7b` for `Llama2-7B`.
    name = re.sub(r"[\s_-]+", " ", model).strip().lower()
    for workload in list_workloads():
        if name in workload.names or (case is not None and workload.case == case):
            return _add_case_data(workload)
    return Workload()


def _add_case_data(workload: Workload) -> Workload:
    """Return the workload of a model with the number of training samples in its data set.

    If a case of this program is the same workload, the case has a file ``reference.toml`` with its
    published results, which also states this number. The workload of other models is unchanged.
    """
    if workload.case is None:
        return workload
    samples_per_pass = reference.read_references(workload.case).samples_per_pass
    return workload.model_copy(update={"samples_per_pass": samples_per_pass})


def find_row_workload(row: Row) -> Workload:
    """Return what is known of a row's model; an empty workload if nothing is.

    If ``workloads.toml`` does not list the model, only its number of parameters is known: from a
    column of the row, or from the name: ``qwen3_8b``. The FLOPs of a token per parameter follow
    from what the row trains: all parameters, or adapters only.
    """
    listed_workload = find_workload(row.case, row.model)
    if listed_workload.names:  # not empty: the file lists the model
        return listed_workload
    # `changes` are the settings that the row prints, by name.
    num_parameters = read_parameter_count(row.changes.get("parameters", ""))
    if not num_parameters:
        num_parameters = read_parameter_count(row.model)
    # FLOPs follow from the parameters that a token uses. In a mixture of experts a token uses only
    # some, and their number is known only if the name has it: `30b-a3b`.
    is_used_number_unknown = is_mixture(row.model) and not _ACTIVE_PARAMETERS.search(row.model)
    if num_parameters is None or is_used_number_unknown:
        return Workload()
    factor = FLOPS_ADAPTERS_TRAINED if trains_adapters(row) else FLOPS_ALL_TRAINED
    return Workload(parameter_billions=(num_parameters / _BILLION,), flops_per_parameter=(factor,))


class UnknownModels(NamedTuple):
    """Rows of whose model nothing is known.

    Args:
        num_unnamed: rows that name no model.
        counts: number of rows that name each model.
    """

    num_unnamed: int
    counts: dict[str, int]


def count_unknown_models(rows: Iterable[Row]) -> UnknownModels:
    """Count the rows of whose model nothing is known: those per name, and those without a name."""
    num_unnamed = 0
    counts: Counter[str] = Counter()
    for row in rows:
        if find_row_workload(row) != Workload():  # not empty: something is known
            continue
        name = row.case or row.model
        if name:
            counts[name] += 1
        else:
            num_unnamed += 1
    return UnknownModels(num_unnamed, dict(counts))


def read_parameter_count(text: str) -> float | None:
    """Return the number of parameters in a name or a cell; None: there is none.

    Forms: ``qwen3_8b``, ``350m``, ``7 B``, ``6658859008``. ``30b-a3b`` is a mixture of experts and
    gives 3e9, the parameters that a token uses. ``8x7b``, eight experts of 7e9 parameters, gives
    None: it does not say how many a token uses.
    """
    active = _ACTIVE_PARAMETERS.search(text)  # `a3b`; the group is `3`
    if active:
        return float(active[1]) * _BILLION
    if _EXPERTS_TIMES_SIZE.search(text):  # `8x7b`
        return None
    size = _SIZE_WITH_UNIT.search(text.replace("_", " "))  # `8b`; the groups are `8` and `b`
    if size:
        return float(size[1]) * (_BILLION if size[2].lower() == "b" else _MILLION)
    if not _COUNT.fullmatch(text):  # not a bare number
        return None
    count = float(text.replace(",", ""))
    # A small number without a unit counts something else.
    return count if count >= _MIN_PRINTED_COUNT else None


def is_mixture(model: str) -> bool:
    """Tell whether a model is a mixture of experts: a token needs only some of its parameters."""
    # Only mixtures have sizes such as `8x7b` and `30b-a3b`.
    has_mixture_size = _EXPERTS_TIMES_SIZE.search(model) or _ACTIVE_PARAMETERS.search(model)
    # `mixtures` of `workloads.toml` are parts of names, some of several words (`deepseek v3`), so
    # that the joined words are searched.
    name = " ".join(split_words(model))
    has_mixture_name = any(mixture in name for mixture in _read_document()["mixtures"])
    return bool(has_mixture_size) or has_mixture_name


def trains_adapters(row: Row) -> bool:
    """Tell whether a row says that only adapters are trained.

    It does if it prints that fewer than half of its parameters are trained. It also does if one of
    its texts has a word such as ``lora``: the name of its model, the headings above it, its label,
    its settings, or the name of its file. ``workloads.toml`` lists these words as ``adapters``.
    """
    # `changes` are the settings that the row prints, by name.
    total = read_parameter_count(row.changes.get("parameters", ""))
    trained = read_parameter_count(row.changes.get("trainable_parameters", ""))
    if total is not None and trained is not None and trained < total / 2:
        return True
    settings = " ".join(f"{name} {value}" for name, value in row.changes.items())
    row_words = split_words(f"{row.model} {row.section} {row.configuration} {settings} {row.file}")
    return any(word in row_words for word in _read_document()["adapters"])


def find_sequence_length(settings: Mapping[str, str]) -> str | None:
    """Return the printed sequence length of a row, such as ``2048``; None: it prints none.

    Args:
        settings: all settings of the row by name; names and values are as printed.
    """
    normalized = {name.lower().replace(" ", "_"): value for name, value in settings.items()}
    for name in _SEQUENCE_SETTINGS:  # `seq_length`, `max_length` and other names for it
        if name in normalized:
            return normalized[name]
    return None


def parse_sequence_length(text: str) -> int | None:
    """Return the tokens of a printed length, 2048 of ``2,048`` and ``2k``; None: another form."""
    match = _SEQUENCE_LENGTH.fullmatch(text.strip())  # its groups: the digits, and `k` or nothing
    if match is None:
        return None
    factor = 1024 if match[2] else 1
    return int(match[1].replace(",", "")) * factor


@cache
def list_workloads() -> list[Workload]:
    """Return the models of ``workloads.toml``.

    First come the entries ``workload``. The entries ``sizes`` follow: language models of which only
    the size is listed, and no data set. Both have the fields of ``Workload`` as keys.
    """
    entries = (*_read_document()["workload"], *_read_document()["sizes"])
    return [Workload.model_validate(entry) for entry in entries]


@cache
def _read_document() -> dict[str, Any]:
    """Return the content of ``workloads.toml``, which lists what is known of published models."""
    return read_toml(Path(__file__).with_name("workloads.toml"))
