"""A model in Hugging Face's layout: config.json, safetensors shards, tokenizer files."""

import json
import logging
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from signalbox_kernels.floats import AnyArray
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.json_file import read_json
from signalbox_worker.files.checkpoints.old_names import with_todays_names
from signalbox_worker.files.checkpoints.quantised_matrices import with_matrices
from signalbox_worker.files.checkpoints.safetensors_file import stored_safetensors
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.text_part import MULTIMODAL, TextTensors, text_part
from signalbox_worker.files.checkpoints.weight_names import FURTHER, distinct_tensors
from signalbox_worker.files.checkpoints.weight_sizes import WeightSizes, directory_sizes
from signalbox_worker.files.hub.weight_file_names import (
    INDEX,
    choose_weight_files,
    left_out,
    names_of_index,
)
from signalbox_worker.files.quantised.configuration import quantised_checkpoint, with_quantization
from signalbox_worker.files.quantised.modelopt import of_hf_quant_config
from signalbox_worker.generation_fields import end_token_ids
from signalbox_worker.missing_packages import needing_pytorch
from signalbox_worker.models import has_native_program
from signalbox_worker.models.family_config import FamilyConfig
from signalbox_worker.runner.loading.tokenizer_files import directory_tokenizer_files, token_id

logger = logging.getLogger(__name__)

GENERATION_CONFIG = "generation_config.json"
_NAMED_WEIGHTS = "transformers_weights"
"""Field of config.json: the file of weights that counts, whatever others there are."""
_ADAPTER = "adapter_config.json"
_OF_MODELOPT = "hf_quant_config.json"
_OLD_QUANTIZATION = ("quantize_config.json", "quant_config.json", _OF_MODELOPT)

_OLD_PARTS = {"gamma": "weight", "beta": "bias"}
"""Vectors of a layer norm."""


