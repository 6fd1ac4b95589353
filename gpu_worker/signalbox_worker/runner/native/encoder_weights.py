"""The weights of an encoder as a native program packs them, each read when it is taken."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from signalbox_kernels.floats import DTYPES, AnyArray, to_dtype, to_float32
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import (
    check_names,
    check_shape,
    distinct_tensors,
)
from signalbox_worker.models.encoder_config import (
    DISTANCE_BIASES,
    BertConfig,
    EncoderConfig,
    ModernBertConfig,
    NomicBertConfig,
    is_ignored,
)

Shape = tuple[int, ...]


def encoder_shapes(config: EncoderConfig) -> dict[str, Shape]:
    """Returns all tensors by their names in checkpoints of the bare encoder."""
    if isinstance(config, NomicBertConfig):
        return _nomic_bert(config)
    return _modernbert(config) if isinstance(config, ModernBertConfig) else _bert(config)


class EncoderWeights:
    """Tensors by their names in checkpoints of the bare encoder."""

    def __init__(
        self,
        config: EncoderConfig,
        stored: Mapping[str, StoredTensor],
        *,
        dtype: np.dtype[Any],
        on_taken: Callable[[int, int], None] = lambda num_taken, num_total: None,
    ) -> None:
        """Reads nothing yet. Raises ModelError if tensors are missing, or not of this model, or
        have other shapes.

        Args:
            dtype: type of matrices, and that all vectors are rounded to.
            on_taken: called after each tensor with the number taken so far and that of all.
        """
        self.dtype, self._on_taken = dtype, on_taken
        self._shapes = encoder_shapes(config)
        self._stored = _matched(self._shapes, stored)
        for name, tensor in self._stored.items():
            check_shape(name, tensor.shape, self._shapes[name])
        self._num_taken = 0

    def matrix(self, name: str) -> AnyArray:
        """Returns a matrix; where `dtype` is float32, which computes with all types, as stored."""
        values = self._take(name)
        is_as_stored = self.dtype == np.float32 and values.dtype in DTYPES.values()
        return values if is_as_stored else to_dtype(values, self.dtype)

    def matrices(self, *names: str) -> AnyArray:
        """Returns several matrices as one, with the rows of all."""
        return np.concatenate([self.matrix(name) for name in names])

    def vector(self, name: str) -> AnyArray:
        """Returns a vector as float32."""
        return to_float32(to_dtype(self._take(name), self.dtype))

    def vector_if_any(self, name: str) -> AnyArray | None:
        """Returns the same, or None if the encoder has nothing of this name."""
        return self.vector(name) if name in self._shapes else None

    def _take(self, name: str) -> AnyArray:
        self._num_taken += 1
        self._on_taken(self._num_taken, len(self._shapes))
        return self._stored[name].read()


def _matched(
    shapes: Mapping[str, Shape],
    stored: Mapping[str, StoredTensor],
) -> dict[str, StoredTensor]:
    """Returns the tensors by the encoder's own names, which may stand behind a prefix."""
    found, unexpected = list[tuple[str, str, StoredTensor]](), []
    for name, tensor in stored.items():
        prefix, _, behind = name.partition(".")
        if own := next((one for one in (name, behind) if one in shapes), None):
            found.append((own, name, tensor))
        elif not (is_ignored(name, "") or is_ignored(name, prefix)):
            unexpected.append(name)
    own_tensors = distinct_tensors(found)
    check_names(unexpected, missing=shapes.keys() - own_tensors.keys())
    return own_tensors


def _bert(config: EncoderConfig) -> dict[str, Shape]:
    assert isinstance(config, BertConfig), "of a family that has a program"
    size, inner = config.hidden_size, config.intermediate_size
    embeddings = "embeddings."
    num_positions = config.max_position + config.position_offset
    shapes: dict[str, Shape] = {
        f"{embeddings}word_embeddings.weight": (config.vocab_size, size),
        f"{embeddings}position_embeddings.weight": (num_positions, size),
    }
    if config.num_token_types:
        shapes[f"{embeddings}token_type_embeddings.weight"] = (config.num_token_types, size)
    if config.num_distance_buckets:
        shapes[DISTANCE_BIASES] = (config.num_distance_buckets, config.num_heads)
    shapes |= _vectors(f"{embeddings}LayerNorm", size)
    for index in range(config.num_layers):
        layer = f"encoder.layer.{index}."
        for part in ("query", "key", "value"):
            shapes |= _product(f"{layer}attention.self.{part}", size, size)
        shapes |= _product(f"{layer}attention.output.dense", size, size)
        shapes |= _vectors(f"{layer}attention.output.LayerNorm", size)
        shapes |= _product(f"{layer}intermediate.dense", inner, size)
        shapes |= _product(f"{layer}output.dense", size, inner)
        shapes |= _vectors(f"{layer}output.LayerNorm", size)
    return shapes


def _modernbert(config: ModernBertConfig) -> dict[str, Shape]:
    size, inner = config.hidden_size, config.intermediate_size
    of_norm, of_attention = config.norm_bias, config.attention_bias
    shapes: dict[str, Shape] = {"embeddings.tok_embeddings.weight": (config.vocab_size, size)}
    for name in ("embeddings.norm", "final_norm"):
        shapes |= _vectors(name, size, has_bias=of_norm)
    for index in range(config.num_layers):
        layer = f"layers.{index}."
        if index:
            shapes |= _vectors(f"{layer}attn_norm", size, has_bias=of_norm)
        shapes |= _vectors(f"{layer}mlp_norm", size, has_bias=of_norm)
        shapes |= _product(f"{layer}attn.Wqkv", 3 * size, size, has_bias=of_attention)
        shapes |= _product(f"{layer}attn.Wo", size, size, has_bias=of_attention)
        shapes |= _product(f"{layer}mlp.Wi", 2 * inner, size, has_bias=config.mlp_bias)
        shapes |= _product(f"{layer}mlp.Wo", size, inner, has_bias=config.mlp_bias)
    return shapes


def _nomic_bert(config: NomicBertConfig) -> dict[str, Shape]:
    size, inner, embeddings = config.hidden_size, config.intermediate_size, "embeddings."
    shapes: dict[str, Shape] = {
        f"{embeddings}word_embeddings.weight": (config.vocab_size, size),
        f"{embeddings}token_type_embeddings.weight": (config.num_token_types, size),
    }
    shapes |= _vectors(f"{embeddings}LayerNorm", size)
    for index in range(config.num_layers):
        layer = f"layers.{index}."
        for part in "qkvo":
            shapes |= _product(f"{layer}self_attn.{part}_proj", size, size, has_bias=False)
        for part in ("gate", "up"):
            shapes |= _product(f"{layer}mlp.{part}_proj", inner, size, has_bias=False)
        shapes |= _product(f"{layer}mlp.down_proj", size, inner, has_bias=False)
        for part in ("attention", "mlp"):
            shapes |= _vectors(f"{layer}post_{part}_layernorm", size)
    return shapes


def _product(
    name: str, num_rows: int, num_columns: int, *, has_bias: bool = True
) -> dict[str, Shape]:
    return _vectors(name, num_rows, has_bias=has_bias) | {f"{name}.weight": (num_rows, num_columns)}


def _vectors(name: str, size: int, *, has_bias: bool = True) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (size,)}
    return shapes | ({f"{name}.bias": (size,)} if has_bias else {})
