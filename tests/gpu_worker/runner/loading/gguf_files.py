"""Writes GGUF files as llama.cpp's converter would."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from signalbox_worker.config import ModelConfig
from signalbox_worker.runner.loading.model_source import ModelSource, open_model
from tests.gpu_worker.tiny_models import make_model
from tests.kernels.native.matrices import SCALES_AT
from tests.transformers_demo import DEMO, read

ARCHITECTURES = {
    **dict.fromkeys(["llama2", "llama3", "llama-yarn", "llama-biased"], "llama"),
    **dict.fromkeys(["mistral", "mixtral"], "llama"),
    **{name: name for name in ("qwen2", "qwen3", "granite", "gemma", "gemma2", "gemma3")},
    "gpt-oss": "gpt-oss",
    "granite-moe": "granitemoe",
    "qwen2-moe": "qwen2moe",
    "qwen3-moe": "qwen3moe",
    "olmoe": "olmoe",
    **dict.fromkeys(["olmo2", "olmo3"], "olmo2"),
    "ministral3": "mistral3",
    "cohere2": "cohere2",
}
"""llama.cpp's names of the families of `tests.gpu_worker.tiny_models`."""
_FIELDS = {
    "num_hidden_layers": "add_block_count",
    "max_position_embeddings": "add_context_length",
    "hidden_size": "add_embedding_length",
    "intermediate_size": "add_feed_forward_length",
    "num_attention_heads": "add_head_count",
    "num_key_value_heads": "add_head_count_kv",
    "rms_norm_eps": "add_layer_norm_rms_eps",
    "layer_norm_eps": "add_layer_norm_eps",
    "logit_scale": "add_logit_scale",
    "attention_multiplier": "add_attention_scale",
    "embedding_multiplier": "add_embedding_scale",
    "residual_multiplier": "add_residual_scale",
    "logits_scaling": "add_logit_scale",
    "head_dim": "add_key_length",
    "attn_logit_softcapping": "add_attn_logit_softcapping",
    "final_logit_softcapping": "add_final_logit_softcapping",
    "sliding_window": "add_sliding_window",
    "shared_expert_intermediate_size": "add_expert_shared_feed_forward_length",
    "num_experts_per_tok": "add_expert_used_count",
    "moe_intermediate_size": "add_expert_feed_forward_length",
}
_SCALING_FIELDS = {
    "factor": "add_rope_scaling_factor",
    "original_max_position_embeddings": "add_rope_scaling_orig_ctx_len",
    "beta_fast": "add_rope_scaling_yarn_beta_fast",
    "beta_slow": "add_rope_scaling_yarn_beta_slow",
}
_GEMMA4 = {
    "layer_scalar": ("layer_scalar", "weight"),
    "router.scale": ("router.proj", "scale"),
    "router.per_expert_scale": ("experts.down_proj", "scale"),
}
"""Vectors by the ends of their names: the tensors that they are named as, and their ends there."""
_ADDERS = {bool: "add_bool", int: "add_int64", float: "add_float32", str: "add_string"}


def open_path(path: Path | str, **fields: Any) -> ModelSource:
    return open_model(ModelConfig(model=str(path), **fields), lambda _: None)


def open_gguf(
    folder: Path, family: str, extra: dict[str, Any] | None = None, **flags: Any
) -> ModelSource:
    """Opens a file of a random model of a family."""
    reference = make_model(folder / "hf", family, **flags)
    architecture = ARCHITECTURES[family]
    return open_path(make_gguf(folder / "x.gguf", reference, architecture, extra=extra))


@contextmanager
def writing(path: Path, architecture: str, **options: Any) -> Iterator[gguf.GGUFWriter]:
    """Writes what is added to the writer at the end."""
    writer = gguf.GGUFWriter(path, architecture, **options)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_blocks(
    kind: GGMLQuantizationType, shape: Sequence[int], scale: float
) -> NDArray[np.uint8]:
    """[..., bytes of a row]: codes of a type that the package makes none of, under halves up to
    `scale`, or small scales of IQ1_M and NVFP4."""
    rng, (size, block_bytes) = np.random.default_rng(1), GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // size, block_bytes), dtype=np.uint8)
    if kind is GGMLQuantizationType.IQ1_M:
        blocks[:, -1] = blocks[:, -1] & 15 | 0x10
    elif kind is GGMLQuantizationType.NVFP4:
        blocks[:, :4] &= 0x1F
    else:
        for at in SCALES_AT.get(kind, (0,)):
            half = rng.uniform(-scale, scale, len(blocks)).astype(np.float16)
            blocks[:, at : at + 2] = half.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(*shape[:-1], -1)


