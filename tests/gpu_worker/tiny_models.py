"""Tiny random models in Hugging Face's layout, and what transformers makes of them.

PyTorch is imported where it is needed; not all tests need it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers

from signalbox_worker.models.decoder_config import llama_config
from signalbox_worker.runner.native.weight_shapes import weight_shapes

VOCAB = 97
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

LATENTS = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
LATENTS["head_dim"] = LATENTS["qk_rope_head_dim"]  # of which GLM has another name
"""Sizes of latent attention that native programs compute."""
UNLIKE_LAYERS: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 48,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "num_kv_shared_layers": 1,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB,
}
"""Sizes of a Gemma 4 with heads of two sizes and a layer that reads K and V of another."""
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

_NEMOTRON: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "num_key_value_heads": 3,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "time_step_min": 1e-30,  # or else transformers has least time steps in prompts alone
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 6}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "llama-linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "llama-yarn": ("Llama", {"rope_parameters": YARN_ROPE}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": 21, "head_dim": 20}),
    "qwen2": ("Qwen2", {}),
    "qwen2-sliding": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.6,
            "logits_scaling": 3.0,
            "rms_norm_eps": 1e-2,
            "tie_word_embeddings": True,
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 19}),
    "seed-oss": ("SeedOss", {}),
    "opt": ("OPT", {"ffn_dim": 80, "init_std": 0.2}),
    "opt-350m": (
        "OPT",
        {"ffn_dim": 80, "init_std": 0.2, "do_layer_norm_before": False, "word_embed_proj_dim": 24},
    ),
    "galactica": (
        "OPT",
        {
            "ffn_dim": 80,
            "init_std": 0.2,
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "activation_function": "gelu",
        },
    ),
    "gpt2": ("GPT2", {}),
    "gpt2-untied": ("GPT2", {"n_inner": 64, "tie_word_embeddings": False}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 21,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
            "attn_implementation": "eager",  # the other one caps nothing
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 21,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-partly": (
        "Qwen3Moe",
        {
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "mlp_only_layers": [1],
        },
    ),
}
_MLA = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
THROUGH_TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-neox": ("GPTNeoX", {"num_key_value_heads": 6}),
    "phi": ("Phi", {"num_key_value_heads": 6}),
    "stablelm": ("StableLm", {}),
    "olmo2": ("Olmo2", {}),
    "olmo3": (
        "Olmo3",
        {
            "sliding_window": 19,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": YARN_ROPE},
        },
    ),
    "ministral3": (
        "Ministral3",
        {
            "head_dim": 8,
            "rope_parameters": YARN_ROPE
            | {"factor": 16.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.3},
        },
    ),
    "cohere": ("Cohere", {"logit_scale": 0.5}),
    "helium": ("Helium", {"head_dim": 8, "num_key_value_heads": 6}),
    "starcoder2": ("Starcoder2", {"sliding_window": 21}),
    "exaone4": (
        "Exaone4",
        {
            "sliding_window": 17,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "cohere2": (
        "Cohere2",
        {
            "logit_scale": 0.5,
            "sliding_window": 17,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "deepseek-v2": ("DeepseekV2", _MLA),
    "glm4-moe-lite": ("Glm4MoeLite", _MLA),
    "deepseek-v2-lite": ("DeepseekV2", _MLA | {"q_lora_rank": None}),
    "deepseek-v3": ("DeepseekV3", _MLA),
    "deepseek-v3-yarn": (
        "DeepseekV3",
        _MLA
        | {
            "n_group": 2,
            "rope_parameters": YARN_ROPE | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "gpt-oss": (
        "GptOss",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 19,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "swiglu_limit": 1.0,
            "rope_parameters": YARN_ROPE | {"truncate": False},
        },
    ),
    "glm": ("Glm", {"head_dim": 16, "attention_bias": True}),
    "glm4-moe": (
        "Glm4Moe",
        {
            "head_dim": 16,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "n_group": 3,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.8,
            "use_qk_norm": True,
        },
    ),
    "glm4": ("Glm4", {"head_dim": 16, "partial_rotary_factor": 0.75}),
    "smollm3": (
        "SmolLM3",
        {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 19},
    ),
    "olmoe": ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "granite-moe": (
        "GraniteMoe",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.6,
            "logits_scaling": 3.0,
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 56,
        },
    ),
    "gemma4": (
        "Gemma4",
        {
            "head_dim": 8,
            "global_head_dim": 16,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 19,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "use_bidirectional_attention": "vision",
        },
    ),
    "llama4": (
        "Llama4",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 64,
            "no_rope_layers": [1, 0, 1],
            "attention_chunk_size": 128,
        },
    ),
}
"""Families without a file of ours."""
OUTSIDE = "olmo"
"""Served by tests/gpu_worker/models/example_package alone."""
_DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_SHARED = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    OUTSIDE: ("Olmo", {}),
    "phimoe": ("Phimoe", {"sliding_window": 19, "num_local_experts": 4}),
    "lfm2": (
        "Lfm2",
        {
            "layer_types": ["conv", "full_attention", "conv"],
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "conv_bias": True,
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "granite-hybrid": (
        "GraniteMoeHybrid",
        {
            "layer_types": ["mamba", "attention", "mamba"],
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "num_local_experts": 0,
            "shared_intermediate_size": 80,
            "mamba_n_heads": 6,
            "mamba_d_head": 16,
            "mamba_d_state": 32,
            "mamba_n_groups": 2,
            "position_embedding_type": "rope",
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.3,
            "logits_scaling": 3.0,
        },
    ),
    "qwen3.5": ("Qwen3_5", _DELTA | {"attention_bias": True}),
    "qwen3.5-moe": ("Qwen3_5Moe", _DELTA | _SHARED),
    "qwen3-next": ("Qwen3Next", _DELTA | _SHARED),
    "lfm2-moe": (
        "Lfm2Moe",
        {
            "layer_types": ["conv", "full_attention", "conv"],
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "moe_intermediate_size": 32,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "num_dense_layers": 1,
        },
    ),
    "nemotron-h": (
        "NemotronH",
        _NEMOTRON
        | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
    ),
    "nemotron-h-moe": (
        "NemotronH",
        _NEMOTRON
        | {
            "layers_block_type": ["moe", "linear_attention", "full_attention", "mlp"],
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_latent_size": 32,
            "moe_shared_expert_intermediate_size": 40,
            "routed_scaling_factor": 1.7,
        },
    ),
}

_TEXT = ("Gemma3", "Gemma4", "Llama4", "Qwen3_5", "Qwen3_5Moe")
_CONFIGS = {name: f"{name}TextConfig" for name in _TEXT}
_CLASSES = {"GPT2": "GPT2LMHeadModel"}


def make_tokenizer(path: Path) -> None:
    """A word-level tokenizer of the tiny vocabulary."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ 1 }}"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))


