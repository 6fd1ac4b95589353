"""Parts that the encoders of all families have: embeddings, layers, and names in checkpoints."""

from collections.abc import Sequence

import torch
from torch import Tensor

from signalbox_worker.models.encoder_config import EncoderConfig, is_ignored
from signalbox_worker.models.layers import (
    ForwardContext,
    GatedFeedForward,
    LayerNorm,
    LearnedPositions,
    Model,
    ParallelGroup,
    Placement,
    VocabParallelEmbedding,
    WeightTarget,
    activation,
)
from signalbox_worker.models.plain_layer import Absent, PlainLayer, SelfAttention


class Encoder(Model):
    """All of `Model` except the forward pass and the names of the weights."""

    pools = True
    prefix: str
    """Beginning of the names of weights, in checkpoints of more than the encoder."""

    def __init__(
        self,
        config: EncoderConfig,
        layers: Sequence[PlainLayer],
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self.config, self.layers, size = config, layers, config.hidden_size
        self.tokens = VocabParallelEmbedding(
            vocab_size=config.vocab_size, hidden_size=size, placement=placement, group=group
        )
        self.types: LearnedPositions | None = None
        if config.num_token_types:
            self.types = LearnedPositions(
                config.num_token_types, size, offset=0, placement=placement
            )

    def own_targets(self) -> dict[str, WeightTarget]:
        """Returns the targets of the embeddings and of the norms outside layers, by their names in
        the bare encoder."""
        raise NotImplementedError

    def layer_targets(self, index: int) -> dict[str, WeightTarget]:
        """Returns the targets of a layer, by their names in the bare encoder."""
        raise NotImplementedError

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = self.own_targets()
        for index in range(len(self.layers)):
            targets |= self.layer_targets(index)
        return {f"{self.prefix}.{name}": target for name, target in targets.items()}

    def ignores(self, name: str) -> bool:
        return is_ignored(name, self.prefix)

    def finish(self) -> None:
        for layer in self.layers:
            layer.finish()

    def embedded(self, token_ids: Tensor, context: ForwardContext) -> Tensor:
        """Returns the embeddings of tokens and of their types; a batch without types has the
        first alone."""
        x = self.tokens(token_ids)
        if self.types is None:
            return x
        types = torch.zeros_like(token_ids)
        if context.token_types is not None:
            types = context.token_types.long().clamp(max=self.config.num_token_types - 1)
        return x + self.types(types)

    def normed(self, hidden: Tensor) -> Tensor:
        return hidden


def gated_layer(
    config: EncoderConfig,
    layer: int,
    placement: Placement,
    group: ParallelGroup,
    norms: tuple[LayerNorm | Absent, LayerNorm],
    *,
    norm_first: bool,
    attention_bias: bool = False,
    mlp_bias: bool = False,
) -> PlainLayer:
    """Makes a layer with a gated feed-forward."""
    feed_forward = GatedFeedForward(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        activation=activation(config.activation, config.architecture),
        bias=mlp_bias,
        placement=placement,
        group=group,
    )
    attention = SelfAttention(config, layer, placement, group, bias=attention_bias)
    return PlainLayer(attention, feed_forward, norms, norm_first=norm_first)
