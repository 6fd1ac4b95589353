"""Tells what kind of model a name means, and opens it."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from gpu_worker.config import ModelConfig

Progress = Callable[[str], None]
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
    def is_half(self) -> bool:
        """Whether the weights have 16 bits or fewer, so that 16 are enough to hold them."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields every tensor under its Hugging Face name."""
        ...

    def tokenizer_files(self) -> dict[str, bytes]:
        """Returns tokenizer.json and tokenizer_config.json."""
        ...

    def eos_token_ids(self) -> tuple[int, ...]:
        """Returns the ids that end a sequence, ascending."""
        ...


def open_model(config: ModelConfig, progress: Progress) -> ModelSource:
    """Opens a directory, a .gguf file, or a model on the hub (downloading it)."""
    path = Path(config.model).expanduser()
    if path.is_dir():
        return _open_directory(path, name=path.resolve().name)
    if path.is_file():
        return _open_file(path)
    if _looks_like_hub_id(config.model):
        from gpu_worker.loading.hub import download

        name = config.model.rpartition("/")[2]
        return _open_directory(download(config.model, config.revision, progress), name=name)
    raise FileNotFoundError(
        f"model not found: {config.model}; give a directory, a .gguf file or a hub id (org/name)"
    )


def _looks_like_hub_id(model: str) -> bool:
    """org/name, unless it is a path: a .gguf file, or something in a directory that exists."""
    if model.endswith(".gguf") or not _HUB_ID.fullmatch(model):
        return False
    return not Path(model).parent.is_dir()


def _open_directory(path: Path, *, name: str) -> ModelSource:
    from gpu_worker.loading.directory import DirectorySource

    return DirectorySource(path, name=name)


def _open_file(path: Path) -> ModelSource:
    from gpu_worker.loading.gguf_file import GGUFSource

    return GGUFSource(path)
