"""Names and values of the tensors of decoders with recurrent layers, as native programs have them.

Each recurrent layer has its parts as `recurrent`, whatever the family calls them; the rest has
Llama's names. A convolution is [channels, kernel], and decay is a negative rate, not its logarithm.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import (
    FURTHER,
    check_shape,
    distinct_tensors,
)
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.models.mixture_config import MoeConfig
from signalbox_worker.models.recurrence import DeltaRule
from signalbox_worker.runner.native.weight_shapes import RECURRENT

_LFM2 = {
    r"^model\.embedding_norm\.": "model.norm.",
    r"\.operator_norm\.": ".input_layernorm.",
    r"\.ffn_norm\.": ".post_attention_layernorm.",
    r"\.self_attn\.out_proj\.": ".self_attn.o_proj.",
    r"\.([qk])_layernorm\.": r".\1_norm.",
    r"\.feed_forward\.expert_bias$": ".mlp.gate.e_score_correction_bias",
    r"\.feed_forward\.": ".mlp.",
    r"\.w1\.": ".gate_proj.",
    r"\.w3\.": ".up_proj.",
    r"\.w2\.": ".down_proj.",
    r"\.conv\.conv\.": f".{RECURRENT}.conv1d.",
    r"\.conv\.": f".{RECURRENT}.",
}
_NEMOTRON = {
    r"^backbone\.": "model.",
    r"^model\.embeddings\.": "model.embed_tokens.",
    r"^model\.norm_f\.": "model.norm.",
    r"(\.\d+)\.norm\.": r"\1.input_layernorm.",
    r"\.mixer\.([qkvo]_proj)\.": r".self_attn.\1.",
    r"\.mixer\.(in_proj|conv1d|dt_bias|A_log|D|norm|out_proj)\b": rf".{RECURRENT}.\1",
    r"\.mixer\.": ".mlp.",
}
_RENAMED: Mapping[str, dict[str, str]] = {
    "Lfm2": _LFM2,
    "NemotronH": _NEMOTRON,
    "Qwen3": {r"\.linear_attn\.": f".{RECURRENT}."},
    "GraniteMoeHybrid": {r"\.mamba\.": f".{RECURRENT}."},
}
"""Parts of names by the beginning of the architecture."""
SHARED_PROJECTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "GraniteMoeHybridForCausalLM": {
        "shared_mlp.input_linear": ("mlp.gate_proj", "mlp.up_proj"),
        "shared_mlp.output_linear": ("mlp.down_proj",),
    }
}
"""Modules of a layer's feed-forward that Granite's checkpoints have, of a model without experts."""
_PLAIN = re.compile(r"[\w.]+")
_ONE_PART = re.compile(rf"\.(self_attn|{RECURRENT}|mlp)\.")
_SHARED = re.compile(r"(.*\.)shared_mlp\.(in|out)put_linear\.weight")


def _renamed_parts(config: DecoderConfig) -> dict[str, str]:
    """Returns the parts of names of a family with recurrent layers; none of another family."""
    if config.recurrence is None:
        return {}
    return next(one for key, one in _RENAMED.items() if config.architecture.startswith(key))


def their_module(name: str, config: DecoderConfig) -> str:
    """Returns the name that a family has for a module, of that which programs have."""
    for pattern, own in reversed(_renamed_parts(config).items()):
        theirs = pattern.replace(r"\.", ".")
        if _PLAIN.fullmatch(theirs):
            name = f"{name}.".replace(own, theirs)[:-1]
    if config.has_one_part:
        return _ONE_PART.sub(".mixer.", name)
    return name


def with_native_names(
    stored: Mapping[str, StoredTensor], config: DecoderConfig
) -> dict[str, StoredTensor]:
    """Returns the tensors of a family with recurrent layers by the names that programs have for
    them, those that are fused in parts; nothing is read. Raises ModelError for other shapes."""
    rules = _renamed_parts(config)

    def renamed() -> Iterator[tuple[str, str, StoredTensor]]:
        for theirs, tensor in stored.items():
            if theirs.startswith(FURTHER):
                continue
            name = theirs
            for pattern, own in rules.items():
                name = re.sub(pattern, own, name)
            for part, one in _parts(name, tensor, config):
                yield part, theirs, one

    return distinct_tensors(renamed())


def _parts(
    name: str, tensor: StoredTensor, config: DecoderConfig
) -> Iterator[tuple[str, StoredTensor]]:
    """Yields the tensors that one of a checkpoint holds."""
    start, _, end = name.rpartition(".")
    if shared := _SHARED.fullmatch(name):
        yield from _of_shared(shared[1], tensor, config, is_first=shared[2] == "in")
    elif name.endswith(f"{RECURRENT}.A_log"):
        yield f"{start}.A", _changed(tensor, tensor.shape, lambda values: -np.exp(values))
    elif name.endswith(f"{RECURRENT}.conv1d.weight") and len(tensor.shape) == 3:
        shape = (tensor.shape[0], tensor.shape[-1])
        yield name, _changed(tensor, shape, lambda values: values.reshape(shape))
    elif isinstance(config.recurrence, DeltaRule) and end == "weight":
        yield from _of_delta_rule(name, start, tensor, config.recurrence)
    else:
        yield name, tensor


def _of_shared(
    layer: str, tensor: StoredTensor, config: DecoderConfig, *, is_first: bool
) -> Iterator[tuple[str, StoredTensor]]:
    """Yields Granite's feed-forward of all tokens, whose gate stands before the rest."""
    prefix = f"{layer}mlp"
    if isinstance(config, MoeConfig):
        prefix = f"{layer}{config.block}.{config.shared_name}"
    if not is_first:
        yield f"{prefix}.down_proj.weight", tensor
        return
    count = tensor.shape[0] // 2
    for index, part in enumerate(("gate", "up")):
        rows = np.arange(index * count, (index + 1) * count)
        yield f"{prefix}.{part}_proj.weight", _rows(tensor, rows)


def _of_delta_rule(
    name: str, start: str, tensor: StoredTensor, rule: DeltaRule
) -> Iterator[tuple[str, StoredTensor]]:
    """Yields the parts of Qwen3-Next's fused matrices, whose rows are in the order of key heads."""
    per_key = rule.num_value_heads // rule.num_key_heads
    if start.endswith(".in_proj_qkvz"):
        values = per_key * rule.value_size
        sizes = {"qkv": (rule.key_size, rule.key_size, values), "z": (values,)}
    elif start.endswith(".in_proj_ba"):
        sizes = {"b": (per_key,), "a": (per_key,)}
    else:
        yield name, tensor
        return
    size = sum(map(sum, sizes.values()))
    check_shape(name, tensor.shape, (rule.num_key_heads * size, *tensor.shape[1:]))
    places, first = np.arange(rule.num_key_heads * size).reshape(rule.num_key_heads, size), 0
    for part, widths in sizes.items():
        found = []
        for width in widths:
            found.append(places[:, first : first + width].reshape(-1))
            first += width
        yield f"{start.rpartition('_')[0]}_{part}.weight", _rows(tensor, np.concatenate(found))


def _rows(tensor: StoredTensor, rows: NDArray[np.int64]) -> StoredTensor:
    """Returns some rows of a matrix, as floats."""
    read = lru_cache(maxsize=1)(tensor.read)
    return StoredTensor((len(rows), *tensor.shape[1:]), lambda: read()[rows], dtype=tensor.dtype)


def _changed(
    tensor: StoredTensor, shape: tuple[int, ...], change: Callable[[AnyArray], AnyArray]
) -> StoredTensor:
    return StoredTensor(shape, lambda: change(to_float32(tensor.read())))
