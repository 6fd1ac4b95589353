"""Says what the bytes of a KV block depend on beside its tokens: weights, configuration, code.

Blocks of two workers may stand for each other only if all of this and their arithmetic are equal.
The arithmetic is known last: `identity` takes it for a store, and the scheduler compares it where
workers read each other's blocks.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import signalbox_kernels
from signalbox_contract.model import ModelInfo, WorkerCapacity
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.kv.cache.capacity import Footprint
from signalbox_worker.runner.loading.content_files import (
    ContentFile,
    Digests,
    content_digest,
    yield_to_others,
)
from signalbox_worker.runner.loading.runner_config import RunnerConfig

_SOURCES = (Path(__file__).parents[2], Path(str(signalbox_kernels.__file__)).parent)
_SUFFIXES = (".py", ".cpp", ".h")
_CODE = (".py", ".so")
"""Suffixes of foreign code."""
_COPIED_CODE = "transformers_modules"
"""Package under which transformers loads code that comes with models."""
_PACKAGES = ("numpy", "torch", "transformers", "triton")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OF_BLOCKS = ("convert", "dtype", "load_format", "model_impl", "quantization", "runner")
"""Settings of a model that change what its blocks hold, beside those that `ModelInfo` has."""


@dataclass(frozen=True, slots=True)
class BlockContent:
    """All that the bytes of blocks depend on; `identity` reads the files."""

    files: tuple[ContentFile, ...]
    """Weights, configuration and foreign code, as they were before the model was loaded."""
    block_bytes: int
    description: str
    fingerprint: str
    """Fingerprint of the model, as in `ModelInfo`."""

    def format_of(self, capacity: WorkerCapacity) -> str:
        """Returns `WorkerCapacity.block_format` of a rank, without a full reading of the weights,
        as workers of one cluster have one model already; empty if it exchanges no blocks."""
        if not capacity.num_cpu_blocks:
            return ""
        told = own_sources() + json.dumps([self.fingerprint, self.description]).encode()
        return hashlib.sha256(told).hexdigest()[:32]

    def identity(
        self, arithmetic: str, digests: Digests, is_called_off: Callable[[], bool]
    ) -> bytes:
        """Returns a digest of all of it; raises FilesChanged. For a thread of its own.

        Args: arithmetic: that of the worker, as in `WorkerCapacity`.
        """
        yield_to_others()
        content = content_digest(self.files, digests, is_called_off=is_called_off)
        described = self.description.encode() + arithmetic.encode()
        return hashlib.sha256(content + own_sources() + described).digest()


def describe(
    config: RunnerConfig,
    info: ModelInfo,
    files: tuple[ContentFile, ...],
    *,
    described: object,
    footprint: Footprint,
    form: object,
    layers: StageLayers,
) -> BlockContent:
    """Describes the blocks of a rank.

    Args:
        described: what the model's family read of its configuration, overrides included.
        form: what computes; it decides the layout within a block.
        layers: part of the model that the rank's stage has.
    """
    model_config, parallel = config.model, config.parallel
    about: dict[str, Any] = {name: getattr(model_config, name) for name in _OF_BLOCKS}
    about |= {
        "architecture": info.architecture,
        "backends": _ADDRESS.sub("", str(form)),
        "block": (footprint.block_size, footprint.block_bytes),
        "code": _digest(file.path for file in files if file.path.suffix in _CODE),
        "config": _ADDRESS.sub("", str(described)),
        "dtype": info.dtype,
        "max_model_len": info.max_model_len,  # it chooses the factors of some rotary embeddings
        "numerics": str(info.numerics),
        "packages": {name: _version(name) for name in _PACKAGES},
        "plugins": model_config.plugins,
        "rank": (parallel.tensor_rank, parallel.tensor_parallel_size, layers.start, layers.stop),
    }
    return BlockContent(
        files, footprint.block_bytes, json.dumps(about, sort_keys=True), info.fingerprint
    )


def format_of_ranks(formats: Sequence[str]) -> str:
    """Returns `WorkerCapacity.block_format` of a worker; empty if a rank exchanges no blocks."""
    if not all(formats):
        return ""
    return hashlib.sha256("\n".join(formats).encode()).hexdigest()[:32]


def foreign_code(plugins: Sequence[str], root: Path | None) -> list[Path]:
    """Returns the files of foreign code.

    Args:
        plugins: modules that have been imported; all of the package that one is in counts.
        root: folder of a model that brings code of its own. What transformers has loaded counts,
            too: config.json may name code of another repository.
    """
    found = [] if root is None else [*sorted(root.glob("**/*.py")), *_loaded_code()]
    for name in dict.fromkeys(plugin.partition(".")[0] for plugin in plugins):
        module = sys.modules[name]
        folders = getattr(module, "__path__", ())
        for folder in folders:
            found += (path for path in sorted(Path(folder).rglob("*")) if path.suffix in _CODE)
        if not folders and (file := getattr(module, "__file__", None)) is not None:
            found.append(Path(file))
    return found


def _loaded_code() -> list[Path]:
    """Returns the code of models that transformers has copied and loaded."""
    loaded = [m for name, m in sys.modules.items() if name.partition(".")[0] == _COPIED_CODE]
    return sorted(Path(file) for module in loaded if (file := getattr(module, "__file__", None)))


@cache
def own_sources() -> bytes:
    """Returns a digest of the sources as they were when the model was loaded: a package may be
    replaced while it runs."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted(folder.rglob("*")):
            if path.suffix in _SUFFIXES:
                digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.digest()


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
