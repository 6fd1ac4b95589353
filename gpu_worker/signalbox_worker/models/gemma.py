"""Gemma 1, 2 and 3 (text): GeGLU, norms of weight 1 + w, scaled embeddings; from 2 on more norms.

Gemma 2 caps scores and logits softly; Gemma 3 norms Q and K instead, and its sliding layers rotate
by a base of their own.
"""

from functools import partial

import torch
from torch import Tensor

from signalbox_worker.layers import (
    ForwardContext,
    ParallelGroup,
    Placement,
    RotaryEmbedding,
    WeightTarget,
    gelu_tanh_and_mul,
)
from signalbox_worker.layers.adapters import BatchAdapters
from signalbox_worker.layers.rotary import Angles
from signalbox_worker.models.gemma_config import GemmaConfig
from signalbox_worker.models.llama import Attention, DecoderStack, FeedForward, decoder_norm
from signalbox_worker.models.rope import RopeConfig


class GemmaFeedForward(FeedForward):
    """GeGLU (Shazeer, 2020)."""

    def __call__(self, x: Tensor, adapters: BatchAdapters = ()) -> Tensor:
        return self.down(gelu_tanh_and_mul(self.gate_up(x, adapters)), adapters)


class GemmaLayer:
    """Attention and feed-forward, each behind a norm and perhaps before another."""

    def __init__(
        self, config: GemmaConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> None:
        norm = partial(decoder_norm, config, placement)
        self.is_sliding = bool(config.sliding_windows and config.sliding_windows[layer])
        self.attention = Attention(config, layer, placement, group)
        self.feed_forward = GemmaFeedForward(config, placement, group)
        self.attention_norm, self.feed_forward_norm = norm(), norm()
        self.inner_norms = (norm(), norm()) if config.has_inner_norms else None

    def __call__(self, x: Tensor, angles: Angles, context: ForwardContext) -> Tensor:
        attended = self.attention(self.attention_norm(x), angles, context)
        x = self._inner(attended, 0).add_(x)
        fed = self.feed_forward(self.feed_forward_norm(x), context.adapters)
        return self._inner(fed, 1).add_(x)

    def _inner(self, x: Tensor, which: int) -> Tensor:
        return x if self.inner_norms is None else self.inner_norms[which](x)

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = self.attention_norm.weight_targets("input_layernorm")
        if self.inner_norms is None:
            targets |= self.feed_forward_norm.weight_targets("post_attention_layernorm")
        else:
            targets |= self.inner_norms[0].weight_targets("post_attention_layernorm")
            targets |= self.feed_forward_norm.weight_targets("pre_feedforward_layernorm")
            targets |= self.inner_norms[1].weight_targets("post_feedforward_layernorm")
        targets |= {f"self_attn.{k}": v for k, v in self.attention.weight_targets().items()}
        targets |= {f"mlp.{k}": v for k, v in self.feed_forward.weight_targets().items()}
        return targets

    def finish(self) -> None:
        self.attention.finish()
        self.feed_forward.finish()


class GemmaDecoder(DecoderStack[GemmaLayer]):
    """The whole model."""

    takes_adapters = True

    def __init__(
        self,
        config: GemmaConfig,
        max_model_len: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        def rotary(rope: RopeConfig) -> RotaryEmbedding:
            return RotaryEmbedding(
                rope,
                head_size=config.head_size,
                max_position=max_model_len,
                placement=placement,
            )

        self.config = config
        self.rotary = rotary(config.rope)
        sliding = config.sliding_rope
        self.sliding_rotary = self.rotary if sliding is None else rotary(sliding)
        self.embedding_scale = torch.tensor(config.embedding_scale, dtype=placement.dtype).item()
        indices = group.stage(config.num_layers).indices
        layers = [GemmaLayer(config, i, placement, group) for i in indices]
        super().__init__(config, layers, decoder_norm(config, placement), placement, group)

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        angles = self.rotary(positions)
        is_alike = self.sliding_rotary is self.rotary
        sliding_angles = angles if is_alike else self.sliding_rotary(positions)
        if self.stage.is_first:
            x = self.ends.embedded(token_ids) * self.embedding_scale
        else:
            x = context.hidden_before
        for layer in self.layers:
            x = layer(x, sliding_angles if layer.is_sliding else angles, context)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        cap = self.config.logit_soft_cap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)
