"""Writes a checkpoint of the shape of a known model with random weights: nothing is fetched.

    python -m benchmarks.harness.random_checkpoint NAME TARGET [--layers N] [--type Q4_K_M]

TARGET becomes a directory of safetensors in bfloat16, or with --type a GGUF file of that type:
Q4_K_M has the mix of llama-quantize, MXFP4 is that of feed-forward layers or experts beside Q8_0,
and of any other type are all matrices. Without --layers the model has all of its layers.
With --counting the file has a head of its own, and greedy answers count: each token id is one more
than the one before it, at the cost of any model of its shape.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.random_gguf import FILE_TYPES, save_gguf
from signalbox_kernels.floats import to_bfloat16
from signalbox_worker.models import DecoderConfig, find_model
from signalbox_worker.runner.loading.byte_tokenizer import tokenizer_files
from signalbox_worker.runner.native.weight_shapes import weight_shapes

_FIELDS = (
    *("architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings"),
)
_MODELS: dict[str, tuple[Any, ...]] = {
    "llama-3.2-1b": ("Llama", 128256, 2048, 8192, 16, 32, 8, 64, True),
    "llama-3.2-3b": ("Llama", 128256, 3072, 8192, 28, 24, 8, 128, True),
    "llama-3.1-8b": ("Llama", 128256, 4096, 14336, 32, 32, 8, 128, False),
    "qwen3-4b": ("Qwen3", 151936, 2560, 9728, 36, 32, 8, 128, True),
    "qwen3.5-4b": ("Qwen3_5", 248320, 2560, 9216, 32, 16, 4, 256, True),
    "qwen3.5-9b": ("Qwen3_5", 248320, 4096, 12288, 32, 16, 4, 256, False),
    "gemma-3-4b": ("Gemma3", 262208, 2560, 10240, 34, 8, 4, 256, True),
    "olmoe": ("Olmoe", 50304, 2048, 1024, 16, 16, 16, 128, False),
    "qwen3-30b-a3b": ("Qwen3Moe", 151936, 2048, 6144, 48, 32, 4, 128, False),
    "gpt-oss-20b": ("GptOss", 201088, 2880, 2880, 24, 64, 8, 64, False),
    "lfm2-8b-a1b": ("Lfm2Moe", 65536, 2048, 7168, 24, 32, 8, 64, True),
}
"""Values of `_FIELDS`."""
_DELTA: dict[str, Any] = {
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 128),
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
_OTHERS: dict[str, dict[str, Any]] = {
    "gemma-3-4b": {"sliding_window": 1024},
    **dict.fromkeys(("qwen3.5-4b", "qwen3.5-9b"), _DELTA),
    "olmoe": {"num_experts": 64, "num_experts_per_tok": 8},
    "qwen3-30b-a3b": {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    "gpt-oss-20b": {"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128},
    "lfm2-8b-a1b": {
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "conv_L_cache": 3,
        "layer_types": [
            "full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)
        ],
    },
}
"""Values that others do not have."""
_PATTERN = 1 << 20
"""Bytes that repeat."""


def config_of(name: str, num_layers: int | None = None) -> dict[str, Any]:
    """Returns the config.json of a model, perhaps with fewer layers."""
    kind, *sizes = _MODELS[name]
    config = dict(zip(_FIELDS, ([f"{kind}ForCausalLM"], *sizes), strict=True))
    config |= {"max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "dtype": "bfloat16"}
    config |= _OTHERS.get(name, {})
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:num_layers]
    return config | ({"num_hidden_layers": num_layers} if num_layers else {})


def shapes_of(config: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
    """Returns the shapes of a model's tensors by name."""
    found = find_model(config, impl="signalbox", directory=None, trust_remote_code=False)
    decoder = found.read_config(config)
    assert isinstance(decoder, DecoderConfig), "a model that runs natively"
    return weight_shapes(decoder)


def save_directory(folder: Path, config: Mapping[str, Any]) -> Path:
    """Writes a directory in Hugging Face's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    for name, content in tokenizer_files(vocab_size=8192, max_model_len=8192).items():
        (folder / name).write_bytes(content)
    header, end = dict[str, Any](), 0
    for name, shape in shapes_of(config).items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (begin, end)}
    described = json.dumps(header).encode()
    values = np.random.default_rng(0).normal(scale=0.02, size=_PATTERN // 2)
    pattern = to_bfloat16(values.astype(np.float32)).tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(described).to_bytes(8, "little") + described)
        for size in _parts(end):
            file.write(pattern[:size])
    return folder


def _parts(num_bytes: int) -> Iterator[int]:
    yield from (min(_PATTERN, num_bytes - start) for start in range(0, num_bytes, _PATTERN))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=_MODELS)
    parser.add_argument("target", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--type", choices=FILE_TYPES)
    parser.add_argument("--counting", action="store_true", help="with --type")
    options = parser.parse_args()
    config = config_of(options.name, options.layers)
    if options.counting:
        config["tie_word_embeddings"] = False
    if options.type:
        shapes = shapes_of(config)
        save_gguf(options.target, config, shapes, options.type, is_counting=options.counting)
    else:
        save_directory(options.target, config)


if __name__ == "__main__":
    main()
