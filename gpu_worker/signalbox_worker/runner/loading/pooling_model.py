"""Finds out whether and how an opened model pools, out of its files.

Beside its outputs, these are the lengths that it takes, the sizes that embeddings may be cut to,
and the files that say how texts become prompts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from signalbox_contract.pooling import PoolingModel
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.checkpoints.gguf.pooling import GGUF_POOLING
from signalbox_worker.files.checkpoints.json_file import read_json
from signalbox_worker.models import ModelShape, only_pools
from signalbox_worker.models.pooling.matryoshka import matryoshka_dimensions
from signalbox_worker.models.pooling.sentence_transformers import (
    MODULES,
    SETTINGS,
    SavedModules,
    has_modules,
    read_modules,
    transformer_config_file,
)
from signalbox_worker.models.pooling.transformer_settings import (
    check_transformer_settings,
    longest_sequence,
)
from signalbox_worker.runner.loading.model_source import ModelSource
from signalbox_worker.runner.loading.pooled_outputs import PooledOutputs, pooled_outputs

_NO_LIMIT = 1 << 30
"""Tokenizers without a longest sequence name a larger number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPooling:
    """Pooling of a model: its outputs and the length of its prompts."""

    model: PoolingModel
    outputs: PooledOutputs
    max_length: int | None
    """Longest sequence that the files name, in tokens."""
    texts: Mapping[str, Path]
    """Files that say how texts become prompts and what outputs mean, by the names for routers."""


def is_pooling(model_config: ModelConfig, source: ModelSource) -> bool:
    """Says whether a model is to pool; it may not be able to."""
    if model_config.runner != "auto":
        return model_config.runner == "pooling"
    return has_modules(source.root) or only_pools(source.config) or GGUF_POOLING in source.config


def not_pooled(architecture: str) -> ModelError:
    """Returns the error for a model whose hidden states are not pooled."""
    return ModelError(
        f"{architecture} is not served with --runner pooling; use an encoder, or a model of the "
        "Llama or Gemma family"
    )


def open_pooling(
    model_config: ModelConfig, source: ModelSource, config: Any, shape: ModelShape
) -> OpenedPooling:
    """Reads how a model pools. Raises ModelError if it cannot.

    Args:
        config: the family's own.
    """
    if not shape.hidden_size:
        raise not_pooled(shape.architecture)
    root = source.root
    transformer = _transformer_config_file(source)
    saved = read_modules(root) if root is not None and has_modules(root) else SavedModules()
    if transformer is not None:
        late = bool(saved.token_modules)
        check_transformer_settings(transformer, makes_token_vectors=late)
    outputs = pooled_outputs(model_config, source, config, shape, saved)
    if outputs.task == "token_embed" and not shape.is_bidirectional:
        raise ModelError(
            f"{shape.architecture} makes vectors of tokens, which are served of encoders alone: "
            "a prompt is computed in one step"
        )
    return OpenedPooling(
        model=PoolingModel(
            task=outputs.task,
            num_outputs=outputs.num_outputs,
            is_bidirectional=shape.is_bidirectional,
            reads_all_tokens=shape.is_bidirectional or outputs.modes != ("lasttoken",),
            activation=outputs.activation,
            dimensions=_dimensions(source, outputs),
            num_token_outputs=outputs.num_token_outputs if shape.is_bidirectional else 0,
        ),
        outputs=outputs,
        max_length=_max_length(source),
        texts=_texts(source, saved),
    )


def _dimensions(source: ModelSource, outputs: PooledOutputs) -> tuple[int, ...]:
    if outputs.task != "embed":
        return ()
    return matryoshka_dimensions(source.config, source.root, outputs.num_outputs)


def _transformer_config_file(source: ModelSource) -> Path | None:
    return None if source.directory is None else transformer_config_file(source.directory)


def _max_length(source: ModelSource) -> int | None:
    """Returns the longest sequence by sentence-transformers' file, or else by the tokenizer's."""
    if source.directory is None:
        return None
    file = _transformer_config_file(source)
    length = longest_sequence(read_json(file)) if file is not None else None
    if length is None:
        tokenizer = json.loads(source.tokenizer_files()["tokenizer_config.json"])
        length = tokenizer.get("model_max_length")
    is_number = isinstance(length, int | float) and 1 < length < _NO_LIMIT
    return int(length) if is_number and length is not None else None


def _texts(source: ModelSource, saved: SavedModules) -> dict[str, Path]:
    """Returns the files for routers; those of the model itself by the same names everywhere."""
    if source.directory is None or source.root is None:
        return {}
    files = {"config.json": source.directory / "config.json"}
    transformer = _transformer_config_file(source)
    if transformer is not None:
        files["sentence_bert_config.json"] = transformer
    for name in (MODULES, SETTINGS):
        files[name] = source.root / name
    if saved.have_pooling:
        files["pooling_config.json"] = saved.head.folder / "config.json"
    return {name: file for name, file in files.items() if file.is_file()}
