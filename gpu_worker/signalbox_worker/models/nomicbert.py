"""Nomic BERT: rotation, gated activations, and norms behind residual sums."""

from torch import Tensor

from signalbox_worker.models.encoder import Encoder, gated_layer
from signalbox_worker.models.encoder_config import NomicBertConfig
from signalbox_worker.models.layers import (
    ForwardContext,
    LayerNorm,
    ParallelGroup,
    Placement,
    RotaryEmbedding,
    WeightTarget,
)


class NomicBertEncoder(Encoder):
    """The whole model."""

    prefix = "nomic_bert"

    def __init__(
        self,
        config: NomicBertConfig,
        max_model_len: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        def norm() -> LayerNorm:
            return LayerNorm(config.hidden_size, eps=config.norm_eps, placement=placement)

        layers = [
            gated_layer(config, i, placement, group, (norm(), norm()), norm_first=False)
            for i in range(config.num_layers)
        ]
        super().__init__(config, layers, placement, group)
        self.rotary = RotaryEmbedding(
            config.rope,
            head_size=config.head_size,
            max_position=max_model_len,
            placement=placement,
        )
        self.norm = norm()

    def own_targets(self) -> dict[str, WeightTarget]:
        assert self.types is not None, "of a family with types"
        return {
            "embeddings.word_embeddings.weight": self.tokens.load_weight,
            "embeddings.token_type_embeddings.weight": self.types.load_weight,
            **self.norm.weight_targets("embeddings.LayerNorm"),
        }

    def layer_targets(self, index: int) -> dict[str, WeightTarget]:
        name, layer = f"layers.{index}", self.layers[index]
        qkv, out = layer.attention.qkv, layer.attention.out
        parts = {part: f"{name}.mlp.{part}_proj" for part in ("gate", "up", "down")}
        return {
            **qkv.weight_targets(**{part: f"{name}.self_attn.{part}_proj" for part in "qkv"}),
            **out.weight_targets(f"{name}.self_attn.o_proj"),
            **layer.attention_norm.weight_targets(f"{name}.post_attention_layernorm"),
            **layer.feed_forward.weight_targets(**parts),
            **layer.feed_forward_norm.weight_targets(f"{name}.post_mlp_layernorm"),
        }

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        x, angles = self.norm(self.embedded(token_ids, context)), self.rotary(positions)
        for layer in self.layers:
            x = layer(x, context, angles)
        return x
