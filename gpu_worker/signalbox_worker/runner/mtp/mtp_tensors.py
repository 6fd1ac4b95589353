"""Finds the tensors of a model's MTP layer in a checkpoint.

They lie behind the last layer, by the names that DeepSeek-V3's checkpoints have for them, or beside
the model as Qwen3-Next's. The table of embeddings and the head that some checkpoints have there are
those of the model, and are left out. Of several MTP layers the first is taken.
"""

from collections.abc import Mapping
from dataclasses import replace

from signalbox_kernels.floats import AnyArray
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import FURTHER, check_shape
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.runner.loading.model_source import ModelSource
from signalbox_worker.runner.native.native_model import separated
from signalbox_worker.runner.native.weight_shapes import (
    MTP_NORM,
    NORM,
    OF_STATES,
    OF_TOKENS,
    STATE_NORM,
    TOKEN_NORM,
    layer_prefix,
)

_JOINED = "eh_proj.weight"
"""Matrix that reads an embedding and a hidden state, one behind the other."""
_OF_THE_MODEL = ("embed_tokens.weight", "shared_head.head.weight")
_BESIDE = {
    f"{FURTHER}layers.0.": "",
    f"{FURTHER}fc.": "eh_proj.",
    f"{FURTHER}pre_fc_norm_embedding.": f"{TOKEN_NORM}.",
    f"{FURTHER}pre_fc_norm_hidden.": f"{STATE_NORM}.",
    f"{FURTHER}norm.": f"{MTP_NORM}.",
}
"""Beginnings of names beside a model, and of those within the layer."""


def with_mtp_layer(config: DecoderConfig) -> DecoderConfig:
    """Returns a decoder with its first MTP layer as one more layer."""
    return replace(config, num_layers=config.num_layers + 1, mtp_layer=config.num_layers)


def has_mtp_layer(source: ModelSource, config: DecoderConfig) -> bool:
    """Says whether a checkpoint has an MTP layer behind the layers of a decoder."""
    return f"{layer_prefix(config.num_layers)}{_JOINED}" in _named(source, config)


def mtp_tensors(source: ModelSource, config: DecoderConfig) -> Mapping[str, StoredTensor]:
    """Returns the tensors of a decoder and its MTP layer by the names that programs have for them.

    Args:
        config: the decoder without the layer.

    Raises ModelError for one of another shape.
    """
    prefix, width = layer_prefix(config.num_layers), config.hidden_size
    found = dict(separated(_named(source, config), with_mtp_layer(config)))
    joined = found.pop(f"{prefix}{_JOINED}")
    check_shape(f"{prefix}{_JOINED}", joined.shape, (width, 2 * width))
    found[f"{prefix}{OF_TOKENS}"] = _columns(joined, range(width))
    found[f"{prefix}{OF_STATES}"] = _columns(joined, range(width, 2 * width))
    found.setdefault(f"{prefix}{MTP_NORM}.weight", found[f"{NORM}.weight"])  # as in llama.cpp
    return found


def _named(source: ModelSource, config: DecoderConfig) -> dict[str, StoredTensor]:
    prefix, found = layer_prefix(config.num_layers), dict[str, StoredTensor]()
    for name, tensor in (source.stored() | source.further()).items():
        start = next((one for one in _BESIDE if name.startswith(one)), None)
        own = name if start is None else f"{prefix}{_BESIDE[start]}{name.removeprefix(start)}"
        if own.removeprefix(prefix) not in _OF_THE_MODEL:
            found[own] = tensor
    return found


def _columns(tensor: StoredTensor, columns: range) -> StoredTensor:
    """Returns some columns of a matrix, in blocks if these are whole."""
    taken, blocks, read_rows = slice(columns.start, columns.stop), tensor.blocks, tensor.read_rows

    def of_rows(start: int, end: int) -> AnyArray:
        assert read_rows is not None
        return read_rows(start, end)[:, taken]

    is_whole = blocks is not None and blocks.has_whole_blocks(columns)
    return StoredTensor(
        (tensor.shape[0], len(columns)),
        lambda: tensor.read()[:, taken],
        blocks=blocks.columns(columns) if blocks is not None and is_whole else None,
        rounding=tensor.rounding,
        dtype=tensor.dtype,
        read_rows=None if read_rows is None else of_rows,
    )
