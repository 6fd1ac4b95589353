"""A model in Hugging Face's layout: config.json, safetensors shards, tokenizer files."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gpu_worker.checkpoints.json_file import read_json
from gpu_worker.checkpoints.quantised_matrices import with_matrices
from gpu_worker.checkpoints.safetensors_file import stored_safetensors
from gpu_worker.checkpoints.stored_tensor import StoredTensor
from gpu_worker.checkpoints.weight_sizes import WeightSizes, directory_sizes
from gpu_worker.config import ModelError
from gpu_worker.loading.missing_packages import needing_pytorch
from gpu_worker.loading.tokenizer_files import directory_tokenizer_files, token_id
from gpu_worker.models import has_native_program
from gpu_worker.quantised.configuration import quantised_checkpoint
from signalbox_kernels.floats import AnyArray

GENERATION_CONFIG = "generation_config.json"
_OLD_QUANTIZATION = ("quantize_config.json", "quant_config.json")

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
        self.config: Mapping[str, Any] = _with_old_quantization(
            path, read_json(path / "config.json")
        )
        names = self.config.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ModelError(f"{path / 'config.json'} does not name its architectures in a list")

    @property
    def is_half(self) -> bool:
        return self.config.get("dtype", self.config.get("torch_dtype")) in ("bfloat16", "float16")

    @cached_property  # reads the headers of all files
    def sizes(self) -> WeightSizes | None:
        is_native = has_native_program(self.config.get("architectures") or ())
        return directory_sizes(
            self.shards(),
            is_half=self.is_half,
            is_native=is_native,
            checkpoint=quantised_checkpoint(self.config),
        )

    def files(self) -> list[Path]:
        return [self._path / "config.json", *self.shards()]

    def stored(self) -> dict[str, StoredTensor]:
        found: dict[str, StoredTensor] = {}
        for shard in self.shards():
            if shard.suffix == ".safetensors":
                found |= stored_safetensors(shard)
            else:
                for name, values in _of_torch_file(shard):
                    found[name] = StoredTensor(
                        values.shape, partial(_same, values), dtype=values.dtype
                    )
        found = {_renamed(name): tensor for name, tensor in found.items()}
        return with_matrices(found, quantised_checkpoint(self.config))

    def shards(self) -> list[Path]:
        """Returns the files of weights. Raises ModelError if one is missing."""
        shards = self._shards_of("model.safetensors.index.json", "*.safetensors")
        shards = shards or self._shards_of("pytorch_model.bin.index.json", "pytorch_model*.bin")
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise ModelError(f"{self._path} lacks {missing[0]}; fetch it again")
        if not shards:
            raise ModelError(f"{self._path} has no .safetensors files; convert its weights")
        return shards

    def _shards_of(self, index_name: str, pattern: str) -> list[Path]:
        index = self._path / index_name
        if not index.is_file():
            alone = self._path / index_name.removesuffix(".index.json")
            return [alone] if alone.is_file() else sorted(self._path.glob(pattern))
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()):
            raise ModelError(f"{index} does not say where the tensors are; fetch it again")
        names = sorted({*places.values()})
        if outside := [name for name in names if Path(name).is_absolute() or ".." in name]:
            raise ModelError(f"{index} names {outside[0][:80]}, which is not in its folder")
        return [self._path / name for name in names]

    def tokenizer_files(self) -> dict[str, bytes]:
        return dict(self._tokenizer_files)

    @cached_property  # a conversion takes seconds
    def _tokenizer_files(self) -> dict[str, bytes]:
        return directory_tokenizer_files(self._path)

    def eos_token_ids(self) -> tuple[int, ...]:
        ids = set(_ids(self.config.get("eos_token_id")))
        ids = set(_ids(self.generation_config().get("eos_token_id"))) or ids
        return tuple(sorted(ids | self._tokenizer_eos()))

    def generation_config(self) -> Mapping[str, Any]:
        path = self._path / GENERATION_CONFIG
        return read_json(path) if path.is_file() else {}

    def _tokenizer_eos(self) -> set[int]:
        """The end of a chat turn is often known to the tokenizer alone."""
        files = self._tokenizer_files
        eos = json.loads(files["tokenizer_config.json"]).get("eos_token")
        known = None if eos is None else token_id(files["tokenizer.json"], eos)
        return set() if known is None else {known}


def _with_old_quantization(path: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds what AutoGPTQ's and AutoAWQ's first versions wrote into a file of its own."""
    if config.get("quantization_config") is not None:
        return config
    for name in _OLD_QUANTIZATION:
        if (path / name).is_file():
            described = read_json(path / name)
            is_awq = "w_bit" in described or "zero_point" in described
            method = {"quant_method": "awq" if is_awq else "gptq"}
            return {**config, "quantization_config": {**method, **described}}
    return config


def _of_torch_file(path: Path) -> Iterator[tuple[str, AnyArray]]:
    with needing_pytorch(f"{path} is in PyTorch's own format"):
        from gpu_worker.checkpoints.torch_file import read_torch_file
    yield from read_torch_file(path)


def _renamed(name: str) -> str:
    """Returns a tensor's name of today: those converted from TensorFlow's BERT have older ones."""
    module, _, part = name.rpartition(".")
    is_old = module.endswith("LayerNorm")
    return f"{module}.{_OLD_PARTS.get(part, part)}" if is_old else name


def _same(values: AnyArray) -> AnyArray:
    return values


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int) for each in ids):
        raise ModelError(f"eos_token_id is {str(value)[:40]}; token ids are whole numbers")
    return ids
