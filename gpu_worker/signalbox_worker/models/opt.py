"""OPT (Zhang et al., 2022): positions from row 2 on, norms before or after, ReLU."""

from collections.abc import Mapping
from typing import Any

from signalbox_worker.models.absolute_positions import AbsoluteConfig, AbsoluteDecoder
from signalbox_worker.models.encoder_config import plain_sizes
from signalbox_worker.models.family_config import counted, family, flag
from signalbox_worker.models.layers import WeightTarget, activation
from signalbox_worker.models.plain_layer import PlainLayer

_POSITION_OFFSET = 2


@family("OPTConfig")
def opt_config(config: Mapping[str, Any]) -> AbsoluteConfig:
    sizes, norm_first = plain_sizes(config), flag(config, "do_layer_norm_before")
    has_no_norm = flag(config, "_remove_final_layer_norm")
    return AbsoluteConfig(
        **sizes,
        embedding_size=counted(config, "word_embed_proj_dim", sizes["hidden_size"]),
        intermediate_size=counted(config, "ffn_dim"),
        activation=activation(config["activation_function"], sizes["architecture"]),
        norm_eps=1e-5,
        tie_embeddings=flag(config, "tie_word_embeddings"),
        position_offset=_POSITION_OFFSET,
        bias=flag(config, "enable_bias"),
        norm_first=norm_first,
        final_norm=norm_first and not has_no_norm,
        norm_affine=flag(config, "layer_norm_elementwise_affine"),
    )


class OptDecoder(AbsoluteDecoder):
    """The whole model."""

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = self.positions.weight_targets("embed_positions")
        targets |= self.norm.weight_targets("final_layer_norm")
        targets |= self.project_in.weight_targets(out="project_in")
        targets |= self.project_out.weight_targets(out="project_out")
        for index, layer in zip(self.stage.indices, self.layers, strict=True):
            targets |= {f"layers.{index}.{k}": v for k, v in _layer_targets(layer).items()}
        targets = {f"model.decoder.{name}": target for name, target in targets.items()}
        return targets | self.ends.weight_targets(
            "model.decoder.embed_tokens.weight", "lm_head.weight"
        )


def _layer_targets(layer: PlainLayer) -> dict[str, WeightTarget]:
    attention = layer.attention
    targets = attention.out.weight_targets("self_attn.out_proj")
    targets |= attention.qkv.weight_targets(
        **{part: f"self_attn.{part}_proj" for part in ("q", "k", "v")}
    )
    return (
        targets
        | layer.attention_norm.weight_targets("self_attn_layer_norm")
        | layer.feed_forward_norm.weight_targets("final_layer_norm")
        | layer.feed_forward.weight_targets(up="fc1", down="fc2")
    )
