"""Opens a model: finds its files, its family and its configuration, and reads no weights."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from signalbox_contract.model import ModelInfo
from signalbox_contract.startup import ReportProgress, StartupPhase, StartupProgress
from signalbox_kernels import build
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.files.checkpoints.quantization import Quantization
from signalbox_worker.files.checkpoints.weight_names import are_equal, find
from signalbox_worker.files.hub.hub_model import HubModel
from signalbox_worker.files.quantised.configuration import quantised_checkpoint
from signalbox_worker.missing_packages import needing_pytorch
from signalbox_worker.models import DecoderConfig, ModelShape, ModelSpec, find_model
from signalbox_worker.models.plugins import import_plugins
from signalbox_worker.runner.loading.block_content import foreign_code
from signalbox_worker.runner.loading.content_files import ContentFile
from signalbox_worker.runner.loading.dummy_source import DummySource
from signalbox_worker.runner.loading.fingerprint import fingerprint
from signalbox_worker.runner.loading.generation_config import (
    read_generation_config,
    within_vocabulary,
)
from signalbox_worker.runner.loading.model_source import (
    ModelSource,
    as_text,
    open_model,
    source_at,
)
from signalbox_worker.runner.loading.pooling_model import OpenedPooling, is_pooling, open_pooling
from signalbox_worker.runner.loading.unfetched_model import without_weights

logger = logging.getLogger(__name__)

THROUGH_PYTORCH = "it runs through PyTorch and transformers"
"""Reason why a model needs the extra `worker`."""


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model on disk, the family that serves it, and what that read of its config.json."""

    source: ModelSource
    spec: ModelSpec
    config: Any
    """The family's own."""
    shape: ModelShape
    """Properties of it that the rest of the worker reads."""
    pooling: OpenedPooling | None = None
    """None of a model that generates."""
    files: tuple[ContentFile, ...] = ()
    """Files that its KV depends on, as they were before any of them was loaded."""

    @property
    def tied_tables(self) -> tuple[str, str] | None:
        """Names of the table of embeddings and of the head, if they are one matrix."""
        is_tied = self.shape.tie_embeddings and self.pooling is None
        return (self.spec.table, self.spec.head) if is_tied else None

    @property
    def is_native_only(self) -> bool:
        """True if nothing else of ours computes it: PyTorch does so through transformers."""
        return self.spec.is_native_only or getattr(self.config, "is_native_only", False)

    def tokenizer_files(self) -> dict[str, bytes]:
        """Returns the files of the tokenizer, and those that say how texts are pooled."""
        texts = {} if self.pooling is None else self.pooling.texts
        files = {name: file.read_bytes() for name, file in texts.items()}
        return files | self.source.tokenizer_files()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A rank's shard of a model, without weights."""

    device: str
    dtype: str
    device_bytes: int | None
    """Free bytes of the device that the worker may use; None stands for RAM."""
    block_bytes: int
    """Bytes of a KV block; 0 of a model that keeps no K and V."""
    quantization: Quantization | None


def open_with_config(model_config: ModelConfig, progress: ReportProgress) -> OpenedModel:
    """Raises ModelError or FileNotFoundError with what is wrong and the remedy."""
    build.on_compiled = partial(_report_compiled, progress)
    source = open_model(model_config, progress, partial(check_unfetched, model_config))
    return open_source(model_config, source)


def open_source(model_config: ModelConfig, source: ModelSource) -> OpenedModel:
    """Reads the configuration of what is on the disk. Raises ModelError, as `open_with_config`."""
    plugins = import_plugins(model_config.plugins, source.config)
    spec, config, pools = _family_of(model_config, source)
    with needing_pytorch(THROUGH_PYTORCH):
        config = _with_stored_head(config, spec, source)
        shape = ModelShape.of(config)
    if pools:
        pooling = open_pooling(model_config, source, config, shape)
        if isinstance(config, DecoderConfig):
            config = replace(config, has_head=False)
        return OpenedModel(source, spec, config, shape, pooling)
    code = foreign_code(plugins, source.root if model_config.trust_remote_code else None)
    files = tuple(ContentFile.note(path) for path in (*source.files(), *code))
    return OpenedModel(source, spec, config, shape, files=files)


def _family_of(model_config: ModelConfig, source: ModelSource) -> tuple[ModelSpec, Any, bool]:
    """Returns the family that serves a model, what that reads of its configuration, and whether
    it pools. Raises ModelError if none serves it."""
    pools = is_pooling(model_config, source)
    with needing_pytorch(THROUGH_PYTORCH):
        spec = find_model(
            source.config,
            impl="signalbox" if pools else model_config.model_impl,
            directory=source.directory,
            trust_remote_code=model_config.trust_remote_code,
        )
        config = spec.read_config(source.config)
        shape = ModelShape.of(config)
    if pools:
        if model_config.model_impl == "transformers":
            raise ModelError("--model-impl transformers has no pooling; leave it out")
    elif not spec.generates or shape.is_bidirectional:
        raise ModelError(f"{shape.architecture} generates no tokens; use --runner pooling")
    elif model_config.convert != "auto":
        raise ModelError(f"--convert {model_config.convert} takes --runner pooling")
    return spec, config, pools


