"""config.json beside transformers, in every family: what is left out, null, old names, each name.

A case writes a tiny random model of transformers with another config.json, and compares what is
computed of it, unless the configuration is refused by the name of the field that was changed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from scripts.family_table import text
from signalbox_kernels.floats import DTYPES
from signalbox_worker.config import CacheConfig, ModelConfig, ModelError
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.kv.cache.cache_engine import CacheEngine
from signalbox_worker.models import ModelShape, architectures, find_model, model_spec
from signalbox_worker.models.attention import attention_backend
from signalbox_worker.models.family_config import ANY_MODEL, TABLE, families
from signalbox_worker.models.layers import ForwardContext, ParallelGroup, Placement
from signalbox_worker.runner.loading.attention_shape import attention_shape
from signalbox_worker.runner.loading.hf_directory import DirectorySource
from signalbox_worker.runner.loading.opened_model import open_with_config
from signalbox_worker.runner.loading.weight_loader import load_weights
from signalbox_worker.runner.native.native_model import stored_tensors
from signalbox_worker.runner.native.tensor_share import TensorShare
from signalbox_worker.runner.native.weights import WeightForm, Weights
from tests.gpu_worker.generation import make_batch, make_sequence
from tests.gpu_worker.model_runners import log_probabilities, make_runner
from tests.gpu_worker.tiny_models import make_tokenizer
from tests.rounding import LOGITS

CPU = torch.device("cpu")
PROMPT = [int(i) for i in torch.randint(3, 97, (40,), generator=torch.Generator().manual_seed(3))]
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
_MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
_LATENTS = {
    "num_key_value_heads": 8, "kv_lora_rank": 32, "q_lora_rank": 12, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32, "v_head_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
}  # fmt: skip
_GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 64}
_MAMBA = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_experts_per_tok": 2}
_DELTA = {
    "num_hidden_layers": 4, "head_dim": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "partial_rotary_factor": 0.5,
}  # fmt: skip
_CONVOLUTION = {
    "num_attention_heads": 4, "layer_types": ["conv", "full_attention", "conv"],
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": SHAPE,
    "Cohere2ForCausalLM": SHAPE | {"num_attention_heads": 4, "sliding_window": 9},
    "CohereForCausalLM": SHAPE | {"num_attention_heads": 4},
    "DeepseekV2ForCausalLM": SHAPE | _LATENTS,
    "DeepseekV3ForCausalLM": SHAPE | _LATENTS | {"n_group": 2, "topk_group": 1},
    "DistilBertForMaskedLM": {"vocab_size": 97, "dim": 64, "hidden_dim": 48, "n_layers": 3}
    | {"n_heads": 8, "max_position_embeddings": 64, "initializer_range": 0.05},
    "Exaone4ForCausalLM": SHAPE | {"num_attention_heads": 4, "sliding_window": 9},
    "GPT2LMHeadModel": {"vocab_size": 97, "initializer_range": 0.2, **_GPT2},
    "Gemma2ForCausalLM": SHAPE | {"head_dim": 8, "query_pre_attn_scalar": 24},
    "Gemma3ForCausalLM": SHAPE | {"head_dim": 8, "query_pre_attn_scalar": 24},
    "Gemma4ForCausalLM": SHAPE
    | {"head_dim": 16, "global_head_dim": 32, "vocab_size_per_layer_input": 97}
    | {"hidden_size_per_layer_input": 32, "initializer_range": 0.1}
    | {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "GemmaForCausalLM": SHAPE | {"head_dim": 8},
    "Glm4ForCausalLM": SHAPE | {"head_dim": 16, "pad_token_id": 0},
    "Glm4MoeLiteForCausalLM": SHAPE | _LATENTS | {"n_group": 2, "topk_group": 1},
    "Glm4MoeForCausalLM": SHAPE
    | {"head_dim": 16, "n_routed_experts": 4, "pad_token_id": 0}
    | _MIXTURE,
    "GlmForCausalLM": SHAPE | {"head_dim": 16, "pad_token_id": 0},
    "GptOssForCausalLM": SHAPE
    | {"num_attention_heads": 4, "num_key_value_heads": 4}
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "GraniteForCausalLM": SHAPE,
    "GraniteMoeForCausalLM": SHAPE
    | {"num_attention_heads": 4, "num_key_value_heads": 4}
    | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "GraniteMoeHybridForCausalLM": SHAPE
    | _MAMBA
    | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    | {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 2, "num_local_experts": 4}
    | {"shared_intermediate_size": 24},
    "HeliumForCausalLM": SHAPE | {"num_attention_heads": 4, "head_dim": 16},
    "Lfm2ForCausalLM": SHAPE | _CONVOLUTION | {"block_multiple_of": 16},
    "Lfm2MoeForCausalLM": SHAPE
    | _CONVOLUTION
    | _MIXTURE
    | {"num_experts": 4, "num_dense_layers": 1},
    "LlamaForCausalLM": SHAPE,
    "Ministral3ForCausalLM": SHAPE
    | {"head_dim": 16, "rope_parameters": YARN | {"factor": 4.0, "llama_4_scaling_beta": 0.3}},
    "MistralForCausalLM": SHAPE,
    "MixtralForCausalLM": SHAPE | {"num_local_experts": 4},
    "MPNetForMaskedLM": SHAPE | {"pad_token_id": 1},
    "ModernBertForMaskedLM": SHAPE | {"pad_token_id": 0},
    "NemotronHForCausalLM": SHAPE
    | _MAMBA
    | {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "head_dim": 16}
    | {"ssm_state_size": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2}
    | {"n_routed_experts": 4, "moe_intermediate_size": 32, "num_hidden_layers": 4}
    | {"moe_shared_expert_intermediate_size": 24},
    "NomicBertForMaskedLM": SHAPE,
    "Olmo2ForCausalLM": SHAPE | {"num_attention_heads": 4},
    "Olmo3ForCausalLM": SHAPE | {"num_attention_heads": 4, "sliding_window": 9},
    "OlmoeForCausalLM": SHAPE
    | {"num_attention_heads": 4, "num_key_value_heads": 4}
    | {"num_experts": 4, "num_experts_per_tok": 2},
    "OPTForCausalLM": SHAPE | {"ffn_dim": 48, "init_std": 0.2},
    "Phi3ForCausalLM": SHAPE | {"pad_token_id": 0},
    "Qwen2ForCausalLM": SHAPE,
    "Qwen2MoeForCausalLM": SHAPE
    | {"num_attention_heads": 4, "num_key_value_heads": 4}
    | {"num_experts": 4, "shared_expert_intermediate_size": 24}
    | _MIXTURE,
    "Qwen3ForCausalLM": SHAPE | {"head_dim": 8},
    "Qwen3MoeForCausalLM": SHAPE | {"num_experts": 4} | _MIXTURE,
    "Qwen3NextForCausalLM": SHAPE
    | _DELTA
    | _MIXTURE
    | {"num_experts": 4, "shared_expert_intermediate_size": 24},
    "Qwen3_5ForCausalLM": SHAPE | _DELTA,
    "Qwen3_5MoeForCausalLM": SHAPE
    | _DELTA
    | _MIXTURE
    | {"num_experts": 4, "shared_expert_intermediate_size": 24},
    "RobertaForMaskedLM": SHAPE,
    "SeedOssForCausalLM": SHAPE | {"head_dim": 8},
    "SmolLM3ForCausalLM": SHAPE | {"num_attention_heads": 4, "pad_token_id": 0},
    "XLMRobertaForMaskedLM": SHAPE,
}
"""An architecture of each configuration class, and a small config.json."""
LARGE = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "n_embd", "n_layer"}
"""Sizes whose defaults are those of large models."""
HEADS = {"num_attention_heads", "num_key_value_heads", "n_head"}
FEW_HEADS = {"Gemma2ForCausalLM", "Gemma3ForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"}
"""Families whose default of K and V heads divides 8."""
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
VALUES: dict[str, Any] = {
    "classifier_dropout": 0.5,
    "attention_chunk_size": 4,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 2.0,
    "attn_implementation": "eager",
    "dtype": "float32",
    "classifier_pooling": "mean",
    "embedding_size": 32,
    "experts_implementation": "eager",
    "head_dim": 12,
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "kv_sharing_modes": ["reuse", "reuse", "reuse"],
    "label2id": {"a": 0, "b": 1, "c": 2},
    "layer_types": KINDS,
    "local_attention": 10,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "mlp_only_layers": [1],
    "n_inner": 40,
    "no_rope_layer_interval": 2,
    "no_rope_layers": [0, 1, 0],
    "num_key_value_heads": 2,
    "num_labels": 3,
    "original_max_position_embeddings": 16,
    "pad_token_id": 5,
    "partial_rotary_factor": 0.5,
    "per_layer_config": {"0": {"rms_norm_eps": 0.1}},
    "problem_type": "regression",
    "query_pre_attn_scalar": 40,
    "return_dict": True,  # or tests could not read what a call returns
    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0},
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "sliding_window": 5,
    "summary_activation": "tanh",
    "torch_dtype": "float32",
    "use_bidirectional_attention": True,
    "word_embed_proj_dim": 40,
}
"""Other values than the usual ones; the rest follow from these."""
HARMLESS = {
    **{f"made_up_{i}": [None, True, 3, "text", {"a": 1}][i % 5] for i in range(20)},
    "auto_map": {"AutoConfig": "configuration_own.OwnConfig"},
    "unsloth_version": "2026.1", "unsloth_fixed": True, "task_specific_params": {"a": {}},
    "use_mrope": False, "rotary_emb_base": 5, "n_ctx": 7, "tokenizer_class": "Own",
    "gradient_checkpointing": False, "prefix": "x", "bad_words_ids": None, "torchscript": False,
    "finetuning_task": "x", "cache_implementation": "hybrid", "max_length": 20, "top_k": 3,
    "temperature": 0.5, "cross_attention_hidden_size": None, "rescale_every": 2, "quantum": {},
}  # fmt: skip
"""Names that no code of transformers reads."""


def entry_of(architecture: str) -> str:
    return str(getattr(transformers, architecture).config_class.__name__)


def other(name: str, value: Any) -> Any:
    """Returns another value of a field."""
    match value:
        case _ if name in VALUES:
            return VALUES[name]
        case bool():
            return not value
        case int() | float():
            return value + 1 if isinstance(value, int) else value * 3 + 0.01
        case str():
            return "relu"
    return 1


def config_of(architecture: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config.json; `...` leaves a field out."""
    config = {"architectures": [architecture], **FAMILIES[architecture], **changes}
    return {name: value for name, value in config.items() if value is not ...}