def blocks_of(values: Any, kind: GGMLQuantizationType, *, scale: float = 0.1) -> NDArray[np.uint8]:
    """The values in a type, or, if the package makes none of it, random ones."""
    try:
        return np.ascontiguousarray(quantize(values, kind)).view(np.uint8)
    except NotImplementedError:
        return random_blocks(kind, values.shape, scale)


def make_gguf(
    path: Path,
    reference: Any,
    architecture: str,
    *,
    kind_of: Callable[[str], str] | None = None,
    extra: dict[str, Any] | None = None,
    merges: Sequence[str] = (),
    pre: str | None = "smollm",
    **options: Any,
) -> Path:
    """Writes a random model; float32, or what `kind_of` says of a tensor's name.

    Args:
        extra: more fields, of the tokenizer or (without its name) of the architecture.
        merges: of a tokenizer of bytes; by default each token is a letter.
        pre: how that tokenizer cuts words.
    """
    with writing(path, architecture, **options) as writer:
        _add_config(writer, reference)
        _add_tokenizer(writer, reference.config.vocab_size, merges, pre)
        for key, value in (extra or {}).items():
            name = key if key.startswith("tokenizer.") else f"{architecture}.{key}"
            add = "add_array" if isinstance(value, list) else _ADDERS[type(value)]
            getattr(writer, add)(name, value)
        for name, values in stored_tensors(reference, architecture):
            values = np.ascontiguousarray(values)
            if kind_of is None or values.ndim < 2:
                writer.add_tensor(name, values)
            else:
                kind = GGMLQuantizationType[kind_of(name)]
                writer.add_tensor(name, blocks_of(values, kind, scale=0.001), raw_dtype=kind)
    return path


def expand(source: gguf.GGUFReader, path: Path) -> Path:
    """Writes the file again with every tensor as float32."""
    with writing(path, source.fields["general.architecture"].contents()) as writer:
        for field in source.fields.values():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                main, sub = field.types[0], field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(field.name, field.contents(), main, sub_type=sub)
        for tensor in source.tensors:
            values = dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
    return path