def check_unfetched(model_config: ModelConfig, model: HubModel) -> None:
    """Refuses a model of which the configuration alone tells that it is not served, before its
    weights are fetched. Raises ModelError."""
    with without_weights(model) as path:
        check_configuration(model_config, source_at(path, name=model.name, is_dummy=True))


def check_configuration(model_config: ModelConfig, source: ModelSource) -> None:
    """Refuses a family, a field or a form of weights that is not served. Raises ModelError."""
    import_plugins(model_config.plugins, source.config)
    _family_of(model_config, source)
    quantised_checkpoint(source.config)


def for_pytorch(
    opened: OpenedModel, model_config: ModelConfig, parallel: ParallelConfig, why_not: str
) -> OpenedModel:
    """Returns a model as PyTorch computes it.

    Args:
        why_not: what keeps it from running natively.

    Raises ModelError for a form of it that is computed natively alone.
    """
    if not opened.is_native_only:
        return opened
    source = opened.source
    if model_config.model_impl == "signalbox":
        raise ModelError(
            f"{opened.shape.architecture} of --model-impl signalbox is computed natively alone, "
            f"but {why_not}; leave that option out"
        )
    if parallel.num_ranks > 1:
        raise ModelError(
            f"{parallel.sizes}: several ranks compute {opened.shape.architecture} natively "
            f"alone, but {why_not}; use other sizes, such as 1"
        )
    spec = find_model(
        source.config,
        impl="transformers",
        directory=source.directory,
        trust_remote_code=model_config.trust_remote_code,
    )
    config = spec.read_config(source.config)
    return replace(opened, spec=spec, config=config, shape=ModelShape.of(config))


def _with_stored_head(config: Any, spec: ModelSpec, source: ModelSource) -> Any:
    """Returns the configuration untied if the files hold a head of its own, as in transformers:
    those of a merged adapter do, and the config.json of its base model is left."""
    if isinstance(source, DummySource) or not ModelShape.of(config).tie_embeddings:
        return config
    stored = source.stored()
    table, head = find(stored, spec.table), find(stored, spec.head)
    if table is None or head is None or are_equal(table, head):
        return config
    logger.warning(
        "%s holds %s, which differs from %s: it is used, although tie_word_embeddings is true",
        source.name,
        spec.head,
        spec.table,
    )
    return replace(config, tie_embeddings=False)


def _report_compiled(progress: ReportProgress, num_done: int, num_total: int) -> None:
    progress(StartupProgress(StartupPhase.COMPILE, num_done, num_total))


def model_info(model_config: ModelConfig, opened: OpenedModel, dtype: str) -> ModelInfo:
    """Describes a model whose floats are computed in `dtype`. Raises ModelError."""
    source, shape = opened.source, opened.shape
    length = window(model_config, opened)
    generation = read_generation_config(model_config, source)
    pooling = opened.pooling
    return ModelInfo(
        name=model_config.served_name or source.name,
        architecture=shape.architecture,
        dtype=dtype,
        vocab_size=shape.vocab_size,
        max_model_len=length,
        eos_token_ids=within_vocabulary(generation.eos_token_ids, shape.vocab_size),
        sampling_defaults=generation.defaults,
        fingerprint=fingerprint([*source.files(), *(pooling.outputs.files if pooling else ())]),
        pooling=pooling.model if pooling else None,
        started_as=(as_text(model_config.model),),
    )


def window(model_config: ModelConfig, opened: OpenedModel) -> int:
    """Returns the longest sequence in tokens. Raises ModelError if the model takes fewer."""
    shape = opened.shape
    length = model_config.max_model_len or _usual_length(shape)
    if opened.pooling is not None and model_config.max_model_len is None:
        length = min(length, opened.pooling.max_length or length)
    if length > shape.max_position:
        raise ModelError(
            f"max_model_len is {length}; {opened.source.name} allows at most {shape.max_position}"
        )
    return length


def _usual_length(shape: ModelShape) -> int:
    if shape.usual_length != shape.max_position:
        logger.info(
            "max_model_len is %d, the original window; --max-model-len takes up to %d, with the "
            "rotation of a longer window for all prompts",
            shape.usual_length,
            shape.max_position,
        )
    return shape.usual_length
