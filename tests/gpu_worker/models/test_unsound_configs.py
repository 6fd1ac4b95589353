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
