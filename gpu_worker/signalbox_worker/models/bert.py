"""BERT, DistilBERT, RoBERTa: learned positions and token types, and norms after residual sums."""

from dataclasses import fields

import torch
from torch import Tensor

from signalbox_worker.models.absolute_positions import AbsoluteConfig, AbsoluteLayer
from signalbox_worker.models.encoder_config import BertConfig, PlainConfig, is_ignored
from signalbox_worker.models.layers import (
    ForwardContext,
    LayerNorm,
    LearnedPositions,
    Model,
    ParallelGroup,
    Placement,
    VocabParallelEmbedding,
    WeightTarget,
    activation,
)

_PARTS = {"q": "query", "k": "key", "v": "value"}


class BertEncoder(Model):
    """The whole model."""

    pools = True

    def __init__(
        self, config: BertConfig, max_model_len: int, placement: Placement, group: ParallelGroup
    ) -> None:
        self.config = config
        size = config.hidden_size
        self.tokens = VocabParallelEmbedding(
            vocab_size=config.vocab_size, hidden_size=size, placement=placement, group=group
        )
        self.positions = LearnedPositions(
            config.max_position, size, offset=config.position_offset, placement=placement
        )
        self.types: LearnedPositions | None = None
        if config.num_token_types:
            self.types = LearnedPositions(
                config.num_token_types, size, offset=0, placement=placement
            )
        self.norm = LayerNorm(size, eps=config.norm_eps, placement=placement)
        layers = _layer_config(config)
        self.layers = [AbsoluteLayer(layers, i, placement, group) for i in range(config.num_layers)]

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets: dict[str, WeightTarget] = {
            "embeddings.word_embeddings.weight": self.tokens.load_weight,
            "embeddings.position_embeddings.weight": self.positions.load_weight,
            **self.norm.weight_targets("embeddings.LayerNorm"),
        }
        if self.types is not None:
            targets["embeddings.token_type_embeddings.weight"] = self.types.load_weight
        for index, layer in enumerate(self.layers):
            targets |= {f"encoder.layer.{index}.{k}": v for k, v in _layer_targets(layer).items()}
        return {f"{self.config.prefix}.{name}": target for name, target in targets.items()}

    def ignores(self, name: str) -> bool:
        return is_ignored(name, self.config.prefix)

    def finish(self) -> None:
        for layer in self.layers:
            layer.finish()

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        x = self.tokens(token_ids)
        if self.types is not None:
            x = x + self.types(self._types(positions, context))
        x = self.norm(x + self.positions(positions))
        for layer in self.layers:
            x = layer(x, context)
        return x

    def _types(self, positions: Tensor, context: ForwardContext) -> Tensor:
        """Returns [num_tokens] int64; a model of one type has all tokens in it."""
        if context.token_types is None:
            return torch.zeros_like(positions)
        return context.token_types.long().clamp(max=self.config.num_token_types - 1)

    def normed(self, hidden: Tensor) -> Tensor:
        return hidden


def _layer_config(config: BertConfig) -> AbsoluteConfig:
    return AbsoluteConfig(
        **{one.name: getattr(config, one.name) for one in fields(PlainConfig)},
        embedding_size=config.hidden_size,
        activation=activation(config.activation, config.architecture),
        tie_embeddings=True,
        norm_first=False,
    )


def _layer_targets(layer: AbsoluteLayer) -> dict[str, WeightTarget]:
    qkv, out = layer.attention.qkv, layer.attention.out
    names = {part: f"attention.self.{name}" for part, name in _PARTS.items()}
    return {
        **qkv.weight_targets(**names),
        **out.weight_targets("attention.output.dense"),
        **layer.attention_norm.weight_targets("attention.output.LayerNorm"),
        **layer.feed_forward.weight_targets(up="intermediate.dense", down="output.dense"),
        **layer.feed_forward_norm.weight_targets("output.LayerNorm"),
    }
