"""Writes GGUF files of random blocks, whose types are those that llama-quantize picks.

No two rows of a matrix are alike, so that tokens of a mixture go to experts of their own.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType, GGUFWriter, TensorNameMap, get_tensor_name_map
from gguf import GGMLQuantizationType as BlockType
from gguf.constants import GGML_QUANT_SIZES, MODEL_ARCH_NAMES
from numpy.typing import NDArray

from signalbox_worker.files.checkpoints.gguf.names import FAMILIES

Shape = tuple[int, ...]
_HALVES: Mapping[str, tuple[float, ...]] = {
    "Q4_0": (5e-3,),
    "Q4_1": (5e-3, -3.75e-2),
    "Q5_0": (2e-3,),
    "Q8_0": (3e-4,),
    "Q4_K": (1e-4, 7.5e-4),
    "Q6_K": (1.5e-5,),
}
"""Floats of 16 bits in a block, with which its weights are about 0.02."""
_OFFSETS = {"Q6_K": 208}
"""Places of the floats of a block that does not begin with them."""
_MXFP4_EXPONENT = 120
FILE_TYPES = ("Q4_K_M", "MXFP4", "BF16", *_HALVES)
_NARROW = {BlockType.Q4_K: BlockType.Q5_0, BlockType.Q6_K: BlockType.Q8_0}
"""Types for rows that are no whole number of blocks of 256."""
_EXPERT = re.compile(r"experts\.\d+\.")
_AS_FLOATS = re.compile("ffn_gate_inp|shortconv.conv|ssm_conv1d")
_PUBLISHED: Mapping[str, Mapping[str, str]] = {
    "Lfm2MoeForCausalLM": {
        "model.norm.": "model.embedding_norm.",
        "recurrent.conv1d.": "conv.conv.",
        "recurrent.": "conv.",
        "e_score_correction_bias": "e_score_correction.bias",
    },
    "Qwen3_5ForCausalLM": {
        "recurrent.A": "linear_attn.A_log",
        "recurrent.dt_bias": "linear_attn.dt_proj.bias",
        "recurrent.": "linear_attn.",
    },
}
"""Parts of names as llama.cpp's table of names has them, where ours are others."""
_TABLES = ("token_embd.weight", "output.weight")
_LAYER = re.compile(r"blk\.(\d+)\.")


def save_gguf(
    path: Path,
    config: Mapping[str, Any],
    shapes: Mapping[str, Shape],
    file_type: str,
    *,
    is_counting: bool = False,
) -> Path:
    """Writes a model whose tensors have these names and shapes in Hugging Face's layout.

    One that counts has a head of its own, in which the row of a token is the embedding of the token
    before it; embeddings are so large that what the layers add does not matter.
    """
    [architecture] = config["architectures"]
    kind = next(key for key, one in FAMILIES.items() if one.architecture == architecture)
    writer, num_layers = GGUFWriter(path, kind), config["num_hidden_layers"]
    _add_fields(writer, config, vocab_size=config["vocab_size"])
    names = get_tensor_name_map({v: k for k, v in MODEL_ARCH_NAMES.items()}[kind], num_layers)
    published = _PUBLISHED.get(architecture, {})
    tensors = dict(_tensors(_renamed(shapes, published), names))
    types = {
        name: block_type(name, shape, file_type, num_layers, is_tied="output.weight" not in tensors)
        for name, shape in tensors.items()
    }
    if is_counting:
        types["token_embd.weight"] = types["output.weight"]
    _write_header(writer, tensors, types)
    rng = np.random.default_rng(0)
    for name, shape in tensors.items():
        is_table = is_counting and name in _TABLES
        own = _counting_table if is_table else partial(_values, rng)
        writer.write_tensor_data(own(name, shape, types[name]))
    writer.close()
    return path


