"""Check a Hugging Face model folder: the keys of ``config.json``, and names and shapes of weights.

A case declares the keys that it uses as ``ConfigKeys``: each field has a type, a range and, as its
description, the rule for errors. Any other key may change the model; it is refused, unless it is
listed as one without effect or has the library's default. The headers of weight files are compared
with the shapes that the model expects. This module knows no model and no case: the parameter
``make_error`` of its functions makes a ``DataError`` with the case's rule and fix. It does not
import torch, so that the launcher can use it; ``train.checkpoints`` reads files that torch wrote.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainmark.data.splits import refuse_unreadable, translate_read_errors
from trainmark.documents import read_bytes
from trainmark.errors import DataError
from trainmark.validation import describe_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from trainmark.errors import Fault

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"  # all weights in one file
INDEX_FILE = "model.safetensors.index.json"  # lists the files that have the weights
Size = Annotated[int, Field(gt=0, description="must be a whole number above 0")]
Share = Annotated[float, Field(ge=0, lt=1, description="a number in [0, 1)")]
_SHOWN_CHARACTERS = 80
# Keys of any model's config.json in transformers 4 and 5: about generation, outputs and files.
UNUSED_KEYS = frozenset((
    "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "architectures", "dtype",
    "finetuning_task", "output_past", "prefix", "return_dict", "task_specific_params",
    "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version",
    "use_bfloat16", "use_cache", "use_return_dict",
    "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_scores", "remove_invalid_values",
    "repetition_penalty", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
    "temperature", "top_k", "top_p", "typical_p",
))  # fmt: skip
# Keys of any model that would change what is computed, with the library's default.
DEFAULTS: dict[str, Any] = {
    "add_cross_attention": False, "attn_implementation": "sdpa", "chunk_size_feed_forward": 0,
    "is_decoder": False, "is_encoder_decoder": False, "output_attentions": False,
    "output_hidden_states": False, "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip


class ConfigKeys(BaseModel):
    """The keys of a ``config.json`` that define a model; a case derives its own class.

    A field's alias is the key's name in the file. A validator raises ``ValueError`` with the broken
    rule as its text.
    """

    unused_keys: ClassVar[frozenset[str]] = frozenset()  # in addition to UNUSED_KEYS
    defaults: ClassVar[dict[str, Any]] = {}  # keys with one valid value, in addition to DEFAULTS

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="ignore")

    @property
    def raw(self) -> dict[str, Any]:
        """The keys of the class that the file sets, by their names there, with their values."""
        return self.model_dump(by_alias=True, exclude_unset=True)


Keys = TypeVar("Keys", bound=ConfigKeys)


def read_config(folder: Path, keys: type[Keys], make_error: Fault) -> Keys:
    """Read and check ``config.json`` of a model folder.

    Args:
        keys: the class whose fields are the keys that the case uses.
        make_error: makes a ``DataError`` with the rule and the fix of the case.

    Raises:
        DataError: the file is missing or not a JSON object, or a key is missing, unknown or
            invalid; the error names the first one.
    """
    file = folder / CONFIG_FILE
    raw = read_json_object(file, make_error)
    try:
        config = keys.model_validate(raw)
    except ValidationError as error:
        raise _make_config_error(error, raw, keys, file, make_error) from None
    _refuse_unknown_keys(raw, keys, file, make_error)
    return config


def _make_config_error(
    error: ValidationError,
    raw: dict[str, Any],
    keys: type[ConfigKeys],
    file: Path,
    make_error: Fault,
) -> DataError:
    """Return the error about the first invalid key of a ``config.json``.

    Args:
        error: pydantic's.
        raw: the content of the file.
        keys: the class whose fields are the keys that the case uses; a field's alias is the key's
            name in the file.
        file: the ``config.json``, for the error.
        make_error: makes a ``DataError`` with the rule and the fix of the case.
    """
    first = error.errors(include_url=False)[0]
    # The error has the rule of the case's own validator, if one failed, or else the description of
    # the field, or else pydantic's rule.
    broken_rule = str(first["ctx"]["error"]) if first["type"] == "value_error" else ""
    default_rule = describe_rule(first["type"], first.get("ctx", {}))
    if not first["loc"]:  # a rule about several keys names them itself
        return make_error(broken_rule or default_rule, where=str(file))
    name = str(first["loc"][0])
    field = next(item for key, item in keys.model_fields.items() if name in {key, item.alias})
    value = repr(raw[name]) if name in raw else "missing"
    return make_error(
        f"{name} is {value:.{_SHOWN_CHARACTERS}}",
        where=f"{file}, {name}",
        rule=broken_rule or field.description or default_rule,
    )


def _refuse_unknown_keys(
    raw: dict[str, Any], keys: type[ConfigKeys], file: Path, make_error: Fault
) -> None:
    """Refuse a key that the case does not use and that may change the model.

    A key whose value is null counts as missing.

    Args:
        raw: the content of the file.
        keys: the class with the keys that the case uses; it also lists ignored keys, and keys that
            must have one given value.
        file: the ``config.json``, for the error.
        make_error: makes a ``DataError`` with the rule and the fix of the case.

    Raises:
        DataError: the first such key, with its value.
    """
    used_keys = {item.alias or name for name, item in keys.model_fields.items()}
    defaults = DEFAULTS | keys.defaults  # keys with the one value that is accepted
    for key, value in raw.items():
        # The case uses the key, or the key does not change the model, or it counts as missing.
        if key in used_keys | UNUSED_KEYS | keys.unused_keys or value is None:
            continue
        if key in defaults and value == defaults[key]:
            continue
        rule = "unknown keys are refused, because they may change the model"
        fix = f"use a model without {key}, or remove the key if it does not change the model"
        if key in defaults:
            rule = f"this case only trains models with {key} {json.dumps(defaults[key])}"
            fix = "use a model folder with this value"
        raise make_error(
            f"{key} is {json.dumps(value):.{_SHOWN_CHARACTERS}}",
            where=f"{file}, {key}",
            rule=rule,
            fix=fix,
        )


def read_json_object(file: Path, make_error: Fault) -> dict[str, Any]:
    """Return the content of a JSON file of a model folder, values by key.

    Args:
        make_error: makes a ``DataError`` with the rule and the fix of the case.

    Raises:
        DataError: the file cannot be read, is not JSON, or has something else than an object.
    """
    try:
        with translate_read_errors(file, make_error):
            content = json.loads(read_bytes(file))
    except (ValueError, RecursionError) as error:
        raise make_error(f"not readable as JSON: {error}", where=str(file)) from None
    if not isinstance(content, dict):
        raise make_error("not a table of keys and values", where=str(file))
    return content


def refuse_long_sequences(folder: Path, *, positions: int, seq_length: int) -> None:
    """Refuse sequences that are longer than the model's table of positions.

    Args:
        positions: number of positions in the table.
        seq_length: number of tokens in a sequence, of the recipe.

    Raises:
        DataError: ``seq_length`` is larger than ``positions``.
    """
    if seq_length > positions:
        raise DataError(
            f"the recipe's seq_length is {seq_length}",
            where=f"{folder / CONFIG_FILE}, max_position_embeddings",
            rule=f"seq_length must not exceed the {positions} positions of the model",
            fix=f"add seq_length={positions}, or use another model folder",
        )


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: the file, its key there and its shape, from the header."""

    file: Path
    key: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """The weights that a model expects in a checkpoint.

    Args:
        model: describes the model in errors, ``the Llama of model/config.json``.
        shapes: shape of every weight by name.
        fix: of the error if a checkpoint belongs to another model.
        wrappers: prefixes that names in the checkpoint may have, such as ``module.``.
        optional_prefixes: prefixes of the names of weights that may be missing.
        is_unused: returns whether the model ignores the weight of this name (without wrappers).
        any_rows: names of tables whose number of rows may differ.
    """

    model: str
    shapes: Mapping[str, tuple[int, ...]]
    fix: str = "use the config.json and the weights of the same model"
    wrappers: tuple[str, ...] = ()
    optional_prefixes: tuple[str, ...] = ()
    is_unused: Callable[[str], bool] = field(default=lambda _: False)
    any_rows: tuple[str, ...] = ()

    def match(
        self, stored_tensors: Iterable[StoredTensor], *, where: Path
    ) -> dict[str, StoredTensor]:
        """Return the stored tensor of each weight, by the model's name of the weight.

        ``shapes`` has the shape of each weight of the model, by the same name. Names are compared
        without wrappers, prefixes such as ``module.`` that a name may have.

        Args:
            stored_tensors: all tensors of the checkpoint.
            where: the file or folder of the checkpoint, for the error about a missing weight.

        Raises:
            DataError: a tensor is unknown, has another shape or is stored twice, or a weight is
                missing.
        """
        # The model's name of each weight, by the name without wrappers.
        names = {self._strip_wrappers(name): name for name in self.shapes}
        matched: dict[str, StoredTensor] = {}
        for tensor in stored_tensors:
            bare_key = self._strip_wrappers(tensor.key)
            place = f"{tensor.file}, {tensor.key}"
            if bare_key in names:
                name = names[bare_key]
                self._check_shape(name, tensor)
                if name in matched:
                    other = matched[name]
                    what = f"{tensor.key} is also in {other.file.name}, as {other.key}"
                    raise self._make_fault(what, place, "every weight must be stored exactly once")
                matched[name] = tensor
            elif not self.is_unused(bare_key):  # the case says which tensors the model ignores
                rule = f"{self.model} has no such weight"
                raise self._make_fault(f"unknown weight {tensor.key}", place, rule)
        missing = [
            name
            for name in self.shapes
            if name not in matched and not name.startswith(self.optional_prefixes)
        ]
        if missing:
            others = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
            rule = f"{self.model} has {len(self.shapes)} weights"
            what = f"missing weights: {missing[0]}{others}"
            raise self._make_fault(what, f"{where}, {missing[0]}", rule)
        return matched

    def _check_shape(self, name: str, tensor: StoredTensor) -> None:
        """Refuse a tensor that has another shape than the weight ``name``."""
        expected = self.shapes[name]
        if name in self.any_rows:  # a table whose number of rows, the first dimension, may differ
            is_fitting = len(tensor.shape) == len(expected) and tensor.shape[1:] == expected[1:]
        else:
            is_fitting = tensor.shape == expected
        if not is_fitting:
            raise self._make_fault(
                f"{tensor.key} has shape {tensor.shape}",
                where=f"{tensor.file}, {tensor.key}",
                rule=f"the weight must have shape {expected}, as in {self.model}",
            )

    def _strip_wrappers(self, name: str) -> str:
        """Return a name without prefixes such as ``module.``, of which it may have several."""
        while name.startswith(self.wrappers):
            name = name.partition(".")[2]  # each prefix in ``wrappers`` has one dot, at its end
        return name

    def _make_fault(self, what: str, where: str, rule: str) -> DataError:
        """Return the error about a weight that does not belong to this model."""
        return DataError(what, where=where, rule=rule, fix=self.fix)


