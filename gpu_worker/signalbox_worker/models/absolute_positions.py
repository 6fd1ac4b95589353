"""The decoder of the families with learned absolute positions: OPT and GPT-2.

One implementation; `AbsoluteConfig` holds what differs, and each family names its weights.
"""

from dataclasses import dataclass

from torch import Tensor

from signalbox_worker.models.encoder_config import PlainConfig
from signalbox_worker.models.layers import (
    Activation,
    ForwardContext,
    LayerNorm,
    LearnedPositions,
    MergedColumnParallelLinear,
    Model,
    ParallelGroup,
    Placement,
    PlainFeedForward,
    VocabularyEnds,
)
from signalbox_worker.models.plain_layer import Absent, PlainLayer, SelfAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteConfig(PlainConfig):
    """Shapes and flags; whole numbers of the model, not of a shard."""

    embedding_size: int
    """Size of the token embeddings; projected if it is not `hidden_size` (OPT-350m)."""
    activation: Activation
    tie_embeddings: bool
    position_offset: int = 0
    """Number of rows before that of position 0 in the table of positions."""
    bias: bool = True
    norm_first: bool = True
    """True if norms come before attention and feed-forward, False if after the residual sum."""
    final_norm: bool = True
    norm_affine: bool = True


def absolute_layer(
    config: AbsoluteConfig, layer: int, placement: Placement, group: ParallelGroup
) -> PlainLayer:
    feed_forward = PlainFeedForward(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        activation=config.activation,
        bias=config.bias,
        placement=placement,
        group=group,
    )
    return PlainLayer(
        SelfAttention(config, layer, placement, group, bias=config.bias),
        feed_forward,
        (_norm(config, placement), _norm(config, placement)),
        norm_first=config.norm_first,
    )


class AbsoluteDecoder(Model):
    """All of `Model` except the names of the weights."""

    def __init__(
        self,
        config: AbsoluteConfig,
        max_model_len: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self.config = config
        self.stage = group.stage(config.num_layers)
        self.ends = VocabularyEnds(
            self.stage,
            vocab_size=config.vocab_size,
            hidden_size=config.embedding_size,
            is_tied=config.tie_embeddings,
            placement=placement,
            group=group,
        )
        self.positions: LearnedPositions | Absent = Absent()
        if self.stage.is_first:
            self.positions = LearnedPositions(
                config.max_position,
                config.hidden_size,
                offset=config.position_offset,
                placement=placement,
            )
        self.layers = [
            absolute_layer(config, layer, placement, group) for layer in self.stage.indices
        ]
        has_norm = config.final_norm and self.stage.is_last
        self.norm = _norm(config, placement) if has_norm else Absent()
        inner, outer = config.hidden_size, config.embedding_size
        projects_in = inner != outer and self.stage.is_first
        projects_out = inner != outer and self.stage.is_last
        self.project_in = _projection(outer, inner, placement) if projects_in else Absent()
        self.project_out = _projection(inner, outer, placement) if projects_out else Absent()

    def ignores(self, name: str) -> bool:
        return self.config.tie_embeddings and name == "lm_head.weight"

    def finish(self) -> None:
        for layer in self.layers:
            layer.finish()
        self.project_in.finish()
        self.project_out.finish()
        self.ends.finish()

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        x = self._embedded(token_ids, positions) if self.stage.is_first else context.hidden_before
        for layer in self.layers:
            x = layer(x, context)
        return x

    def _embedded(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        return self.project_in(self.ends.embedded(token_ids)) + self.positions(positions)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.ends.head(self.project_out(self.norm(hidden)))


def _norm(config: AbsoluteConfig, placement: Placement) -> LayerNorm:
    return LayerNorm(
        config.hidden_size,
        eps=config.norm_eps,
        placement=placement,
        is_affine=config.norm_affine,
    )


def _projection(
    in_features: int, out_features: int, placement: Placement
) -> MergedColumnParallelLinear:
    """A linear layer that every shard computes whole."""
    return MergedColumnParallelLinear(
        in_features=in_features,
        out_features={"out": out_features},
        bias=False,
        placement=placement,
        group=ParallelGroup(),
    )