class DirectorySource:
    """Satisfies `ModelSource`."""

    def __init__(self, path: Path, *, name: str, root: Path | None = None) -> None:
        """Args: root: with all of the model's files; None is `path`."""
        self._path = self.directory = path
        self.root = root or path
        self.name = name
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} has no config.json; give a model in Hugging Face's layout")
        self.config: Mapping[str, Any] = with_quantization(
            read_json(path / "config.json"), _old_quantization(path)
        )
        names = self.config.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ModelError(f"{path / 'config.json'} does not name its architectures in a list")
        self.config = text_part(self.config)

    @property
    def is_half(self) -> bool:
        dtype = self.config.get("dtype") or self.config.get("torch_dtype")
        return dtype in ("bfloat16", "float16")

    @cached_property  # reads the headers of all files
    def sizes(self) -> WeightSizes | None:
        is_native = has_native_program(self.config.get("architectures") or ())
        return directory_sizes(
            self.shards(),
            is_half=self.is_half,
            is_native=is_native,
            checkpoint=quantised_checkpoint(self.config),
            choose=self._of_text,
        )

    def files(self) -> list[Path]:
        return [self._path / "config.json", *self.shards()]

    def stored(self) -> dict[str, StoredTensor]:
        return self._of_text(self._of_all_parts())

    def further(self) -> dict[str, StoredTensor]:
        """Qwen's lie beside the text part, too."""
        found = self._of_all_parts()
        return {name: tensor for name, tensor in found.items() if name.startswith(FURTHER)}

    def _of_all_parts(self) -> dict[str, StoredTensor]:
        found = distinct_tensors(
            (_renamed(name), f"{name} of {shard.name}", tensor)
            for shard in self.shards()
            for name, tensor in _stored_in(shard)
        )
        found = with_todays_names(found, self.config.get("architectures") or ())
        return with_matrices(found, quantised_checkpoint(self.config))

    def _of_text(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Returns the tensors of the text part, by their names in a model of text alone."""
        if MULTIMODAL not in self.config:
            return dict(stored)
        of_text = TextTensors.among(stored)
        named = ((of_text.renamed(name), name, tensor) for name, tensor in stored.items())
        return distinct_tensors((own, name, one) for own, name, one in named if own is not None)

    def log_choice(self) -> None:
        """Logs which of several candidates are not what is served."""
        files = self._file_names()
        if others := left_out(files):
            taken, names = choose_weight_files(files)[0], ", ".join(others)
            logger.info("%s: the weights are those of %s, not of %s", self.name, taken, names)
        if _ADAPTER in files:
            logger.warning(
                "%s has %s: that adapter is not applied; give it as an adapter if it is to be",
                self.name,
                _ADAPTER,
            )

        if MULTIMODAL in self.config:
            logger.warning(
                "%s: the text part of %s is served, images and sound are not: %d tensors are left "
                "out",
                self.name,
                self.config[MULTIMODAL],
                self.sizes.num_left_out if self.sizes is not None else 0,
            )

    def _file_names(self) -> set[str]:
        return {file.name for file in self._path.iterdir()}

    def shards(self) -> list[Path]:
        """Returns the files of weights. Raises ModelError if one is missing."""
        chosen = choose_weight_files(self._file_names())
        if named := self.config.get(_NAMED_WEIGHTS):
            chosen = _of_its_folder(self._path / "config.json", [str(named)])
        if chosen and chosen[0].endswith(INDEX):
            chosen = _read_index(self._path / chosen[0])
        missing = [name for name in chosen if not (self._path / name).is_file()]
        if missing:
            raise ModelError(f"{self._path} lacks {missing[0]}; fetch it again")
        if not chosen:
            raise ModelError(f"{self._path} has no .safetensors files; convert its weights")
        return [self._path / name for name in chosen]

    def tokenizer_files(self) -> dict[str, bytes]:
        return dict(self._tokenizer_files)

    @cached_property  # a conversion takes seconds
    def _tokenizer_files(self) -> dict[str, bytes]:
        return directory_tokenizer_files(self._path)

    def eos_token_ids(self) -> tuple[int, ...]:
        try:
            of_model = end_token_ids(FamilyConfig.of_file(self.config))
            of_generation = end_token_ids(self.generation_config())
        except ValueError as error:
            raise ModelError(f"{self._path}: {error}") from None
        return tuple(sorted((of_generation or of_model) | self._tokenizer_eos()))

    def generation_config(self) -> Mapping[str, Any]:
        path = self._path / GENERATION_CONFIG
        return read_json(path) if path.is_file() else {}

    def _tokenizer_eos(self) -> set[int]:
        """The end of a chat turn is often known to the tokenizer alone."""
        files = self.tokenizer_files()
        eos = json.loads(files["tokenizer_config.json"]).get("eos_token")
        known = None if eos is None else token_id(files["tokenizer.json"], eos)
        return set() if known is None else {known}


def _old_quantization(path: Path) -> Mapping[str, Any] | None:
    """Returns what ModelOpt, and AutoGPTQ's and AutoAWQ's first versions, wrote into a file of its
    own."""
    found = [name for name in _OLD_QUANTIZATION if (path / name).is_file()]
    if not found:
        return None
    if len(found) > 1:
        raise ModelError(f"{path} has {' and '.join(found)}; remove the one that is not meant")
    described = read_json(path / found[0])
    if found[0] == _OF_MODELOPT:
        return of_hf_quant_config(described)
    is_awq = "w_bit" in described or "zero_point" in described
    method = {"quant_method": "awq" if is_awq else "gptq"}
    return {**method, **described}


def _read_index(index: Path) -> list[str]:
    """Returns the files that an index names. Raises ModelError for one that is not sound."""
    try:
        return _of_its_folder(index, names_of_index(read_json(index)))
    except ValueError as error:
        raise ModelError(f"{index} is not sound ({error}); fetch it again") from None


def _of_its_folder(file: Path, names: list[str]) -> list[str]:
    """Returns what a file names. Raises ModelError for a name outside of its folder."""
    if outside := [name for name in names if Path(name).is_absolute() or ".." in name]:
        raise ModelError(f"{file} names {outside[0][:80]}, which is not in its folder")
    return names


def _stored_in(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    if path.suffix == ".safetensors":
        yield from stored_safetensors(path)
        return
    with needing_pytorch(f"{path} is in PyTorch's own format"):
        from signalbox_worker.files.checkpoints.torch_file import read_torch_file
    for name, values in read_torch_file(path):
        yield name, StoredTensor(values.shape, partial(_same, values), dtype=values.dtype)


def _renamed(name: str) -> str:
    """Returns a tensor's name of today: those converted from TensorFlow's BERT have older ones."""
    module, _, part = name.rpartition(".")
    is_old = module.endswith("LayerNorm")
    return f"{module}.{_OLD_PARTS.get(part, part)}" if is_old else name


def _same(values: AnyArray) -> AnyArray:
    return values