def find_weight_files(folder: Path, names: tuple[str, ...], make_error: Fault) -> list[Path]:
    """Return the first of ``names`` that exists, or the files that it lists if it is an index.

    An index (``INDEX_FILE``) names the file of each weight.

    Args:
        folder: the model folder.
        names: names of files, the preferred one first.
        make_error: makes a ``DataError`` with the rule and the fix of the case.

    Raises:
        DataError: none exists, or the index lists no files.
    """
    existing_files = [folder / name for name in names if (folder / name).is_file()]
    if not existing_files:
        rule = "only init=random works without weights; such runs are labelled performance-only"
        raise make_error(f"no {' and no '.join(names)}", where=str(folder), rule=rule)
    file = existing_files[0]
    if file.name != INDEX_FILE:
        return [file]
    listed_names = set(_read_weight_map(file, make_error).values())
    return [folder / name for name in sorted(listed_names)]


def _read_weight_map(index: Path, make_error: Fault) -> dict[str, str]:
    """Return the file name of each weight, as an index lists them.

    Args:
        index: the file ``model.safetensors.index.json``.
        make_error: makes a ``DataError`` with the rule and the fix of the case.

    Raises:
        DataError: the file cannot be read, or has no such list.
    """
    weight_map = read_json_object(index, make_error).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise make_error("weight_map is missing", where=str(index))
    return {str(name): str(file) for name, file in weight_map.items()}