def random_values(
    shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    """Returns random tensors, whose vectors are around 1."""
    return {
        name: (
            rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else rng.normal(0, 0.2, shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_tensors(path: Path, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    """Writes a file of safetensors, without PyTorch."""
    header, data = {}, bytearray()
    for name, values in tensors.items():
        start = len(data)
        data += np.ascontiguousarray(values, dtype=np.float32).tobytes()
        offsets = [start, len(data)]
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def make_llama(path: Path, **fields: Any) -> None:
    """Saves a random Llama that the native kernels run, without transformers.

    Args:
        fields: of its configuration, instead of those of `SHAPE`.
    """
    rng = np.random.default_rng(0)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_parameters": LLAMA3_ROPE,
        "tie_word_embeddings": True,
        **SHAPE,
        **fields,
    }
    (path / "config.json").write_text(json.dumps(config))
    shapes = weight_shapes(llama_config(config))
    write_tensors(path / "model.safetensors", random_values(shapes, rng))
    make_tokenizer(path)


def make_model(path: Path, family: str = "llama3", **overrides: Any) -> Any:
    """Saves a random model with its tokenizer; returns it as transformers runs it."""
    import torch
    import transformers

    kind, flags = (FAMILIES | THROUGH_TRANSFORMERS | _OTHERS)[family]
    config_class = getattr(transformers, _CONFIGS.get(kind, f"{kind}Config"))
    config = config_class(**(SHAPE | flags | overrides))
    torch.manual_seed(0)
    model = getattr(transformers, architecture_of(family))(config).eval()
    with torch.no_grad():  # weights that are all ones or zeros hide mistakes
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or name.endswith("_bias"):  # or biases of experts
                parameter.uniform_(0.5, 1.5) if "norm" in name else parameter.normal_(0, 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.3)
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
    model.save_pretrained(path, max_shard_size="60KB")
    make_tokenizer(path)
    return model


def architecture_of(family: str) -> str:
    """Returns what config.json of a random model names."""
    kind = (FAMILIES | THROUGH_TRANSFORMERS | _OTHERS)[family][0]
    return _CLASSES.get(kind, f"{kind}ForCausalLM")


def reference_tokens(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """transformers' greedy continuation."""
    import torch

    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        min_new_tokens=num_tokens,
        max_new_tokens=num_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens
