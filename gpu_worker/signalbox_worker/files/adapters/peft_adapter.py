"""Opens a LoRA adapter in PEFT's format (Hu et al., 2021), and matches it with a model.

Every tensor must find its module, and every module that the adapter says it changes must have its
tensors, so that no adapter runs without a part of its effect.
"""

import errno
import hashlib
import logging
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from signalbox_contract.model import Adapter
from signalbox_kernels.adapters import LoraPair
from signalbox_kernels.floats import to_float32
from signalbox_worker.config import ModelError
from signalbox_worker.files.adapters.adapter_config import (
    AdapterConfig,
    max_bytes,
    read_adapter_config,
)
from signalbox_worker.files.checkpoints.safetensors_file import stored_safetensors
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.quantised.modelopt import TEXT_PREFIXES

logger = logging.getLogger(__name__)

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_BODY = "model."
_OTHER_BODIES = (*TEXT_PREFIXES, "backbone.")
"""Beginnings that modules have in place of `_BODY` where an adapter was trained on a model of more
than text, or on Nemotron-H with its own code."""

Shapes = Mapping[str, tuple[int, int]]
"""Rows and columns of the matrix of each module that adapters may change, by its name."""


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """An adapter of one model, unread."""

    info: Adapter
    config: AdapterConfig
    _tensors: Mapping[tuple[str, str], StoredTensor]
    _names: Mapping[str, str]
    """Its own names of the model's modules."""

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules that it changes."""
        return tuple(module for module, own in self._names.items() if (own, "A") in self._tensors)

    def rank_of(self, module: str) -> int:
        """Returns the rank of its matrices in a module; 0 if it does not change it."""
        own = self._names[module]
        return self.config.rank_of(own) if (own, "A") in self._tensors else 0

    def pair(self, module: str) -> LoraPair:
        """Reads its matrices of a module. Raises ModelError if they are not finite."""
        own = self._names[module]
        a, b = (to_float32(self._tensors[own, part].read()) for part in "AB")
        with np.errstate(over="ignore"):
            b = b * np.float32(self.config.scale(own))
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise ModelError(
                f"the adapter {self.info.name} is not finite in {module}; train it again"
            )
        return LoraPair(a, b)


def check_adapter(name: str, folder: Path) -> None:
    """Raises ModelError if a file of an adapter is missing; reads none."""
    for file in (folder / CONFIG, folder / WEIGHTS):
        try:
            if not stat.S_ISREG(file.stat().st_mode):  # a pipe may never be written
                raise OSError(errno.EINVAL, "it is no file with content")
        except OSError as error:
            raise _missing(name, file, error) from None


def describe_adapter(name: str, folder: Path) -> Adapter:
    """Identifies an adapter by the SHA-256 of its configuration and its weights.

    Raises ModelError if a file is missing.
    """
    check_adapter(name, folder)
    digest = hashlib.sha256()
    for file in (folder / CONFIG, folder / WEIGHTS):
        try:
            with file.open("rb") as opened:
                of_file = hashlib.file_digest(opened, "sha256")
        except OSError as error:
            raise _missing(name, file, error) from None
        digest.update(of_file.digest())
    return Adapter(name=name, sha256=digest.hexdigest(), path=str(folder))


def open_adapter(
    name: str, folder: Path, *, shapes: Shapes, max_rank: int | None = None
) -> PeftAdapter:
    """Opens an adapter of a model whose modules have these shapes.

    Raises ModelError with what is wrong and the remedy.
    """
    check_adapter(name, folder)
    read_adapter_config(folder / CONFIG)  # what is not served is told before what weights lack
    tensors = dict(_tensors(folder / WEIGHTS, max_header_bytes=max_bytes(shapes)))
    names = _own_names(shapes, tensors)
    shapes = {own: shapes[module] for module, own in names.items()}
    config = read_adapter_config(folder / CONFIG, shapes)
    if max_rank is not None and config.max_rank > max_rank:
        raise ModelError(
            f"the adapter {name} has rank {config.max_rank}, more than max_lora_rank, which is"
            f" {max_rank}; raise --max-lora-rank"
        )
    _check_modules(name, config, tensors, shapes)
    for module in (module for module in shapes if config.targets(module)):
        _check_shapes(name, module, config.rank_of(module), tensors, shapes[module])
    info = describe_adapter(name, folder)  # last, because it reads all of the files
    return PeftAdapter(info, config, tensors, names)


def _own_names(
    modules: Iterable[str], tensors: Mapping[tuple[str, str], StoredTensor]
) -> dict[str, str]:
    """Returns the adapter's own name of each module of the model."""
    first = min((module for module, _ in tensors), default="")
    body = next((one for one in _OTHER_BODIES if first.startswith(one)), _BODY)
    return {
        one: body + one.removeprefix(_BODY) if one.startswith(_BODY) else one for one in modules
    }


