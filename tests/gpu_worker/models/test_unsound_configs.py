"""Every field of every family with values that no model has: each is read, or refused by its name.

A huge one takes neither time nor memory before it is refused.
"""

import pytest

from signalbox_worker.config import ModelError
from signalbox_worker.models import architectures, model_spec
from signalbox_worker.models.decoder_config import MAX_NUM_LAYERS
from signalbox_worker.models.family_config import families
from signalbox_worker.models.model_shape import ModelShape
from tests.gpu_worker.unsound_values import UNSOUND

FAMILIES = {name: min(one.architectures) for name, one in families().items() if one.architectures}


def test_each_architecture_is_of_a_family() -> None:
    assert architectures() == {name for one in families().values() for name in one.architectures}


@pytest.mark.parametrize("name", FAMILIES)
def test_each_value_is_read_or_refused(name: str) -> None:
    family = families()[name]
    layers = family.aliases.get("num_hidden_layers", "num_hidden_layers")
    base = {"architectures": [FAMILIES[name]], layers: 2, "enable_moe_block": True}
    spec = model_spec(base)
    for field in sorted({*family.defaults, *family.aliases} - {"architectures"}):
        for value in UNSOUND:
            try:
                shape = ModelShape.of(spec.read_config({**base, field: value}))
            except ModelError:
                continue
            assert 0 < shape.num_layers <= MAX_NUM_LAYERS, f"{field} = {value}"


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("GPT2LMHeadModel", {"activation_function": ["gelu"]}, r"activation .*\['gelu'\]"),
        ("GPT2LMHeadModel", {"n_embd": 3}, "n_embd = 3, which n_head = 12 does not divide"),
        ("GPT2LMHeadModel", {"n_layer": (1 << 31) - 1}, r"n_layer = 2147483647, .* \[1, 4096\]"),
        ("OPTForCausalLM", {"num_attention_heads": 5}, "which num_attention_heads = 5 does not"),
        ("Qwen3MoeForCausalLM", {"num_experts": 1 << 30}, "num_experts = 1073741824, which is no"),
        ("LlamaForCausalLM", {"head_dim": 1 << 30}, "head_dim = 1073741824, which is no"),
        ("Gemma4ForCausalLM", {"global_head_dim": 1 << 30}, "global_head_dim = 1073741824, which"),
        (
            "Qwen3NextForCausalLM",
            {"linear_num_value_heads": 5},
            "linear_num_value_heads = 5, which linear_num_key_heads = 16 does not divide",
        ),
        ("Qwen3_5ForCausalLM", {"attn_output_gate": False}, "attn_output_gate false is not"),
        ("Lfm2ForCausalLM", {"full_attn_idxs": [0.5]}, r"full_attn_idxs = \[0.5\]"),
        ("Lfm2ForCausalLM", {"block_ff_dim": 1}, "block_ff_dim = 1, of which two thirds are none"),
        ("Lfm2MoeForCausalLM", {}, "layer_types = None, which are no names"),
        (
            "GraniteMoeHybridForCausalLM",
            {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"], "mamba_n_heads": 100},
            "mamba_n_heads = 100 of mamba_d_head = 81, which are not",
        ),
        (
            "NemotronHForCausalLM",
            {"hybrid_override_pattern": "M-X*"},
            r"hybrid_override_pattern = M-X\*, which has other letters than M E",
        ),
        (
            "NemotronHForCausalLM",
            {"mamba_n_groups": 3},
            "mamba_num_heads = 128, which mamba_n_groups",
        ),
        (
            "NemotronHForCausalLM",
            {"time_step_limit": [0.01, 1.0]},
            r"time_step_limit \[0.01, 1.0\] is not supported",
        ),
        (
            "MistralForCausalLM",
            {"num_hidden_layers": 1, "layer_types": [{}]},
            "layer_types of '{}' are not supported",
        ),
    ],
)
def test_refusal_names_the_field(
    architecture: str, changes: dict[str, object], reason: str
) -> None:
    config = {"architectures": [architecture], **changes}
    with pytest.raises(ModelError, match=reason):
        model_spec(config).read_config(config)


@pytest.mark.parametrize(
    ("architecture", "changes", "num_values"),
    [
        ("Qwen3_5ForCausalLM", {}, 24 * (32 * 128 * 128 + 3 * 8192)),
        ("Lfm2ForCausalLM", {"full_attn_idxs": [2, 5], "num_hidden_layers": 6}, 4 * 2 * 2560),
        (
            "GraniteMoeHybridForCausalLM",
            {"layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
            128 * 64 * 256 + 3 * (128 * 64 + 2 * 256),
        ),
        (
            "NemotronHForCausalLM",
            {"hybrid_override_pattern": "M-M*E", "mamba_n_groups": 4},
            2 * (128 * 64 * 128 + 3 * (128 * 64 + 2 * 4 * 128)),
        ),
    ],
)
def test_state_of_a_sequence_is_that_of_all_recurrent_layers(
    architecture: str, changes: dict[str, object], num_values: int
) -> None:
    config = {"architectures": [architecture], **changes}
    shape = ModelShape.of(model_spec(config).read_config(config))
    assert sum(shape.state_bytes) == 4 * num_values
