"""ModernBERT: rotation by a base for each kind of layer, gated activations, norms before layers."""

from torch import Tensor

from signalbox_worker.models.encoder import Encoder, gated_layer
from signalbox_worker.models.encoder_config import ModernBertConfig
from signalbox_worker.models.layers import (
    ForwardContext,
    LayerNorm,
    ParallelGroup,
    Placement,
    RotaryEmbedding,
    WeightTarget,
    split_target,
)
from signalbox_worker.models.plain_layer import Absent, PlainLayer
from signalbox_worker.models.rope import RopeConfig


class ModernBertEncoder(Encoder):
    """The whole model."""

    prefix = "model"

    def __init__(
        self,
        config: ModernBertConfig,
        max_model_len: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        def rotary(rope: RopeConfig) -> RotaryEmbedding:
            return RotaryEmbedding(
                rope, head_size=config.head_size, max_position=max_model_len, placement=placement
            )

        layers = [_layer(config, i, placement, group) for i in range(config.num_layers)]
        super().__init__(config, layers, placement, group)
        self.rotary, self.sliding_rotary = rotary(config.rope), rotary(config.sliding_rope)
        self.embedding_norm, self.norm = (_norm(config, placement) for _ in range(2))

    def own_targets(self) -> dict[str, WeightTarget]:
        return {
            "embeddings.tok_embeddings.weight": self.tokens.load_weight,
            **self.embedding_norm.weight_targets("embeddings.norm"),
            **self.norm.weight_targets("final_norm"),
        }

    def layer_targets(self, index: int) -> dict[str, WeightTarget]:
        name, layer = f"layers.{index}", self.layers[index]
        attention, feed_forward = layer.attention, layer.feed_forward
        targets = attention.out.weight_targets(f"{name}.attn.Wo")
        targets |= feed_forward.down.weight_targets(f"{name}.mlp.Wo")
        targets |= layer.feed_forward_norm.weight_targets(f"{name}.mlp_norm")
        targets |= layer.attention_norm.weight_targets(f"{name}.attn_norm")
        for part, product, rows in (
            ("attn.Wqkv", attention.qkv, ("q", "k", "v")),
            ("mlp.Wi", feed_forward.up, feed_forward.inputs),
        ):
            targets[f"{name}.{part}.weight"] = split_target(product.load_weight, rows)
            if product.has_bias:
                targets[f"{name}.{part}.bias"] = split_target(product.load_bias, rows)
        return targets

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        angles, sliding_angles = self.rotary(positions), self.sliding_rotary(positions)
        x = self.embedding_norm(self.embedded(token_ids, context))
        for layer, window in zip(self.layers, self.config.sliding_windows, strict=True):
            x = layer(x, context, angles if window is None else sliding_angles)
        return x

    def normed(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden)


def _layer(
    config: ModernBertConfig, layer: int, placement: Placement, group: ParallelGroup
) -> PlainLayer:
    """Makes a layer; the first has one norm less."""
    return gated_layer(
        config,
        layer,
        placement,
        group,
        (_norm(config, placement) if layer else Absent(), _norm(config, placement)),
        norm_first=True,
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
    )


def _norm(config: ModernBertConfig, placement: Placement) -> LayerNorm:
    return LayerNorm(
        config.hidden_size, eps=config.norm_eps, placement=placement, has_bias=config.norm_bias
    )
