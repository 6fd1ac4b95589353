"""The decoder of the families with learned absolute positions: OPT and GPT-2.

One implementation; `AbsoluteConfig` holds what differs, and each family names its weights.
"""

from collections.abc import Callable
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
    QKVParallelLinear,
    RowParallelLinear,
    VocabularyEnds,
    WeightTarget,
)


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


class AbsoluteAttention:
    """Projections around attention; the embeddings carry the positions."""

    def __init__(
        self, config: AbsoluteConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> None:
        self._layer = layer - group.stage(config.num_layers).start  # in this stage's cache
        self._head_size = config.head_size
        self.qkv = QKVParallelLinear(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            bias=config.bias,
            placement=placement,
            group=group,
        )
        self.out = RowParallelLinear(
            in_features=config.hidden_size,
            out_features=config.hidden_size,
            bias=config.bias,
            placement=placement,
            group=group,
        )

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        num_heads = self.qkv.num_heads
        heads = self.qkv(x).view(-1, 3 * num_heads, self._head_size)
        key_value = heads[:, num_heads:].view(-1, 2, num_heads, self._head_size)
        return self.out(context.attention(heads[:, :num_heads], key_value, layer=self._layer))


class AbsoluteLayer:
    """Attention and feed-forward, each with a norm before or after it."""

    def __init__(
        self, config: AbsoluteConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> None:
        self._norm_first = config.norm_first
        self.attention_norm = _norm(config, placement)
        self.attention = AbsoluteAttention(config, layer, placement, group)
        self.feed_forward_norm = _norm(config, placement)
        self.feed_forward = PlainFeedForward(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            activation=config.activation,
            bias=config.bias,
            placement=placement,
            group=group,
        )

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        x = self._beside(x, self.attention_norm, lambda h: self.attention(h, context))
        return self._beside(x, self.feed_forward_norm, self.feed_forward)

    def _beside(self, x: Tensor, norm: LayerNorm, inner: Callable[[Tensor], Tensor]) -> Tensor:
        return inner(norm(x)).add_(x) if self._norm_first else norm(inner(x).add_(x))

    def finish(self) -> None:
        self.attention.qkv.finish()
        self.attention.out.finish()
        self.feed_forward.finish()


class Absent:
    """Stands for a table, a norm or a projection that a model or its stage lacks."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def weight_targets(self, *names: str, **of_parts: str) -> dict[str, WeightTarget]:
        return {}

    def finish(self) -> None:
        pass


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
            AbsoluteLayer(config, layer, placement, group) for layer in self.stage.indices
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
