"""Tells what kind of model a name means, and opens it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpu_worker.config import ModelConfig, ModelError
from gpu_worker.loading.hub import download
from rpc.startup import ReportProgress

if TYPE_CHECKING:
    from torch import Tensor

_PART = re.compile(r"-\d{5}-of-\d{5}$")
_QUANTISATION = re.compile(r"[.-](I?Q\d\w*|F16|F32|BF16)$", re.IGNORECASE)
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


class ModelSource(Protocol):
    """A model at rest."""

    @property
    def name(self) -> str:
        """Name for clients, unless they are given another."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """As in Hugging Face's config.json."""
        ...

    @property
    def directory(self) -> Path | None:
        """Where its files are, if it is a directory in Hugging Face's layout."""
        ...

    @property
    def is_half(self) -> bool:
        """Whether the weights have 16 bits or fewer, so that 16 are enough to hold them."""
        ...

    def weights(self) -> Iterator[tuple[str, "Tensor"]]:
        """Yields every tensor under its Hugging Face name."""
        ...

    def tokenizer_files(self) -> dict[str, bytes]:
        """Returns tokenizer.json and tokenizer_config.json."""
        ...

    def eos_token_ids(self) -> tuple[int, ...]:
        """Returns the ids that end a sequence, ascending."""
        ...

    def generation_config(self) -> Mapping[str, Any]:
        """Returns default sampling parameters as in generation_config.json; empty without any."""
        ...


def open_model(config: ModelConfig, progress: ReportProgress) -> ModelSource:
    """Opens a directory, a .gguf file, or a model on the hub (downloading it)."""
    path, is_dummy = find_model(config), config.load_format == "dummy"
    if path is None:
        name = config.model.rpartition("/")[2]
        path = download(config.model, config.revision, progress, with_weights=not is_dummy)
        return _open_directory(path, name=name, is_dummy=is_dummy)
    if path.is_dir():
        return _open_directory(path, name=path.resolve().name, is_dummy=is_dummy)
    return _open_file(path)


def find_model(config: ModelConfig) -> Path | None:
    """Returns a model's directory or .gguf file; None stands for a model on the hub.

    Raises FileNotFoundError for what is neither, ModelError for a file without what is asked for.
    """
    path = Path(config.model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if config.load_format == "dummy":
            raise ModelError(
                f"load_format 'dummy' takes a directory with config.json or a hub id, not {path}"
            )
        return path
    if _looks_like_hub_id(config.model):
        return None
    raise FileNotFoundError(
        f"model not found: {config.model}; give a directory, a .gguf file or a hub id (org/name)"
    )


def _looks_like_hub_id(model: str) -> bool:
    """org/name, unless it is a path: a .gguf file, or something in a directory that exists."""
    if model.endswith(".gguf") or not _HUB_ID.fullmatch(model):
        return False
    return not Path(model).parent.is_dir()


def _open_directory(path: Path, *, name: str, is_dummy: bool) -> ModelSource:
    from gpu_worker.loading.directory import DirectorySource
    from gpu_worker.loading.dummy import DummySource

    return DummySource(path, name=name) if is_dummy else DirectorySource(path, name=name)


def model_name(config: ModelConfig) -> str:
    """Returns the name that clients use for a model, unless `served_name` gives another."""
    path = Path(config.model).expanduser()
    if path.is_dir():
        return path.resolve().name
    return gguf_name(path) if path.is_file() else config.model.rpartition("/")[2]


def gguf_name(path: Path) -> str:
    """Returns a file's name without its part, its quantisation and its suffix."""
    return _QUANTISATION.sub("", _PART.sub("", path.stem))


def _open_file(path: Path) -> ModelSource:
    from gpu_worker.loading.gguf_file import GGUFSource

    return GGUFSource(path)