def make_theirs(architecture: str, config: Mapping[str, Any]) -> Any:
    """Makes transformers' model with random weights; ones and zeros hide mistakes."""
    kind = getattr(transformers, architecture)
    made = kind.config_class.from_dict(json.loads(json.dumps(config)))
    made._attn_implementation = "eager"  # which caps scores, and sees both ways by its mask alone
    torch.manual_seed(0)
    model = kind(made).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                is_norm = "norm" in name.lower() and name.endswith("weight")
                parameter.uniform_(0.5, 1.5) if is_norm else parameter.normal_(0, 0.3)
    return model


def theirs(model: Any) -> dict[bool, Tensor]:
    """Returns its logits, and the hidden states that are pooled."""
    with torch.no_grad():
        ids = torch.tensor([PROMPT])
        return {False: model(ids).logits[0], True: model.base_model(ids).last_hidden_state[0]}


def ours(path: Path) -> tuple[Any, Tensor | None]:
    """Returns the configuration and what the started model computes of the prompt; of one that is
    ours natively alone, log probabilities, and nothing if it pools."""
    opened = open_with_config(ModelConfig(model=str(path), model_impl="signalbox"), lambda _: None)
    config, placement, group = opened.config, Placement(CPU, torch.float32), ParallelGroup()
    if opened.is_native_only:
        runner = make_runner(path, block_size=16, max_model_len=64)
        return config, None if opened.pooling else log_probabilities(runner, PROMPT)
    model = opened.spec.build(config, 64, placement, group)
    with torch.inference_mode():
        load_weights(model, opened.source, lambda _: None)
        shape = attention_shape(opened, CacheConfig(block_size=16), placement, group, "")
        attention: Any = attention_backend("torch", shape)
        cache = CacheEngine(
            num_gpu_blocks=8, num_cpu_blocks=0, block_bytes=attention.block_bytes, device=CPU
        )
        attention.bind(cache.gpu_pool)
        batch = make_batch([(make_sequence(PROMPT, [4, 2, 6]), len(PROMPT))], block_size=16)
        ids, positions = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.positions)
        hidden: Any = model.forward(ids, positions, ForwardContext(attention.plan(batch)))
        pools: Any = opened.pooling and model
        return config, pools.normed(hidden) if pools else model.logits(hidden)