def _missing(name: str, file: Path, error: OSError) -> ModelError:
    if (file.parent / PICKLED).exists():
        remedy = f"{PICKLED} is not read, as it may run code; save the adapter as safetensors"
    else:
        remedy = "give the folder of an adapter that PEFT has saved"
    reason = error.strerror or type(error).__name__
    return ModelError(f"cannot read {file} of the adapter {name} ({reason}); {remedy}")


def _tensors(
    path: Path, *, max_header_bytes: int
) -> Iterator[tuple[tuple[str, str], StoredTensor]]:
    for tensor_name, tensor in stored_safetensors(path, max_header_bytes=max_header_bytes):
        found = _TENSOR.fullmatch(tensor_name)
        if found is None:
            raise ModelError(
                f"{path} has the tensor {tensor_name!r}, which is no part of a LoRA matrix; merge"
                " the adapter into its model"
            )
        yield (found[1], found[2]), tensor


def _check_modules(
    name: str,
    config: AdapterConfig,
    tensors: Mapping[tuple[str, str], StoredTensor],
    shapes: Shapes,
) -> None:
    """Raises ModelError unless the tensors are those of the modules that the adapter targets."""
    found = {module for module, _ in tensors}
    base = f" (it was trained on {config.base_model})" if config.base_model else ""
    if strangers := found - shapes.keys():
        raise ModelError(
            f"the adapter {name} changes {min(strangers)}, which this model does not have or which"
            f" adapters may not change{base}; train it on this model, without that module"
        )
    targets = {module for module in shapes if config.targets(module)}
    if unnamed := found - targets:
        raise ModelError(
            f"the adapter {name} has tensors of {min(unnamed)}, which its {CONFIG} does not target;"
            " save it again"
        )
    wanted = {(module, part) for module in targets for part in "AB"}
    if missing := wanted - tensors.keys():
        module, part = min(missing)
        raise ModelError(
            f"the adapter {name} targets {module}, but has no lora_{part} of it; it is of another"
            f" base model, or incomplete{base}; save it again"
        )
    if not targets:
        raise ModelError(
            f"the adapter {name} targets no module of this model; give one that was trained on it"
        )


def _check_shapes(
    name: str,
    module: str,
    rank: int,
    tensors: Mapping[tuple[str, str], StoredTensor],
    shape: tuple[int, int],
) -> None:
    rows, columns = shape
    for part, expected in (("A", (rank, columns)), ("B", (rows, rank))):
        actual = tensors[module, part].shape
        if actual != expected:
            raise ModelError(
                f"lora_{part} of {module} in the adapter {name} has shape {actual} where {expected}"
                " is expected; the adapter is of another base model or rank"
            )


def warn_of_base(adapter: PeftAdapter, model_name: str) -> None:
    """Logs that an adapter names another base model, which may be another name of the same."""
    base = adapter.config.base_model
    if base and Path(base).name.lower() != Path(model_name).name.lower():
        logger.warning(
            "the adapter %s was trained on %s; its shapes fit %s, which is all that can be checked",
            adapter.info.name,
            base,
            model_name,
        )
