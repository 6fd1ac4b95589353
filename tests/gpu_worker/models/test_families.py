"""What is particular to a family: configurations old and new, what is refused, how experts work."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from signalbox_kernels.rounding import Rounding
from signalbox_kernels.structs import Element
from signalbox_kernels.torch.rounding import rounded
from signalbox_worker.config import ModelError
from signalbox_worker.models.attention import attention_backend
from signalbox_worker.models.attention.registry import register_attention_backend
from signalbox_worker.models.attention.torch_backend import TorchAttention
from signalbox_worker.models.decoder_config import (
    HfConfig,
    granite_config,
    llama_config,
    qwen2_config,
)
from signalbox_worker.models.gemma4_config import gemma4_config
from signalbox_worker.models.gemma_config import gemma2_config, gemma3_config, gemma_config
from signalbox_worker.models.glm_config import glm_config
from signalbox_worker.models.gpt2 import gpt2_config
from signalbox_worker.models.layers import ExpertNames, MixtureOfExperts, ParallelGroup, Placement
from signalbox_worker.models.mixture_config import (
    mixtral_config,
    qwen2_moe_config,
    qwen3_moe_config,
)
from signalbox_worker.models.opt import opt_config
from signalbox_worker.models.rope import FrequencyDivisors
from signalbox_worker.models.smollm_config import smollm3_config
from tests.gpu_worker.models.attention.device_attention import make_shape

CPU = torch.device("cpu")
SHAPES = {
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 7,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8,
}
GPT2 = {"vocab_size": 10, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
OPT = {**SHAPES, "ffn_dim": 8}
MIXTRAL = {**SHAPES, "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_MOE = {**MIXTRAL, "moe_intermediate_size": 4, "num_experts": 4}
WINDOWED = {"use_sliding_window": True, "sliding_window": 5}
ORIGINAL = "original_max_position_embeddings"
Reader = Callable[[HfConfig], Any]


def rotation(kind: str, **parameters: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, **parameters}}


def read(reader: Reader, config: Mapping[str, object], **changes: object) -> Any:
    return reader({"architectures": ["TinyForCausalLM"], **config, **changes})


@pytest.mark.parametrize(
    ("reader", "config", "changes", "message"),
    [
        (gpt2_config, GPT2, {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx true"),
        (gpt2_config, GPT2, {"scale_attn_weights": False}, "scale_attn_weights false"),
        (gpt2_config, GPT2, {"activation_function": "tanh"}, "'tanh' is not supported; use gelu"),
        (gpt2_config, GPT2, {"n_embd": None}, "n_embd = null"),
        (opt_config, OPT, {"ffn_dim": None}, "ffn_dim = null"),
        (gemma_config, SHAPES, {"hidden_act": "silu"}, "hidden_act 'silu' is not supported"),
        (gemma2_config, SHAPES, {"hidden_activation": "relu"}, "hidden_activation 'relu'"),
        (gemma2_config, SHAPES, {"use_bidirectional_attention": True}, "attention true"),
        (mixtral_config, MIXTRAL, {"num_experts_per_tok": 5}, r"must be in \[1, 4\]"),
        (mixtral_config, MIXTRAL, {"num_local_experts": 0}, "num_local_experts = 0"),
        (qwen3_moe_config, MIXTRAL, {"moe_intermediate_size": None}, "_size = null"),
        (qwen3_moe_config, QWEN_MOE, {"mlp_only_layers": 3}, "mlp_only_layers = 3"),
        (qwen3_moe_config, QWEN_MOE, {"mlp_only_layers": [[1]]}, r"mlp_only_layers = \[\[1"),
        (qwen2_config, SHAPES, WINDOWED | {"max_window_layers": "x"}, "max_window_layers = x"),
        (qwen2_moe_config, MIXTRAL, WINDOWED | {"max_window_layers": []}, r"_layers = \[\]"),
        (granite_config, SHAPES, {"residual_multiplier": 1e-200}, "a number that nothing can"),
        (granite_config, SHAPES, {"residual_multiplier": 1e200}, "a number that nothing can"),
        (gemma4_config, SHAPES, {"num_kv_shared_layers": [1]}, r"num_kv_shared_layers = \[1"),
        (gemma4_config, SHAPES, {"hidden_size_per_layer_input": "x"}, "_layer_input = x"),
        (gemma4_config, SHAPES, {"rope_parameters": 5}, "rope_parameters = 5"),
        (glm_config, SHAPES, {"partial_rotary_factor": 1e308}, "a number that nothing can"),
        (llama_config, SHAPES, rotation("linear", factor=1e308), "a number that nothing can"),
        (llama_config, SHAPES, rotation("yarn", factor=4, **{ORIGINAL: 0}), "nothing can"),
        (llama_config, SHAPES, rotation("yarn", factor=4, rope_theta=1), "are no numbers"),
        (llama_config, SHAPES, rotation("linear", factor=0.2, rope_theta=1e-300), "are no numbers"),
        (llama_config, SHAPES, rotation("divisors"), "without a divisors for each of 2"),
        (llama_config, SHAPES, rotation("longrope", short_factor=["a", 1]), "a short_factor"),
    ],
)
def test_what_is_not_served_is_refused(
    reader: Reader, config: Mapping[str, object], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read(reader, config, **changes)


def test_first_gemma_calls_its_activation_gelu() -> None:
    config = read(gemma_config, SHAPES, hidden_act="gelu")
    assert config.head_size == 256
    assert config.scale == 1 / 16
    assert config.tie_embeddings and not config.has_inner_norms


def test_gemma2_slides_in_every_other_layer_by_default() -> None:
    config = read(gemma2_config, SHAPES, sliding_window=5)
    assert config.sliding_windows == (5, None, 5, None, 5, None, 5)
    assert (config.attention_soft_cap, config.logit_soft_cap) == (50.0, 30.0)


def test_gemma3_reads_both_spellings_of_its_rotations() -> None:
    old = read(
        gemma3_config,
        SHAPES,
        sliding_window=5,
        sliding_window_pattern=3,
        rope_theta=9000.0,
        rope_local_base_freq=70.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    new = read(
        gemma3_config,
        SHAPES,
        sliding_window=5,
        layer_types=[*(["sliding_attention"] * 2 + ["full_attention"]) * 2, "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 9000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
        },
    )
    assert old == new
    assert old.sliding_windows == (5, 5, None, 5, 5, None, 5)
    assert (old.rope.theta, old.sliding_rope.theta) == (9000.0, 70.0)
    assert isinstance(old.rope.scaling, FrequencyDivisors)
    assert old.sliding_rope.scaling is None


def test_opt_without_bias_or_final_norm() -> None:
    config = read(opt_config, OPT, enable_bias=False, _remove_final_layer_norm=True)
    assert not config.bias and not config.final_norm
    after = read(opt_config, OPT, do_layer_norm_before=False, word_embed_proj_dim=4)
    assert not after.final_norm and after.embedding_size == 4


def test_qwen3_moe_alternates_with_plain_layers() -> None:
    config = read(
        qwen3_moe_config,
        {**MIXTRAL, "moe_intermediate_size": 4},
        decoder_sparse_step=3,
        mlp_only_layers=[5],
    )
    assert config.dense_layers == {0, 1, 3, 4, 5, 6}
    assert not config.renormalise


@pytest.mark.parametrize(
    ("fields", "unrotated"),
    [
        ({}, {3}),
        ({"no_rope_layer_interval": 3}, {2, 5}),
        ({"no_rope_layers": [1, 0, 1, 1, 1, 1, 0, 0], "no_rope_layer_interval": 2}, {1, 6}),
    ],
)
def test_smollm3_has_layers_without_positions(fields: dict[str, Any], unrotated: set[int]) -> None:
    sliding = {"use_sliding_window": True, "sliding_window": 5}
    config = read(smollm3_config, SHAPES, **sliding, **fields)
    assert config.unrotated_layers == unrotated
    assert config.sliding_windows == tuple(5 if i in unrotated else None for i in range(7))
    with pytest.raises(ModelError, match="the no_rope_layers of 7 layers"):
        read(smollm3_config, SHAPES, no_rope_layers=[1] * 6)


def test_attention_backend_that_caps_no_scores_is_refused() -> None:
    shape = make_shape(head_size=4, block_size=4, soft_cap=50.0)
    register_attention_backend("uncapped", TorchAttention)
    with pytest.raises(
        ValueError, match=r"'uncapped' caps no scores, as this model needs; use .*torch"
    ):
        attention_backend("uncapped", shape)
    register_attention_backend("uncapped", TorchAttention, caps_scores=True)
    assert attention_backend("uncapped", shape).block_bytes == 2 * 4 * 4 * 4


def test_attention_backend_without_sinks_is_refused() -> None:
    shape = make_shape(head_size=4, block_size=4, has_sinks=True)
    register_attention_backend("without", TorchAttention)
    with pytest.raises(ValueError, match=r"'without' has no sinks, .* use torch$"):
        attention_backend("without", shape)
    with pytest.raises(ValueError, match="'triton' has no sinks"):
        attention_backend("triton", shape)


COARSE = Rounding(code=Element.INT8, scale=0.3)
BY_TOKEN = Rounding(code=Element.FP8_E4M3)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(
    "roundings",
    [{}, {"gate": BY_TOKEN, "up": BY_TOKEN}, {"gate": COARSE, "up": BY_TOKEN}],
)
def test_tokens_are_computed_by_their_experts(
    renormalise: bool, roundings: dict[str, Rounding]
) -> None:
    torch.manual_seed(0)
    mixture = MixtureOfExperts(
        hidden_size=8,
        num_experts=5,
        experts_per_token=2,
        expert_size=12,
        renormalise=renormalise,
        names=ExpertNames("gate", "up", "down"),
        placement=Placement(CPU, torch.float32),
        group=ParallelGroup(),
    )
    targets = mixture.weight_targets()
    assert len(targets) == 16
    router, gate, up, down = (torch.randn(5, *size) for size in ((8,), (12, 8), (12, 8), (8, 12)))
    targets["gate.weight"](router)
    for expert in range(5):
        for name, weight in (("gate", gate), ("up", up), ("down", down)):
            targets[f"experts.{expert}.{name}.weight"](weight[expert])
    with pytest.raises(ModelError, match=r"shape \(8, 12\) where \(12, 8\) is expected"):
        targets["experts.1.up.weight"](down[1])
    mixture.finish()
    mixture.gate_up.round_inputs({f"experts.2.{name}": how for name, how in roundings.items()})
    x = torch.randn(40, 8)

    def input_of(name: str, expert: int, row: Tensor) -> Tensor:
        how = roundings.get(name) if expert == 2 else None
        return row if how is None else rounded(row[None], how)[0]

    shares = (x @ router.t()).softmax(-1)
    expected = torch.zeros_like(x)
    for token, row in enumerate(x):
        chosen = shares[token].argsort(descending=True)[:2].tolist()
        total = shares[token, chosen].sum() if renormalise else 1.0
        for e in chosen:
            gated = torch.nn.functional.silu(gate[e] @ input_of("gate", e, row))
            out = down[e] @ (gated * (up[e] @ input_of("up", e, row)))
            expected[token] += out * shares[token, e] / total
    torch.testing.assert_close(mixture(x), expected, rtol=1e-4, atol=1e-4)
    if roundings:
        mixture.down.round_inputs({"experts.2.down": COARSE})
        rows = torch.randn(3, 12)
        found = mixture.down.multiply(2, rows)
        torch.testing.assert_close(found, rounded(rows, COARSE) @ down[2].t(), rtol=1e-4, atol=1e-4)
