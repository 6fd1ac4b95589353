"""Random models as llama.cpp's converter writes them, with what transformers computes of them.

    python -m tests.gpu_worker.runner.loading.converted_models SOURCES [CONFIGURATIONS [FAMILY ...]]

makes `converted/` with llama.cpp's sources (those of llama-cpp-python, whose version is in
tests/router/parsers/templates.txt): a file of 16 bits for each family, and log probabilities of
transformers for the same values. With a number of configurations it makes no files, and compares
so many random ones of each family in float32.
"""

import importlib
import json
import random
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("converted")
RECORDED = FOLDER / "logprobs.json"
VOCAB = 48
PROMPT = [int(one) for one in random.Random(5).choices(range(3, VOCAB), k=70)]
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}
_YARN |= {"original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0}
_MROPE = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [1, 1, 2]}
_SEES = {"depth": 1, "hidden_size": 16, "out_hidden_size": 16, "num_heads": 2}
_SEES |= {"intermediate_size": 24, "deepstack_visual_indexes": [0]}
_MIXTURE = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4}
_MIXTURE |= {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_GROUPS = {**_MIXTURE, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
_GROUPS |= {"first_k_dense_replace": 1, "num_nextn_predict_layers": 0}
_LATENT = {**_GROUPS, "kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 8}
_LATENT |= {"qk_rope_head_dim": 4, "v_head_dim": 6, "num_key_value_heads": 4}
_PANELS = {**_LATENT, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
_PANELS |= dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 32)
_PANELS |= {"n_shared_experts": 2, "initializer_range": 0.1}
_DELTA = {"hidden_size": 32, "head_dim": 16, "full_attention_interval": 2}
_DELTA |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16)
_DELTA |= {"linear_num_key_heads": 2, "linear_num_value_heads": 6}
_DELTA |= {"layer_types": ["linear_attention", "full_attention"]}
_DELTA |= {"rope_parameters": _MROPE | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}}
_TWO = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}
_PARTLY = {"head_dim": 16, "partial_rotary_factor": 0.5, "attention_bias": True}
_GEMMA4 = {"head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1, **_TWO}
_MINISTRAL = {"llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}
_HYBRID = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
_HYBRID |= {"num_hidden_layers": 3}
_LFM2 = {**_HYBRID, "layer_types": ["conv", "full_attention", "conv"]}
_LFM2 |= {"block_auto_adjust_ff_dim": False}
_GRANITE = {**_HYBRID, "layer_types": ["mamba", "attention", "mamba"]}
_GRANITE |= {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2}
_GRANITE |= {"embedding_multiplier": 6.0, "residual_multiplier": 0.22, "logits_scaling": 3.0}
_GRANITE |= {"attention_multiplier": 0.3, "shared_intermediate_size": 24}
_NEMOTRON = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
_NEMOTRON |= {"head_dim": 32, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2}
_NEMOTRON |= {"ssm_state_size": 16, "time_step_min": 1e-30}
_OF_MOE = {"moe_shared_expert_intermediate_size": 24, "moe_latent_size": 16}
_OF_MOE |= {"routed_scaling_factor": 1.7}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere2": (
        "Cohere2ForCausalLM",
        {"sliding_window": 9, "num_hidden_layers": 4, "logit_scale": 0.5},
    ),
    "deepseek2": ("DeepseekV2ForCausalLM", {**_LATENT, "topk_method": "greedy"}),
    "deepseek2-lite": (
        "DeepseekV2ForCausalLM",
        {**_PANELS, "q_lora_rank": None, "topk_method": "greedy"}
        | {"rope_parameters": _YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
    ),
    "deepseek2-v2": (
        "DeepseekV2ForCausalLM",
        {**_PANELS, "topk_method": "group_limited_greedy", "n_group": 2}
        | {"routed_scaling_factor": 4.0}
        | {"rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "deepseek2-v3": (
        "DeepseekV3ForCausalLM",
        {**_LATENT, "n_group": 2, "routed_scaling_factor": 2.0, "scoring_func": "sigmoid"},
    ),
    "deepseek2-glm": ("Glm4MoeLiteForCausalLM", {**_LATENT, "routed_scaling_factor": 1.8}),
    "gemma4": (
        "Gemma4ForCausalLM",
        {**_GEMMA4, "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8}
        | {"final_logit_softcapping": 5.0, "num_kv_shared_layers": 2, "num_hidden_layers": 4}
        | {"layer_types": _TWO["layer_types"] * 2, "use_double_wide_mlp": True},
    ),
    "gemma4-moe": (
        "Gemma4ForCausalLM",
        {**_GEMMA4, **_MIXTURE, "enable_moe_block": True, "top_k_experts": 2}
        | {"attention_k_eq_v": True, "hidden_size_per_layer_input": 0},
    ),
    "glm4": ("Glm4ForCausalLM", _PARTLY),
    "glm4moe": (
        "Glm4MoeForCausalLM",
        {**_GROUPS, **_PARTLY, "routed_scaling_factor": 1.5, "use_qk_norm": True},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        {**_MIXTURE, **_TWO, "head_dim": 8, "tie_word_embeddings": False}
        | {"rope_parameters": _YARN | {"truncate": False}},
    ),
    "granitemoe": (
        "GraniteMoeForCausalLM",
        {**_MIXTURE, "embedding_multiplier": 6.0, "residual_multiplier": 0.22}
        | {"attention_multiplier": 0.6, "logits_scaling": 3.0},
    ),
    "granitemoe-shared": (
        "GraniteMoeSharedForCausalLM",
        {**_MIXTURE, "shared_intermediate_size": 24, "attention_multiplier": 0.3},
    ),
    "granitehybrid": (
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE, "num_local_experts": 0, "num_experts_per_tok": 0},
    ),
    "granitehybrid-moe": ("GraniteMoeHybridForCausalLM", {**_GRANITE, **_MIXTURE}),
    "lfm2": ("Lfm2ForCausalLM", _LFM2),
    "lfm2moe": ("Lfm2MoeForCausalLM", {**_LFM2, **_MIXTURE, "num_dense_layers": 1}),
    "mistral3": (
        "Ministral3ForCausalLM",
        {"head_dim": 8, "rope_parameters": _YARN | _MINISTRAL},
    ),
    "mistral3-plain": (
        "Mistral3ForConditionalGeneration",
        {"model_type": "mistral", "head_dim": 8, "sliding_window": None},
    ),
    "nemotron_h": (
        "NemotronHForCausalLM",
        {**_NEMOTRON, "layers_block_type": ["mamba", "mlp", "attention", "mamba"]},
    ),
    "nemotron_h_moe": (
        "NemotronHForCausalLM",
        {**_NEMOTRON, **_MIXTURE, **_OF_MOE}
        | {"layers_block_type": ["moe", "mamba", "attention", "moe"]},
    ),
    "olmo2": ("Olmo2ForCausalLM", {"tie_word_embeddings": False}),
    "olmo2-olmo3": ("Olmo3ForCausalLM", _TWO),
    "olmoe": ("OlmoeForCausalLM", _MIXTURE),
    "qwen2moe": ("Qwen2MoeForCausalLM", {**_MIXTURE, "shared_expert_intermediate_size": 24}),
    "qwen35": ("Qwen3_5ForCausalLM", _DELTA),
    "qwen35moe": (
        "Qwen3_5MoeForCausalLM",
        {**_DELTA, **_MIXTURE, "shared_expert_intermediate_size": 24},
    ),
    "qwen3next": (
        "Qwen3NextForCausalLM",
        {**_DELTA, **_MIXTURE, "shared_expert_intermediate_size": 24},
    ),
    "qwen3vl": ("Qwen3VLForConditionalGeneration", {"head_dim": 8, "rope_parameters": _MROPE}),
    "qwen3vlmoe": (
        "Qwen3VLMoeForConditionalGeneration",
        {**_MIXTURE, "head_dim": 8, "rope_parameters": _MROPE},
    ),
    "smollm3": ("SmolLM3ForCausalLM", {"num_hidden_layers": 4, "head_dim": 16}),
}
"""Classes and fields by llama.cpp's names, with the variant behind them."""
_NORMALISED = ("deepseek2-v3", "deepseek2-glm", "glm4moe", "lfm2moe", "nemotron_h_moe", "qwen3next")
_ALWAYS_NORMALISED = ("lfm2moe", "qwen3next")
_KERNELS = {"granitehybrid": "mamba_d_conv", "lfm2": "conv_L_cache", "nemotron": "conv_kernel"}
_HYBRIDS = tuple(_KERNELS)
_NOT_RMS = (
    *("olmo", "deepseek2-glm", "mistral3", "gpt-oss", "glm4moe", "cohere2"),
    *("lfm2", "nemotron"),
)


def random_fields(name: str, seed: int) -> dict[str, Any]:
    """Returns fields that a configuration has instead of the family's; those of seed 0 are its."""
    choose = random.Random(f"{name} {seed}")
    if not seed:
        return {"norm_topk_prob": name in _NORMALISED}
    fields: dict[str, Any] = {
        "intermediate_size": choose.choice((24, 40)),
        "max_position_embeddings": choose.choice((128, 256)),
        "norm_topk_prob": name in _NORMALISED
        and (name in _ALWAYS_NORMALISED or choose.random() < 0.5),
        "moe_intermediate_size": choose.choice((8, 16, 24)),
        "num_experts_per_tok": choose.choice((1, 2, 3)),
        "top_k_experts": choose.choice((1, 2, 3)),
    }
    if name in ("deepseek2", "deepseek2-glm", "deepseek2-v2"):
        fields["q_lora_rank"] = choose.choice((None, 12))
    if not name.startswith(("deepseek2", "gemma4", *_HYBRIDS)):
        fields["num_key_value_heads"] = choose.choice((1, 2, 4))
    if name not in ("gpt-oss", "cohere2", "gemma4", "gemma4-moe", "lfm2moe"):
        fields["tie_word_embeddings"] = choose.random() < 0.5
    if not name.startswith(_NOT_RMS):
        fields["rms_norm_eps"] = choose.choice((1e-6, 1e-3))
    if name.startswith("deepseek2") and choose.random() < 0.5:
        scale = choose.choice((0.707, 1.0))
        fields["rope_parameters"] = _YARN | {"mscale": scale, "mscale_all_dim": scale}
    if name in ("olmo2-olmo3", "olmoe", "qwen2moe") and choose.random() < 0.5:
        yarn = _YARN | {"rope_theta": 10000.0}
        fields["rope_parameters"] = {"full_attention": yarn} if name == "olmo2-olmo3" else yarn
    if name in ("glm4", "glm4moe"):
        fields["attention_bias"] = choose.random() < 0.5
    if "sliding_window" in FAMILIES[name][1] and name != "mistral3-plain":
        fields["sliding_window"] = choose.choice((5, 17))
    if name in ("qwen35", "qwen35moe", "qwen3next"):
        size, period = choose.choice((16, 32)), choose.choice((2, 3))
        kinds = (["linear_attention"] * (period - 1) + ["full_attention"]) * 2
        fields |= {"linear_key_head_dim": size, "linear_value_head_dim": size}
        fields |= {"linear_num_value_heads": choose.choice((2, 4, 6, 8))}
        fields |= {"linear_conv_kernel_dim": choose.choice((2, 3, 4))}
        fields |= {"full_attention_interval": period, "layer_types": kinds[: period + 1]}
        fields["num_hidden_layers"] = period + 1
    if name == "smollm3":
        fields["num_hidden_layers"] = choose.choice((3, 9))
    if name.startswith(_HYBRIDS):
        fields |= _random_layers(name, choose)
    return fields


def _random_layers(name: str, choose: random.Random) -> dict[str, Any]:
    """Returns one layer more, and all in another order, with convolutions of another length."""
    field = "layers_block_type" if name.startswith("nemotron") else "layer_types"
    kinds = FAMILIES[name][1][field]
    kinds = choose.sample([*kinds, choose.choice(kinds)], len(kinds) + 1)
    kernel = next(one for start, one in _KERNELS.items() if name.startswith(start))
    return {field: kinds, "num_hidden_layers": len(kinds), kernel: choose.choice((2, 4))}


def make_model(path: Path, name: str, seed: int) -> Any:
    """Saves a random model in the values of 16 bits; returns it as transformers runs it."""
    import torch
    import transformers

    architecture, own = FAMILIES[name]
    text = _SHAPE | own
    text |= {key: one for key, one in random_fields(name, seed).items() if _has(name, key)}
    if "top_k_experts" in text:  # which the converter would take from the other name
        text["num_experts_per_tok"] = text["top_k_experts"]
    kind: Any = getattr(transformers, architecture)
    config = kind.config_class(**text)
    if hasattr(config, "vision_config"):
        sees = {"model_type": "pixtral", "head_dim": 8} if name == "mistral3-plain" else {}
        config = kind.config_class(
            text_config=text,
            vision_config=_SEES | sees,
            tie_word_embeddings=text["tie_word_embeddings"],
        )
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for key, buffer in model.named_buffers():
            if key.endswith((".expert_bias", ".mixer.gate.e_score_correction_bias")):
                buffer.normal_(0, 0.3)
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1 or key.endswith("_bias"):
                parameter.uniform_(0.5, 1.5) if "norm" in key else parameter.normal_(0, 0.3)
            elif parameter.std() < 0.05:
                parameter.normal_(0, 0.2)
            parameter.copy_(parameter.half())
    model.save_pretrained(path)
    _as_published(path, name, model)
    return model


def _has(name: str, key: str) -> bool:
    """Says whether a family has a field: mixtures alone have those of experts."""
    own = FAMILIES[name][1]
    of_experts = {"norm_topk_prob", "moe_intermediate_size", "num_experts_per_tok", "top_k_experts"}
    return key not in of_experts or (
        "num_experts" in own and (key != "top_k_experts" or key in own)
    )


def _as_published(path: Path, name: str, model: Any) -> None:
    """Writes what published files have, and those of save_pretrained lack."""
    from safetensors.torch import load_file, save_file

    file = path / "config.json"
    if name == "cohere2":
        file.write_text(json.dumps(json.loads(file.read_text()) | {"rotary_pct": 1.0}))
    if name.startswith(("granitehybrid", "nemotron")):
        file.write_text(json.dumps(_with_old_kinds(json.loads(file.read_text()), name)))
    vocab = {f"w{one}": one for one in range(VOCAB)}  # of which the converter counts the tokens
    (path / "tokenizer.json").write_text(
        json.dumps({"added_tokens": [], "model": {"vocab": vocab}})
    )
    if name == "qwen3vlmoe":
        (file,) = path.glob("*.safetensors")
        turned = {
            key: one.detach().swapaxes(1, 2).contiguous()
            for key, one in model.named_parameters()
            if ".experts." in key
        }
        save_file(load_file(file) | turned, file, metadata={"format": "pt"})


def _with_old_kinds(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns config.json with the kinds of layers, and what goes with them, of published files."""
    field = "layer_types" if name.startswith("granite") else "layers_block_type"
    old = {"linear_attention": "mamba", "full_attention": "attention"}
    kinds = [old.get(kind, kind) for kind in config[field]]
    config |= {field: kinds, "num_hidden_layers": len(kinds)}
    if name.startswith("nemotron"):
        config["rms_norm_eps"] = config["layer_norm_epsilon"]
        del config["model_type"]  # or else the converter reads defaults of transformers, too
    if name == "nemotron_h":
        letters = {"mamba": "M", "attention": "*", "mlp": "-"}
        config["hybrid_override_pattern"] = "".join(letters[kind] for kind in kinds)
        groups = {"n_group", "topk_group"}
        return {
            key: one for key, one in config.items() if "expert" not in key and key not in groups
        }
    return config


def reference_logprobs(model: Any) -> list[float]:
    import torch

    with torch.no_grad():
        rows = model(torch.tensor([PROMPT])).logits[0].float().log_softmax(-1)
    found = rows[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    return [round(float(one), 6) for one in found]


@contextmanager
def _importing(sources: Path) -> Iterator[None]:
    """Lets modules be imported from llama.cpp's sources, with the gguf package of theirs."""
    before = {name: module for name, module in sys.modules.items() if name.startswith("gguf")}
    for name in before:
        del sys.modules[name]
    sys.path[:0] = [str(sources / "gguf-py"), str(sources)]
    yield
    del sys.path[:2]
    for name in [name for name in sys.modules if name.startswith("gguf")]:
        del sys.modules[name]
    sys.modules.update(before)


def convert(sources: Path, folder: Path, out: Path, kind: str) -> None:
    """Runs llama.cpp's converter, with a made-up vocabulary."""
    import torch

    with _importing(sources), torch.inference_mode():
        base: Any = importlib.import_module("conversion.base")
        found = importlib.import_module("conversion").get_model_class
        fields = base.ModelBase.load_hparams(folder, False)
        converter: Any = found(base.get_model_architecture(fields, base.ModelType.TEXT))

        def set_vocab(self: Any) -> None:
            writer = self.gguf_writer
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre("gpt-2")
            writer.add_token_list(["w", "1", "w1", *(f"w{i}" for i in range(3, VOCAB))])
            writer.add_token_types([1] * VOCAB)
            writer.add_token_merges(["w 1"])
            writer.add_bos_token_id(1)
            writer.add_eos_token_id(2)

        one = getattr(converter, "Ministral3Model", converter)
        one.set_vocab = set_vocab
        converter(folder, getattr(base.gguf.LlamaFileType, kind), out).write()


def main(sources: Path, num_configurations: int, names: Collection[str]) -> None:
    from tests.gpu_worker.model_runners import log_probabilities, make_runner

    recorded = json.loads(RECORDED.read_text())
    for name in names:
        for seed in range(1, num_configurations + 1) or [0]:
            with tempfile.TemporaryDirectory() as folder:
                model = make_model(Path(folder), name, seed)
                expected = reference_logprobs(model)
                out = FOLDER / f"{name}.gguf" if not seed else Path(folder) / "x.gguf"
                convert(sources, Path(folder), out, "ALL_F32" if seed else "MOSTLY_F16")
                runner = make_runner(out, quantization="none", block_size=16)
                actual = log_probabilities(runner, PROMPT)
            recorded[name] = expected
            pairs = zip(actual.tolist(), expected, strict=True)
            print(name, seed, max(abs(one - other) for one, other in pairs))
    if not num_configurations:
        RECORDED.write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int([*sys.argv, 0][2]), sys.argv[3:] or FAMILIES)
