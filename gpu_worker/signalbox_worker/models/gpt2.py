"""GPT-2 (Radford et al., 2019): weights stored transposed, Q, K and V of a layer as one."""

from collections.abc import Mapping
from typing import Any

from signalbox_worker.models.absolute_positions import AbsoluteConfig, AbsoluteDecoder
from signalbox_worker.models.encoder_config import plain_sizes
from signalbox_worker.models.family_config import counted, family, flag, small
from signalbox_worker.models.layers import WeightTarget, activation, split_target
from signalbox_worker.models.plain_layer import PlainLayer


@family("GPT2Config")
def gpt2_config(config: Mapping[str, Any]) -> AbsoluteConfig:
    sizes = plain_sizes(
        config, width="n_embd", heads="n_head", layers="n_layer", positions="n_positions"
    )
    return AbsoluteConfig(
        **sizes,
        embedding_size=sizes["hidden_size"],
        intermediate_size=counted(config, "n_inner", 4 * sizes["hidden_size"]),
        activation=activation(config["activation_function"], sizes["architecture"]),
        norm_eps=small(config, "layer_norm_epsilon"),
        tie_embeddings=flag(config, "tie_word_embeddings"),
    )


class Gpt2Decoder(AbsoluteDecoder):
    """The whole model."""

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = self.positions.weight_targets("wpe") | self.norm.weight_targets("ln_f")
        for index, layer in zip(self.stage.indices, self.layers, strict=True):
            targets |= {f"h.{index}.{k}": v for k, v in _layer_targets(layer).items()}
        targets = {f"transformer.{name}": target for name, target in targets.items()}
        return targets | self.ends.weight_targets("transformer.wte.weight", "lm_head.weight")

    def ignores(self, name: str) -> bool:
        """Old checkpoints hold the causal mask of each layer."""
        return super().ignores(name) or name.endswith((".attn.bias", ".attn.masked_bias"))


def _layer_targets(layer: PlainLayer) -> dict[str, WeightTarget]:
    attention = layer.attention
    mlp = layer.feed_forward.weight_targets(up="mlp.c_fc", down="mlp.c_proj")
    return {
        "attn.c_attn.weight": _transposed(split_target(attention.qkv.load_weight, "qkv")),
        "attn.c_attn.bias": split_target(attention.qkv.load_bias, "qkv"),
        "attn.c_proj.weight": _transposed(attention.out.load_weight),
        "attn.c_proj.bias": attention.out.load_bias,
        **{k: _transposed(v) if k.endswith(".weight") else v for k, v in mlp.items()},
        **layer.attention_norm.weight_targets("ln_1"),
        **layer.feed_forward_norm.weight_targets("ln_2"),
    }


def _transposed(target: WeightTarget) -> WeightTarget:
    """[in_features, out_features] in the checkpoint."""
    return lambda tensor: target(tensor.t())
