"""BERT, DistilBERT, RoBERTa, MPNet: learned positions, and norms after residual sums."""

from dataclasses import fields

from torch import Tensor

from signalbox_worker.models.absolute_positions import AbsoluteConfig, absolute_layer
from signalbox_worker.models.distance_biases import DistanceBiases
from signalbox_worker.models.encoder import Encoder
from signalbox_worker.models.encoder_config import DISTANCE_BIASES, BertConfig, PlainConfig
from signalbox_worker.models.layers import (
    ForwardContext,
    LayerNorm,
    LearnedPositions,
    ParallelGroup,
    Placement,
    WeightTarget,
    activation,
)

_PARTS = {"q": "query", "k": "key", "v": "value"}


class BertEncoder(Encoder):
    """The whole model."""

    def __init__(
        self, config: BertConfig, max_model_len: int, placement: Placement, group: ParallelGroup
    ) -> None:
        of_layers = _layer_config(config)
        layers = [absolute_layer(of_layers, i, placement, group) for i in range(config.num_layers)]
        super().__init__(config, layers, placement, group)
        size, self.prefix = config.hidden_size, config.prefix
        self.positions = LearnedPositions(
            config.max_position, size, offset=config.position_offset, placement=placement
        )
        self.biases: DistanceBiases | None = None
        if config.num_distance_buckets:
            self.biases = DistanceBiases(
                config.num_distance_buckets,
                config.num_heads,
                num_positions=max_model_len,
                placement=placement,
            )
        for layer in layers:
            layer.attention.biases = self.biases
        self.norm = LayerNorm(size, eps=config.norm_eps, placement=placement)

    def own_targets(self) -> dict[str, WeightTarget]:
        targets: dict[str, WeightTarget] = {
            "embeddings.word_embeddings.weight": self.tokens.load_weight,
            "embeddings.position_embeddings.weight": self.positions.load_weight,
            **self.norm.weight_targets("embeddings.LayerNorm"),
        }
        if self.types is not None:
            targets["embeddings.token_type_embeddings.weight"] = self.types.load_weight
        if self.biases is not None:
            targets[DISTANCE_BIASES] = self.biases.load_weight
        return targets

    def layer_targets(self, index: int) -> dict[str, WeightTarget]:
        name, layer = f"encoder.layer.{index}", self.layers[index]
        qkv, out = layer.attention.qkv, layer.attention.out
        return {
            **qkv.weight_targets(**{k: f"{name}.attention.self.{v}" for k, v in _PARTS.items()}),
            **out.weight_targets(f"{name}.attention.output.dense"),
            **layer.attention_norm.weight_targets(f"{name}.attention.output.LayerNorm"),
            **layer.feed_forward.weight_targets(
                up=f"{name}.intermediate.dense", down=f"{name}.output.dense"
            ),
            **layer.feed_forward_norm.weight_targets(f"{name}.output.LayerNorm"),
        }

    def finish(self) -> None:
        super().finish()
        if self.biases is not None:
            self.biases.finish()

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        x = self.norm(self.embedded(token_ids, context) + self.positions(positions))
        for layer in self.layers:
            x = layer(x, context)
        return x


def _layer_config(config: BertConfig) -> AbsoluteConfig:
    return AbsoluteConfig(
        **{one.name: getattr(config, one.name) for one in fields(PlainConfig)},
        embedding_size=config.hidden_size,
        activation=activation(config.activation, config.architecture),
        tie_embeddings=True,
        norm_first=False,
    )
