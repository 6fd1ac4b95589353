"""Tiny random models of transformers that also take images, in random configurations."""

import json
import random
from pathlib import Path
from typing import Any

from tests.gpu_worker.tiny_models import SHAPE, VOCAB, make_tokenizer

_TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "num_attention_heads": 2}
_TOWER |= {"depth": 1, "num_hidden_layers": 1, "out_hidden_size": 48, "patch_size": 14}
_TOWER |= {"embed_dim": 16, "image_size": 28, "head_dim": 8, "projection_dim": 16}
_PAIRS = {"image_size": [28, 28], "patch_size": [14, 14]}
_LLAMA4 = {"projector_input_dim": 16, "projector_output_dim": 16, "pixel_shuffle_ratio": 0.5}
_EXPERTS = {"num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}
_EXPERTS |= {"moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_NOT_OF_BOTH = {"head_dim": 48 // 6, "tie_word_embeddings": False}
_KINDS = {"sliding_window": 19, "layer_types": ["sliding_attention", "full_attention"] * 2}
_GEMMA: dict[str, Any] = {"num_hidden_layers": 4, "head_dim": 16, **_KINDS}
_GEMMA |= {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8}


def _mrope(*sections: int, partial: float = 1.0) -> dict[str, Any]:
    parameters = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": list(sections)}
    return {"rope_parameters": parameters | {"partial_rotary_factor": partial}}


_GLM = _mrope(1, 1, 2, partial=0.5) | {"head_dim": 16}
_DELTA = {**_GLM, "linear_key_head_dim": 16, "linear_value_head_dim": 32}
_DELTA |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
_DELTA |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_GLM_DENSE = _GLM | {"num_attention_heads": 3, "num_key_value_heads": 1}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Exaone4_5_": (
        {"model_type": "exaone4", "num_hidden_layers": 4, **_KINDS},
        {},
    ),
    "Gemma3": (
        {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 24}
        | {"sliding_window": 19},
        {"model_type": "siglip_vision_model"},
    ),
    "Gemma3n": (_GEMMA | {"laurel_rank": 8, "num_kv_shared_layers": 2}, {}),
    "Gemma4": (
        _GEMMA | {"head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1},
        {"model_type": "gemma4_vision"},
    ),
    "Gemma4Unified": (
        _GEMMA | {"head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1},
        {},
    ),
    "Glm46V": (_GLM_DENSE | {"model_type": "glm4v_text"}, {"model_type": "glm4v_vision"}),
    "Glm4v": (_GLM_DENSE, {}),
    "Glm4vMoe": (_GLM | _EXPERTS, {}),
    "GlmOcr": (_GLM, {}),
    "Idefics3": ({"model_type": "llama"}, {}),
    "InternVL": ({"model_type": "qwen3", "head_dim": 16}, _PAIRS),
    "Lfm2Vl": (
        {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False}
        | {"num_attention_heads": 3, "num_key_value_heads": 1, "norm_eps": 1e-3},
        {"model_type": "siglip2_vision_model", "num_patches": 16},
    ),
    "LightOnOcr": ({"model_type": "qwen3", "head_dim": 16}, {"model_type": "pixtral"}),
    "Llama4": (
        {"model_type": "llama4_text", "head_dim": 16, "num_local_experts": 4}
        | {"num_experts_per_tok": 1, "intermediate_size_mlp": 64, "no_rope_layers": [1, 0, 1]}
        | {"attention_chunk_size": 128},
        _LLAMA4 | {"vision_output_dim": 16},
    ),
    "Llava": ({"model_type": "llama"}, {"model_type": "clip_vision_model"}),
    "LlavaNext": (
        {"model_type": "mistral", "sliding_window": 21},
        {"model_type": "clip_vision_model"},
    ),
    "LlavaOnevision": ({"model_type": "qwen2"}, {"model_type": "siglip_vision_model"}),
    "Mistral3": (
        {"model_type": "ministral3", "head_dim": 16, "sliding_window": None},
        {"model_type": "pixtral"},
    ),
    "Qwen2VL": (_mrope(2, 3, 3) | {"num_attention_heads": 3, "num_key_value_heads": 1}, {}),
    "Qwen2_5_VL": (_mrope(2, 3, 3) | {"num_attention_heads": 3, "num_key_value_heads": 1}, {}),
    "Qwen3VL": (_mrope(2, 3, 3) | {"head_dim": 16}, {"deepstack_visual_indexes": [0]}),
    "Qwen3VLMoe": (
        _mrope(2, 3, 3) | {"head_dim": 16} | _EXPERTS,
        {"deepstack_visual_indexes": [0]},
    ),
    "Qwen3_5": (_DELTA, {"num_position_embeddings": 16}),
    "Qwen3_5Moe": (
        _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 24},
        {"num_position_embeddings": 16},
    ),
    "SmolVLM": ({"model_type": "llama"}, {}),
}
"""Fields of the text part, and of what sees."""


def random_fields(name: str, seed: int) -> dict[str, Any]:
    """Returns fields that a configuration has instead of the family's."""
    choose = random.Random(f"{name} {seed}")
    fields: dict[str, Any] = {"tie_word_embeddings": choose.random() < 0.5}
    fields["intermediate_size"] = choose.choice((40, 80, 104))
    fields["rms_norm_eps"] = choose.choice((1e-6, 1e-3))
    fields["max_position_embeddings"] = choose.choice((128, 256))
    kind = FAMILIES[name][0].get("model_type")
    if kind in ("llama", "qwen3") or name.startswith("Qwen3"):
        fields["attention_bias"] = choose.random() < 0.5
    if "num_attention_heads" not in FAMILIES[name][0] and "Gemma4" not in name:
        fields["num_key_value_heads"] = choose.choice((1, 2, 3, 6))
    if name in ("Gemma3n", "Gemma4", "Gemma4Unified"):  # the whole Gemma 3 caps nothing
        fields["final_logit_softcapping"] = choose.choice((7.0, 5.0))
    if name.startswith("Gemma4"):
        fields["use_bidirectional_attention"] = choose.choice((None, "vision"))
    if name == "Gemma4":
        fields["num_kv_shared_layers"] = choose.choice((0, 2))
        fields["attention_k_eq_v"] = choose.random() < 0.5
        mixed = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
        fields |= {"enable_moe_block": True, **mixed} if choose.random() < 0.5 else {}
    if name == "Mistral3" and choose.random() < 0.5:
        fields["model_type"] = "mistral"
    if kind == "mistral":
        fields["sliding_window"] = choose.choice((None, 21))
    return fields


def make_multimodal(path: Path, name: str, seed: int) -> Any:
    """Saves a random model with its tokenizer; returns it as transformers runs it.

    The files of odd seeds have the names of tensors of the class itself.
    """
    import torch
    import transformers

    own, sees = FAMILIES[name]
    text = SHAPE | own | random_fields(name, seed)
    tied = text["tie_word_embeddings"]
    torch.manual_seed(seed)
    if name == "Gemma3n":  # what sees is of a package that is not here
        text_config = transformers.Gemma3nTextConfig(**text)
        model = transformers.Gemma3nForCausalLM(text_config).eval()
    else:
        kind: Any = getattr(transformers, f"{name}ForConditionalGeneration")
        config = kind.config_class(
            text_config=text, vision_config=_TOWER | sees, tie_word_embeddings=tied
        )
        model = kind(config).eval()
    with torch.no_grad():  # weights that are all ones or zeros hide mistakes
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1 or key.endswith("_bias"):
                parameter.uniform_(0.5, 1.5) if "norm" in key else parameter.normal_(0, 0.3)
            elif parameter.std() < 0.05:
                parameter.normal_(0, 0.2)
    model.save_pretrained(path)
    make_tokenizer(path)
    if name == "Gemma3n" or seed % 2:
        _save_by_class(path, name, model, tied)
    return model


def _save_by_class(path: Path, name: str, model: Any, tied: bool) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {key: one.clone() for key, one in model.state_dict().items()}
    if name == "Gemma3n":
        tensors = {
            key.replace("model.", "model.language_model.", 1): one for key, one in tensors.items()
        } | {"model.vision_tower.weight": torch.zeros(3)}
        config = {"architectures": ["Gemma3nForConditionalGeneration"], "vision_config": {}}
        config |= {"text_config": model.config.to_dict(), "tie_word_embeddings": tied}
        (path / "config.json").write_text(json.dumps(config))
    if tied:
        tensors = {key: one for key, one in tensors.items() if not key.endswith("lm_head.weight")}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