def _add_config(writer: gguf.GGUFWriter, reference: Any) -> None:
    config = reference.config
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if (sliding := config.rope_parameters.get("sliding_attention")) is not None:
        writer.add_rope_freq_base_swa(sliding["rope_theta"])
    for name, add in _FIELDS.items():
        if getattr(config, name, None):  # no window is 0 in some configurations
            getattr(writer, add)(getattr(config, name))
    names = ("num_experts", "num_local_experts")
    if counts := [getattr(config, name) for name in names if getattr(config, name, None)]:
        writer.add_expert_count(counts[0])
    if "llama_4_scaling_beta" in rope:
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    kind = rope["rope_type"]
    if kind == "llama3":  # as divisors of the frequencies
        inv_freq = reference.model.rotary_emb.inv_freq
        plain = rope["rope_theta"] ** -(torch.arange(len(inv_freq)) / len(inv_freq))
        writer.add_tensor("rope_freqs.weight", (plain / inv_freq).numpy())
    elif kind == "proportional":  # likewise, of those that do not turn
        half = config.per_layer_config["full_attention"].head_dim // 2
        is_turned = np.arange(half) < int(rope["partial_rotary_factor"] * half)
        writer.add_tensor("rope_freqs.weight", np.where(is_turned, 1, 1e30).astype(np.float32))
    elif kind != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        of_yarn = "yarn_" if kind == "yarn" else ""
        factor = f"add_rope_scaling_{of_yarn}attn_factor{'' if of_yarn else 's'}"
        for name, add in (_SCALING_FIELDS | {"attention_factor": factor}).items():
            if rope.get(name) is not None:
                getattr(writer, add)(rope[name])
        for length in {"long", "short"} & {name.split("_")[0] for name in rope}:
            factors = np.array(rope[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)


def _add_tokenizer(
    writer: gguf.GGUFWriter, vocab_size: int, merges: Sequence[str], pre: str | None
) -> None:
    tokens = [chr(0x100 + i) for i in range(vocab_size - 2)] + ["<|a|>", "<|im_end|>"]
    types = [1] * (len(tokens) - 2) + [3, 3]
    if merges:
        tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokens += dict.fromkeys(merge.replace(" ", "") for merge in merges)
        types = [1] * len(tokens)
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(list(merges))
    writer.add_eos_token_id(vocab_size - 2)


def stored_tensors(reference: Any, architecture: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yields the tensors as llama.cpp stores them, by its names."""
    config = reference.config
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in reference.state_dict().items():
        values = tensor.float().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if "gemma" in architecture and architecture != "gemma4" and "norm" in name:
            values = values + 1
        if architecture == "granitemoe":  # whose checkpoints have other names
            name = name.replace("moe.router", "moe.gate").replace("block_sparse_moe.e", "mlp.e")
        part = name.rpartition(".")[0].rpartition(".")[2]
        if (
            architecture in ("llama", "granite", "granitemoe", "mistral3") and part in heads
        ):  # rotated halves become pairs
            split = values.reshape(heads[part], 2, -1, *values.shape[1:])
            values = split.swapaxes(1, 2).reshape(values.shape)
        if name.endswith(".sinks"):
            yield f"{names.get_name(name)}.weight", values
            continue
        if own := next((one for one in _GEMMA4 if name.endswith(one)), None):
            named, end = _GEMMA4[own]
            yield f"{names.get_name(name.replace(own, named))}.{end}", values
            continue
        if ".experts." not in name:  # the converter squeezes
            yield str(names.get_name(name, (".weight", ".bias"))), values.squeeze()
            continue
        end = "bias" if name.endswith("_bias") else "weight"
        parts = {name.removesuffix("_bias"): values}
        if architecture == "gpt-oss" and end == "weight":  # whose checkpoints have columns first
            parts[name] = values = values.swapaxes(1, 2)
        if "gate_up_proj" in name and architecture != "gemma4":
            one = name.removesuffix("_bias")
            both = (one.replace("gate_up_proj", kind) for kind in ("gate_proj", "up_proj"))
            halves = np.split(values, 2, axis=1)
            if architecture == "gpt-oss":
                halves = [values[:, 0::2], values[:, 1::2]]
            parts = dict(zip(both, halves, strict=True))
        for one, matrices in parts.items():
            yield f"{names.get_name(one)}.{end}", matrices


def write_tensors(path: Path, tensors: dict[str, tuple[str, NDArray[np.uint8]]]) -> Path:
    with writing(path, "llama") as writer:
        for name, (kind, stored) in tensors.items():
            writer.add_tensor(name, stored, raw_dtype=GGMLQuantizationType[kind])
    return path


def rewrite_demo(path: Path, kind: str, *, num_layers: int) -> Path:
    """Writes the demo model's first layers with their matrices in another type."""
    source, quant = read(str(DEMO)), GGMLQuantizationType[kind]
    with writing(path, "llama") as writer:
        for field in source.fields.values():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                main, sub = field.types[0], field.types[-1] if len(field.types) > 1 else None
                value = num_layers if field.name == "llama.block_count" else field.contents()
                writer.add_key_value(field.name, value, main, sub_type=sub)
        for tensor in source.tensors:
            layer = re.match(r"blk\.(\d+)\.", tensor.name)
            if layer and int(layer[1]) >= num_layers:
                continue
            values = dequantize(tensor.data, tensor.tensor_type)
            if values.ndim > 1 and values.shape[-1] % 32 == 0:
                writer.add_tensor(tensor.name, quantize(values, quant), raw_dtype=quant)
            else:
                writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
    return path