def _write_header(
    writer: GGUFWriter, tensors: Mapping[str, Shape], types: Mapping[str, BlockType]
) -> None:
    for name, shape in tensors.items():
        row = _bytes_of_row(shape, types[name])
        num_bytes = int(np.prod(shape[:-1])) * row
        writer.add_tensor_info(
            name, (*shape[:-1], row), np.dtype(np.uint8), num_bytes, raw_dtype=types[name]
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _add_fields(writer: GGUFWriter, config: Mapping[str, Any], *, vocab_size: int) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    heads, kinds = config["num_key_value_heads"], config.get("layer_types")
    of_layers = [heads * (kind == "full_attention") for kind in kinds or ()]
    writer.add_head_count_kv(of_layers or heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if experts := config.get("num_experts") or config.get("num_local_experts"):
        width = config.get("moe_intermediate_size", config["intermediate_size"])
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(width)
    if "conv_L_cache" in config:
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    if "linear_num_key_heads" in config:
        _add_delta_rule(writer, config)
    if window := config.get("sliding_window"):
        writer.add_sliding_window(window)
    writer.add_vocab_size(vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["t", "0", *(f"t{index}" for index in range(vocab_size - 2))])
    writer.add_token_merges(["t 0"])  # llama.cpp takes no tokenizer without any


def _add_delta_rule(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Adds sizes of Qwen3.5's recurrent layers, and the part of each head that rotates."""
    heads, rotation = config["linear_num_value_heads"], config["rope_parameters"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * config["linear_value_head_dim"])
    writer.add_full_attention_interval(config["full_attention_interval"])
    writer.add_rope_freq_base(rotation["rope_theta"])
    rotated = int(config["head_dim"] * rotation["partial_rotary_factor"])
    writer.add_rope_dimension_count(rotated)
    writer.add_rope_dimension_sections([rotated // 2, 0, 0, 0])


def _renamed(shapes: Mapping[str, Shape], parts: Mapping[str, str]) -> dict[str, Shape]:
    found = dict[str, Shape]()
    for name, shape in shapes.items():
        for ours, theirs in parts.items():
            name = name.replace(ours, theirs)
        found[name] = shape
    return found


def _tensors(shapes: Mapping[str, Shape], names: TensorNameMap) -> Iterator[tuple[str, Shape]]:
    """Yields the names and shapes in a file, where the experts of a layer are one tensor."""
    counts = dict[str, int]()
    for name in shapes:
        joined = _EXPERT.sub("experts.", name)
        counts[joined] = counts.get(joined, 0) + 1
    for name, shape in shapes.items():
        joined = _EXPERT.sub("experts.", name)
        if count := counts.pop(joined, 0):
            own = names.get_name(joined, try_suffixes=(".weight", ".bias"))
            assert own is not None, name
            own += "" if own.endswith((".weight", ".bias", ".ssm_a")) else ".weight"
            yield own, (shape if joined == name else (count, *shape))


def block_type(
    name: str, shape: Shape, file_type: str, num_layers: int, *, is_tied: bool
) -> BlockType:
    """Returns the type of a tensor in a file of a type, as llama-quantize picks it."""
    if not name.endswith(".weight") or len(shape) == 1 or _AS_FLOATS.search(name):
        return BlockType.F32
    layer = _LAYER.match(name)
    if file_type == "MXFP4":
        return BlockType.MXFP4 if layer and "ffn_" in name else BlockType.Q8_0
    if file_type != "Q4_K_M":
        return BlockType[file_type]
    is_output = name == ("token_embd.weight" if is_tied else "output.weight")
    has_choice = re.search("attn_v|attn_qkv|ffn_down", name)
    is_wide = layer and has_choice and _has_more_bits(layer[1], num_layers)
    found = BlockType.Q6_K if is_output or is_wide else BlockType.Q4_K
    return _NARROW[found] if shape[-1] % GGML_QUANT_SIZES[found][0] else found


def _has_more_bits(layer: str, num_layers: int) -> bool:
    eighth, index = num_layers // 8, int(layer)
    return index < eighth or index >= 7 * num_layers // 8 or (index - eighth) % 3 == 2


def _bytes_of_row(shape: Shape, kind: BlockType) -> int:
    size, num_bytes = GGML_QUANT_SIZES[kind]
    return shape[-1] // size * num_bytes


def _counting_table(name: str, shape: Shape, kind: BlockType) -> NDArray[np.uint8]:
    """Returns large embeddings, or a head in which each of them is a row later."""
    values = _values(np.random.default_rng(1), name, shape, kind, is_large=True)
    later = int(name == "output.weight")
    return np.roll(values.reshape(shape[0], -1), later, axis=0).reshape(-1)


def _values(
    rng: np.random.Generator, name: str, shape: Shape, kind: BlockType, *, is_large: bool = False
) -> NDArray[np.uint8]:
    """Returns a tensor's bytes; those of large values are 256 times as large."""
    if kind is BlockType.F32:
        of_router = len(shape) == 2 and name.endswith(".weight")
        ones = np.full(shape, -1 if name.endswith("ssm_a") else "norm" in name, np.float32)
        values = rng.normal(scale=0.02, size=shape).astype(np.float32) if of_router else ones
        return values.reshape(-1).view(np.uint8)
    num_bytes = GGML_QUANT_SIZES[kind][1]
    count = int(np.prod(shape[:-1])) * _bytes_of_row(shape, kind) // num_bytes
    blocks = np.frombuffer(bytearray(rng.bytes(count * num_bytes)), np.uint8)
    blocks = blocks.reshape(count, num_bytes)
    if kind is BlockType.BF16:  # from 1/64 to 1/32, of either sign
        blocks[:, 1] = blocks[:, 1] & 0x80 | (0x40 if is_large else 0x3C)
        blocks[:, 0] |= 0x80
    elif kind is BlockType.MXFP4:
        blocks[:, 0] = _MXFP4_EXPONENT
    else:
        floats = np.array(_HALVES[kind.name]) * (256 if is_large else 1)
        halves = floats.astype(np.float16).view(np.uint8)
        first = _OFFSETS.get(kind.name, 0)
        blocks[:, first : first + len(halves)] = halves
    return blocks.reshape(-1)
