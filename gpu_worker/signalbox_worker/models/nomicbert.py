"""Nomic BERT: rotation, gated activations, and norms behind residual sums."""

import torch
from torch import Tensor

from signalbox_worker.models.encoder_config import NomicBertConfig, is_ignored
from signalbox_worker.models.layers import (
    Angles,
    ForwardContext,
    LayerNorm,
    LearnedPositions,
    MergedColumnParallelLinear,
    Model,
    ParallelGroup,
    Placement,
    QKVParallelLinear,
    RotaryEmbedding,
    RowParallelLinear,
    VocabParallelEmbedding,
    WeightTarget,
    activation,
)

_PREFIX = "nomic_bert"


class NomicBertLayer:
    """Attention and a gated feed-forward, each with a norm behind it; no biases."""

    def __init__(
        self, config: NomicBertConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> None:
        self._layer, self._head_size = layer, config.head_size
        self._activation = activation(config.activation, config.architecture)
        size, inner = config.hidden_size, config.intermediate_size
        self.attention_norm, self.feed_forward_norm = (
            LayerNorm(size, eps=config.norm_eps, placement=placement) for _ in range(2)
        )
        self.qkv = QKVParallelLinear(
            hidden_size=size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_size=config.head_size,
            bias=False,
            placement=placement,
            group=group,
        )
        self.gate_up = MergedColumnParallelLinear(
            in_features=size,
            out_features={"gate": inner, "up": inner},
            bias=False,
            placement=placement,
            group=group,
        )
        self.out, self.down = (
            RowParallelLinear(
                in_features=rows, out_features=size, bias=False, placement=placement, group=group
            )
            for rows in (size, inner)
        )

    def __call__(self, x: Tensor, angles: Angles, context: ForwardContext) -> Tensor:
        x = self.attention_norm(self._attended(x, angles, context).add_(x))
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.feed_forward_norm(self.down(self._activation(gate).mul_(up)).add_(x))

    def _attended(self, x: Tensor, angles: Angles, context: ForwardContext) -> Tensor:
        num_heads = self.qkv.num_heads
        heads = self.qkv(x).view(-1, 3 * num_heads, self._head_size)
        angles.rotate(heads[:, : 2 * num_heads])
        key_value = heads[:, num_heads:].view(-1, 2, num_heads, self._head_size)
        return self.out(context.attention(heads[:, :num_heads], key_value, layer=self._layer))

    def weight_targets(self) -> dict[str, WeightTarget]:
        return {
            **self.qkv.weight_targets(**{one: f"self_attn.{one}_proj" for one in "qkv"}),
            **self.out.weight_targets("self_attn.o_proj"),
            **self.attention_norm.weight_targets("post_attention_layernorm"),
            **self.gate_up.weight_targets(gate="mlp.gate_proj", up="mlp.up_proj"),
            **self.down.weight_targets("mlp.down_proj"),
            **self.feed_forward_norm.weight_targets("post_mlp_layernorm"),
        }

    def finish(self) -> None:
        for layer in (self.qkv, self.out, self.gate_up, self.down):
            layer.finish()


class NomicBertEncoder(Model):
    """The whole model."""

    pools = True

    def __init__(
        self,
        config: NomicBertConfig,
        max_model_len: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self.config, size = config, config.hidden_size
        self.rotary = RotaryEmbedding(
            config.rope,
            head_size=config.head_size,
            max_position=max_model_len,
            placement=placement,
        )
        self.tokens = VocabParallelEmbedding(
            vocab_size=config.vocab_size, hidden_size=size, placement=placement, group=group
        )
        self.types = LearnedPositions(config.num_token_types, size, offset=0, placement=placement)
        self.norm = LayerNorm(size, eps=config.norm_eps, placement=placement)
        self.layers = [
            NomicBertLayer(config, i, placement, group) for i in range(config.num_layers)
        ]

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets: dict[str, WeightTarget] = {
            "embeddings.word_embeddings.weight": self.tokens.load_weight,
            "embeddings.token_type_embeddings.weight": self.types.load_weight,
            **self.norm.weight_targets("embeddings.LayerNorm"),
        }
        for index, layer in enumerate(self.layers):
            targets |= {f"layers.{index}.{k}": v for k, v in layer.weight_targets().items()}
        return {f"{_PREFIX}.{name}": target for name, target in targets.items()}

    def ignores(self, name: str) -> bool:
        return is_ignored(name, _PREFIX)

    def finish(self) -> None:
        for layer in self.layers:
            layer.finish()

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        types = torch.zeros_like(positions)
        if context.token_types is not None:
            types = context.token_types.long().clamp(max=self.config.num_token_types - 1)
        x = self.norm(self.tokens(token_ids) + self.types(types))
        angles = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, angles, context)
        return x

    def normed(self, hidden: Tensor) -> Tensor:
        return hidden
