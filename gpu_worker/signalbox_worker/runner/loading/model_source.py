"""Finds the model that a name means, opens it, and tells what its weights take in memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from signalbox_contract.startup import ReportProgress
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_sizes import WeightSizes
from signalbox_worker.files.hub.download import download, find_cached, find_on_hub
from signalbox_worker.files.hub.gguf_file_names import find_variants, format_bytes, gguf_name
from signalbox_worker.files.hub.hub_model import Check, fetch_any
from signalbox_worker.files.hub.model_name import parse_hub_name
from signalbox_worker.files.hub.weight_file_names import choose_weight_files
from signalbox_worker.models.pooling.sentence_transformers import transformer_folder
from signalbox_worker.runner.loading.unfetched_model import with_holes


class ModelSource(Protocol):
    """The configuration, weights and tokenizer of a model on disk."""

    @property
    def name(self) -> str:
        """Name for clients, unless they are given another."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration as in Hugging Face's config.json."""
        ...

    @property
    def directory(self) -> Path | None:
        """Directory in Hugging Face's layout with the model's files; None for other sources."""
        ...

    @property
    def root(self) -> Path | None:
        """Directory with all of the model's files, of which `directory` may be a part."""
        ...

    @property
    def is_half(self) -> bool:
        """Returns whether 16 bits can hold each weight."""
        ...

    @property
    def sizes(self) -> WeightSizes | None:
        """Counts over all tensors; None for a source without a checkpoint."""
        ...

    def log_choice(self) -> None:
        """Logs what of the files is not served."""
        ...

    def files(self) -> Sequence[Path]:
        """Returns the files that decide what the model computes: configuration and weights."""
        ...

    def stored(self) -> dict[str, StoredTensor]:
        """Returns every tensor by its Hugging Face name, read when it is asked for."""
        ...

    def further(self) -> dict[str, StoredTensor]:
        """Returns the tensors of layers that predict further tokens, if `stored` lacks them."""
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


@contextmanager
def naming(model: str) -> Iterator[None]:
    """Puts the model's path or id before the message of a ModelError that does not contain it."""
    try:
        yield
    except ModelError as error:
        if Path(model).name in str(error):
            raise
        raise ModelError(f"{model}: {error}") from error


def open_model(
    config: ModelConfig, progress: ReportProgress, check: Check = fetch_any
) -> ModelSource:
    """Opens a directory, a .gguf file, or a model on the hub (downloading it).

    Args:
        check: called before weights are downloaded.
    """
    path, is_dummy = find_model(config), config.load_format == "dummy"
    name = model_name(config)
    if path is None:
        path = download(
            config.model, config.revision, progress, with_weights=not is_dummy, check=check
        )
    source = source_at(path, name=name, is_dummy=is_dummy)
    source.log_choice()
    return source


def source_at(path: Path, *, name: str, is_dummy: bool) -> ModelSource:
    """Opens a directory, of which weights need not be there if `is_dummy`, or a .gguf file."""
    if path.is_dir():
        return _open_directory(path, name=name, is_dummy=is_dummy)
    return _open_file(path, name=name)


def find_model(config: ModelConfig) -> Path | None:
    """Returns a model's directory or .gguf file; None stands for a model on the hub.

    Raises FileNotFoundError for what is neither, ModelError for a file without what is asked for
    and for a directory with several GGUF models.
    """
    path = Path(config.model).expanduser()
    is_dummy = config.load_format == "dummy"
    if path.is_dir():
        return path if is_dummy else _gguf_file_in(path) or path
    if path.is_file():
        if is_dummy:
            raise ModelError(
                f"load_format 'dummy' takes a directory with config.json or a hub id, not {path}"
            )
        return path
    if _is_hub_name(config.model):
        return None
    raise FileNotFoundError(
        f"model not found: {config.model}; give a directory, a .gguf file or a hub id"
        " (org/name, org/name:Q4_K_M)"
    )


def _is_hub_name(model: str) -> bool:
    """org/name, unless it is a path: something in a directory that exists."""
    name = parse_hub_name(model)
    return name is not None and (name.has_prefix or not Path(model).parent.is_dir())


def _gguf_file_in(path: Path) -> Path | None:
    """Returns the one GGUF model of a directory, or its first part; None if it has other weights.

    Raises ModelError if there are several.
    """
    if choose_weight_files({file.name for file in path.iterdir()}):
        return None
    variants = find_variants({file.name: file.stat().st_size for file in path.glob("*.gguf")})
    if len(variants) > 1:
        files = (f"{one.files[0]} ({format_bytes(one.num_bytes)})" for one in variants)
        raise ModelError(f"{path} has several GGUF models; give one of them: {', '.join(files)}")
    return path / variants[0].files[0] if variants else None


def _open_directory(path: Path, *, name: str, is_dummy: bool) -> ModelSource:
    from signalbox_worker.runner.loading.dummy_source import DummySource
    from signalbox_worker.runner.loading.hf_directory import DirectorySource

    kind = DummySource if is_dummy else DirectorySource
    return kind(transformer_folder(path), name=name, root=path)


def model_name(config: ModelConfig) -> str:
    """Returns the name that clients use for a model, unless `served_model_name` gives another."""
    try:
        path = find_model(config)
    except FileNotFoundError:
        return config.model.rpartition("/")[2]
    if path is None:
        name = parse_hub_name(config.model)
        assert name is not None
        return name.name
    return as_text(path.resolve().name if path.is_dir() else gguf_name(path.stem))


def as_text(path: str) -> str:
    """Returns a path or a part of one as text that a message can hold: a path may be no UTF-8."""
    return path.encode(errors="replace").decode()


def _open_file(path: Path, *, name: str) -> ModelSource:
    from signalbox_worker.runner.loading.gguf_model import GGUFSource

    return GGUFSource(path, name=name)


def weight_sizes(config: ModelConfig) -> WeightSizes | None:
    """Returns None for what cannot be known yet: a model on a hub that does not say, or one without
    weights.

    Raises ModelError or FileNotFoundError for a model that is not there, or is broken.
    """
    path, is_dummy = find_model(config), config.load_format == "dummy"
    if path is None and is_dummy:
        return None
    if path is not None or (path := find_cached(config.model, config.revision)):
        return _sizes_at(path, is_dummy=is_dummy)
    try:
        found = find_on_hub(config.model, config.revision)
    except ModelError:  # the worker tries again, and says what is wrong
        return None
    if isinstance(found, Path):
        return _sizes_at(found)
    with with_holes(found) as unfetched:
        return _sizes_at(unfetched)


def _sizes_at(path: Path, *, is_dummy: bool = False) -> WeightSizes | None:
    if path.is_file():
        return _open_file(path, name=path.name).sizes
    from signalbox_worker.runner.loading.hf_directory import DirectorySource

    source = DirectorySource(transformer_folder(path), name=path.name)
    return None if is_dummy else source.sizes