def check_tensors(path: Path, config: Any) -> None:
    """Raises ModelError if the files lack tensors of the native program, or have others."""
    layers = StageLayers(0, config.num_layers, config.num_layers)
    stored = stored_tensors(DirectorySource(path, name="x"), config, lambda _: None)
    Weights(stored, TensorShare(whole=config), layers, WeightForm(DTYPES["float32"]))


def states_of(config: Any) -> list[int]:
    """Returns the float32 values that each layer keeps of a sequence besides K and V."""
    return [num_bytes // 4 for num_bytes in ModelShape.of(config).state_bytes]


def states_of_theirs(model: Any) -> list[int]:
    """Returns the same of transformers' cache, whose convolutions keep an input more."""
    with torch.no_grad():
        layers = model(torch.tensor([PROMPT]), use_cache=True).past_key_values.layers
    found = []
    for layer in layers:
        inputs, matrices = (getattr(layer, f"{kind}_states", {}) for kind in ("conv", "recurrent"))
        values = sum(one[..., 1:].numel() for one in inputs.values())
        found.append(values + sum(one.numel() for one in matrices.values() if one is not None))
    return found


def windows_of(config: Any) -> list[int | None]:
    """Returns the windows of layers by transformers' configuration."""
    window, num_layers = getattr(config, "sliding_window", None), config.num_hidden_layers
    if config.model_type in ("ministral3", "mistral", "mixtral", "phi3", "qwen3_moe"):
        return [window] * num_layers
    if "layer_types" not in families()[type(config).__name__].fields:
        return [None] * num_layers
    return [window if kind == "sliding_attention" else None for kind in config.layer_types]


def check(
    path: Path, architecture: str, changes: Mapping[str, Any], **exceptions: Any
) -> str | None:
    """Compares a config.json with other fields, unless it is refused by the name of one.

    Args:
        exceptions: fields that transformers is given besides.

    Returns the message of a refusal.
    """
    config = config_of(architecture, changes)
    try:
        model_spec(config).read_config(config)
    except ModelError as error:
        assert any(name in str(error) for name in changes), f"not refused by name: {error}"
        return str(error)
    try:
        reference = make_theirs(architecture, config | exceptions)
        expected = theirs(reference)
    except Exception as error:  # no model of transformers has these fields
        return str(error)
    reference.save_pretrained(path)
    (path / "config.json").write_text(json.dumps(config))
    read = model_spec(config).read_config(config)
    if ModelShape.of(read).has_states:  # computed by test_native_hybrids.py
        assert states_of(read) == states_of_theirs(reference)
        check_tensors(path, read)
        return None
    read, found = ours(path)
    pools = not model_spec(config).generates or getattr(read, "is_bidirectional", False)
    wanted = expected[pools]
    if found is not None:
        if found.ndim == 1:
            following = torch.tensor(PROMPT[1:])[:, None]
            wanted = wanted[:-1].log_softmax(dim=-1).gather(1, following)[:, 0]
        torch.testing.assert_close(found, wanted, rtol=LOGITS, atol=10 * LOGITS)
    inclusive = not config.get("is_causal", True) or architecture.startswith("ModernBert")
    windows = [w and w + inclusive for w in windows_of(reference.config)]
    assert list(read.sliding_windows or [None] * len(windows)) == windows
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tokenizer(path)
    return path


def read_names(architecture: str) -> dict[str, Any]:
    """Returns the names that transformers reads, each with a value that a file may have."""
    entry, given = families()[entry_of(architecture)], FAMILIES[architecture]
    given = {entry.aliases.get(name, name): value for name, value in given.items()}
    return {
        name: given.get(name, one) for name, one in entry.defaults.items() if entry.is_read(name)
    }


OF_LOADERS = {
    "output_router_logits",
    "gradient_checkpointing", "initializer_range", "output_cross_attentions", "quantization_config",
    "vision_aspect_ratio", "vision_feature_layer", "vision_feature_select_strategy",
}  # fmt: skip
"""Names that training, loading and models of pictures read, and no model of text."""
ROTATIONS: list[dict[str, Any]] = [
    {"rope_theta": 300.0},
    {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_theta": 300.0, "rope_parameters": {"rope_type": "default", "rope_theta": 20.0}},
    {"rope_theta": 300.0, "rope_parameters": YARN, "rope_scaling": {}},
    {"rope_parameters": YARN, "original_max_position_embeddings": 32},
    {"rope_parameters": YARN | {"truncate": False}},
    {"rope_parameters": YARN | {"beta_fast": 1.0, "beta_slow": 32.0}},
    {"rope_parameters": YARN, "rope_scaling": {"type": "linear", "factor": 3.0}},
    {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    {"rope_scaling": YARN | {"rope_theta": 20.0}, "rope_theta": 300.0},
    {"rope_scaling": YARN, "rope_theta": 30.0, "rope_parameters": {"rope_theta": 300.0}},
    {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 2.0, 3.0, 4.0],
                      "long_factor": [4.0, 4.0, 5.0, 6.0], "factor": 8.0}},
]  # fmt: skip
OTHER_THAN_OF_THE_CLASS = {
    "rope_parameters": ...,
    "rope_scaling": YARN | {"factor": 4.0, "llama_4_scaling_beta": 0.3},
}
LAYER_ROTATIONS: list[dict[str, Any]] = [
    {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
    {"rope_parameters": {"sliding_attention": {"rope_theta": 40.0}}, "rope_theta": 90.0},
    {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 70.0},
    {"rope_parameters": {"full_attention": {"rope_theta": 40.0}}, "global_rope_theta": 80.0,
     "local_rope_theta": 60.0},
    {"rope_parameters": {"full_attention": {"rope_theta": 40.0}, "sliding_attention": None}},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        *(("LlamaForCausalLM", one) for one in ROTATIONS),
        ("Ministral3ForCausalLM", OTHER_THAN_OF_THE_CLASS),
        ("Ministral3ForCausalLM", OTHER_THAN_OF_THE_CLASS | {"rope_theta": 300.0}),
        *(("Phi3ForCausalLM", one) for one in (ROTATIONS[0], ROTATIONS[2], ROTATIONS[-1])),
        *(
            (name, one | {"layer_types": KINDS})
            for name in ("Gemma3ForCausalLM", "Olmo3ForCausalLM")
            for one in LAYER_ROTATIONS
        ),
        *(("ModernBertForMaskedLM", one | {"local_attention": 9}) for one in LAYER_ROTATIONS[:-1]),
    ],
)
def test_rotations_are_those_of_transformers(
    architecture: str, changes: dict[str, Any], folder: Path
) -> None:
    assert check(folder, architecture, changes) is None


def test_rotation_of_all_layers_is_refused_where_kinds_of_layers_have_theirs() -> None:
    config = config_of("ModernBertForMaskedLM", {"rope_parameters": {"rope_type": "linear"}})
    with pytest.raises(ModelError, match="rope_parameters"):
        model_spec(config).read_config(config)


def test_scaling_beside_parameters_keeps_their_base(folder: Path) -> None:
    """This is where a config.json says more than transformers takes of it."""
    parameters = {"rope_type": "default", "rope_theta": 300.0}
    changes = {"rope_parameters": parameters, "rope_scaling": YARN}
    assert check(folder, "Qwen2ForCausalLM", changes, rope_theta=300.0) is None


@pytest.mark.parametrize(
    ("architecture", "changes", "length"),
    [
        ("Qwen2ForCausalLM", {"rope_scaling": YARN | {"factor": 4.0}}, 64),
        ("Qwen2ForCausalLM", {"rope_scaling": YARN | {"factor": 8.0}}, 128),
        ("Qwen2ForCausalLM", {"rope_scaling": {"type": "yarn", "factor": 8.0}}, 512),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "factor": 4}}, 256),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.5}}, 160),
        ("Gemma3ForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 64),
        ("ModernBertForMaskedLM", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 128),
    ],
)
def test_windows_are_those_of_vllm(architecture: str, changes: Any, length: int) -> None:
    config = config_of(architecture, changes)
    assert model_spec(config).read_config(config).max_position == length


