"""The layer of models with a K and a V head for each head: OPT, GPT-2 and encoders."""

from collections.abc import Callable
from typing import cast

from torch import Tensor

from signalbox_worker.models.distance_biases import DistanceBiases
from signalbox_worker.models.encoder_config import PlainConfig
from signalbox_worker.models.layers import (
    Angles,
    BiasedAttentionPlan,
    ForwardContext,
    LayerNorm,
    ParallelGroup,
    Placement,
    PlainFeedForward,
    QKVParallelLinear,
    RowParallelLinear,
    WeightTarget,
)


class SelfAttention:
    """Projections around attention."""

    def __init__(
        self,
        config: PlainConfig,
        layer: int,
        placement: Placement,
        group: ParallelGroup,
        *,
        bias: bool,
    ) -> None:
        self._layer = layer - group.stage(config.num_layers).start  # in this stage's cache
        self._head_size = config.head_size
        self.biases: DistanceBiases | None = None
        self.qkv = QKVParallelLinear(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            bias=bias,
            placement=placement,
            group=group,
        )
        self.out = RowParallelLinear(
            in_features=config.hidden_size,
            out_features=config.hidden_size,
            bias=bias,
            placement=placement,
            group=group,
        )

    def __call__(self, x: Tensor, context: ForwardContext, angles: Angles | None) -> Tensor:
        """Args: angles: None if the embeddings carry the positions."""
        num_heads = self.qkv.num_heads
        heads = self.qkv(x).view(-1, 3 * num_heads, self._head_size)
        if angles is not None:
            angles.rotate(heads[:, : 2 * num_heads])
        key_value = heads[:, num_heads:].view(-1, 2, num_heads, self._head_size)
        query, attend = heads[:, :num_heads], context.attention
        if self.biases is None:
            return self.out(attend(query, key_value, layer=self._layer))
        biased, biases = cast(BiasedAttentionPlan, attend), self.biases.of_distances
        return self.out(biased.attend_with_biases(query, key_value, biases, layer=self._layer))


class Absent:
    """Stands for a table, a norm or a projection that a model or its stage lacks."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def weight_targets(self, *names: str, **of_parts: str) -> dict[str, WeightTarget]:
        return {}

    def finish(self) -> None:
        pass


class PlainLayer:
    """Attention and feed-forward, each with a norm before it or after the residual sum."""

    def __init__(
        self,
        attention: SelfAttention,
        feed_forward: PlainFeedForward,
        norms: tuple[LayerNorm | Absent, LayerNorm],
        *,
        norm_first: bool,
    ) -> None:
        self.attention, self.feed_forward = attention, feed_forward
        self.attention_norm, self.feed_forward_norm = norms
        self._norm_first = norm_first

    def __call__(self, x: Tensor, context: ForwardContext, angles: Angles | None = None) -> Tensor:
        x = self._beside(x, self.attention_norm, lambda h: self.attention(h, context, angles))
        return self._beside(x, self.feed_forward_norm, self.feed_forward)

    def _beside(
        self, x: Tensor, norm: LayerNorm | Absent, inner: Callable[[Tensor], Tensor]
    ) -> Tensor:
        return inner(norm(x)).add_(x) if self._norm_first else norm(inner(x).add_(x))

    def finish(self) -> None:
        self.attention.qkv.finish()
        self.attention.out.finish()
        self.feed_forward.finish()