def list_folder_tensors(folder: Path, make_error: Fault) -> list[StoredTensor]:
    """Return the tensors of a folder's safetensors file, or of those that its index lists.

    An index (``INDEX_FILE``) names the file of each weight. It is ignored if the folder also has
    all weights in one file (``SINGLE_FILE``).

    Args:
        make_error: makes a ``DataError`` with the rule and the fix of the case.

    Raises:
        DataError: a file is missing or damaged, or its tensors are not those that the index lists.
    """
    files = find_weight_files(folder, (SINGLE_FILE, INDEX_FILE), make_error)
    tensors = [tensor for file in files for tensor in list_stored_tensors(file, make_error)]
    if files == [folder / SINGLE_FILE]:
        return tensors  # the single file, which needs no index
    listed = set(_read_weight_map(folder / INDEX_FILE, make_error).items())
    stored = {(tensor.key, tensor.file.name) for tensor in tensors}
    for name, file in sorted(listed ^ stored):  # in one of them only; the first is reported
        what = "is missing" if (name, file) in listed else f"is not listed in {INDEX_FILE}"
        raise make_error(
            f"{name} {what}",
            where=f"{folder / file}, {name}",
            rule=f"each file must contain exactly the weights that {INDEX_FILE} lists for it",
        )
    return tensors


def list_stored_tensors(file: Path, make_error: Fault) -> list[StoredTensor]:
    """Return key and shape of each tensor of a safetensors file, in the order of its header.

    Args:
        make_error: makes a ``DataError`` with the rule and the fix of the case.

    Raises:
        DataError: the file is missing, empty, damaged or cut short.
    """
    from safetensors import SafetensorError, safe_open

    refuse_unreadable(file, make_error)
    try:
        with safe_open(file, framework="np") as opened:
            tensors = []
            for key in opened.keys():  # noqa: SIM118 - the opened file itself is not iterable
                shape = opened.get_slice(key).get_shape()  # reads no numbers
                tensors.append(StoredTensor(file, key, tuple(shape)))
            return tensors
    except SafetensorError as error:
        raise make_error(f"not readable as safetensors: {error}", where=str(file)) from None