def test_decoder_that_sees_both_ways_pools_and_does_not_generate(folder: Path) -> None:
    window = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 6}
    assert check(folder, "Qwen2ForCausalLM", {"is_causal": False, **window}) is None
    with pytest.raises(ModelError, match="generates no tokens"):
        open_with_config(ModelConfig(model=str(folder), runner="generate"), lambda _: None)


def test_hybrid_family_whose_layers_all_attend_is_refused_by_that_reason() -> None:
    config = config_of("GraniteMoeHybridForCausalLM", {"layer_types": ["attention"] * 3})
    with pytest.raises(ModelError, match="whose layer_types all attend is not supported natively"):
        find_model(config, impl="auto", directory=None, trust_remote_code=False)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_table_has_all_names_that_a_run_reads(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, read = make_theirs(architecture, config_of(architecture, {})), set[str]()
    inner = transformers.PreTrainedConfig.__getattribute__

    def noting(config: Any, name: str) -> Any:
        read.add(name)
        return inner(config, name)

    monkeypatch.setattr(transformers.PreTrainedConfig, "__getattribute__", noting)
    with torch.no_grad():
        type(model)(model.config)(torch.tensor([PROMPT]), use_cache=True)
    entry, kind = families()[entry_of(architecture)], type(model.config)
    named = {entry.aliases.get(name, name) for name in read if not name.startswith("_")}
    others = {name for name in named - entry.defaults.keys() if not hasattr(kind, name)}
    assert others <= OF_LOADERS


def test_table_is_that_of_transformers() -> None:
    assert TABLE.read_text() == text(), "python -m scripts.family_table writes it"
    classes = {entry_of(one) for one in architectures() if hasattr(transformers, one)}
    assert classes == {entry_of(one) for one in FAMILIES} == families().keys() - {ANY_MODEL}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", FAMILIES)
def test_each_name_is_read_or_refused(architecture: str, folder: Path) -> None:
    for name, value in read_names(architecture).items():
        check(folder, architecture, {name: other(name, value)})


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_is_left_out_has_the_default_of_the_class(architecture: str, folder: Path) -> None:
    entry = families()[entry_of(architecture)]
    names = read_names(architecture).keys() - LARGE - HEADS
    check(folder, architecture, dict.fromkeys([*names, *entry.aliases], ...))
    if architecture in FEW_HEADS:
        check(folder, architecture, {"num_key_value_heads": ...})


@pytest.mark.parametrize("architecture", FAMILIES)
def test_null_is_not_the_default(architecture: str, folder: Path) -> None:
    entry = families()[entry_of(architecture)]
    names = read_names(architecture).keys()
    check(folder, architecture, dict.fromkeys(names - entry.not_null - {"is_causal"}))
    for name in names & entry.not_null:
        config = config_of(architecture, {name: None})
        with pytest.raises(ModelError, match=f"{name} (= )?null"):
            model_spec(config).read_config(config)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        *((one, {"tie_word_embeddings": False}) for one in FAMILIES if "MaskedLM" in one),
        ("ModernBertForMaskedLM", {"sep_token_id": 5, "cls_token_id": 4, "head_dim": 8}),
        *((f"{one}ForCausalLM", {"use_bidirectional_attention": False})
          for one in ("Gemma", "Gemma2", "Gemma3")),
    ],
)  # fmt: skip
def test_values_of_ordinary_files_start(
    architecture: str, changes: dict[str, Any], folder: Path
) -> None:
    assert check(folder, architecture, changes) is None


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_changes_nothing_stops_no_start(architecture: str, folder: Path) -> None:
    entry = families()[entry_of(architecture)]
    names = entry.defaults.keys() - read_names(architecture).keys() - {"architectures"}
    names -= {"pad_token_id"} if "Roberta" in architecture else set()
    names -= {"max_position_embeddings"} if "NemotronH" in architecture else set()
    changes = {name: other(name, entry.defaults[name]) for name in names}
    plain = make_theirs(architecture, config_of(architecture, {}))
    changed = make_theirs(architecture, config_of(architecture, changes | {"dtype": "float32"}))
    changed.load_state_dict(plain.state_dict(), strict=False)  # heads may have a bias more
    config = config_of(architecture, changes | HARMLESS)
    pools = not model_spec(config).generates
    torch.testing.assert_close(theirs(changed)[pools], theirs(plain)[pools])
    assert model_spec(config).read_config(config) == model_spec(config).read_config(
        config_of(architecture, {})
    )
