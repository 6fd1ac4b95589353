"""Gemma 1, 2 and 3 (text): GeGLU, norms of weight 1 + w, scaled embeddings; from 2 on more norms.

Gemma 2 caps scores and logits softly; Gemma 3 norms Q and K instead, and its sliding layers rotate
by a base of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.config import ModelError
from gpu_worker.layers import (
    ForwardContext,
    HeadNorms,
    OffsetRMSNorm,
    ParallelGroup,
    Placement,
    RotaryEmbedding,
    WeightTarget,
    gelu_tanh_and_mul,
)
from gpu_worker.layers.adapters import BatchAdapters
from gpu_worker.layers.rotary import Angles
from gpu_worker.models.decoder_config import (
    DecoderConfig,
    counted,
    decoder_shapes,
    rope_config,
    sliding_windows,
)
from gpu_worker.models.llama import Attention, DecoderStack, FeedForward
from gpu_worker.models.rope import RopeConfig

_HEAD_SIZE = 256  # of every Gemma, where config.json leaves it out
_WINDOW = 4096
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(DecoderConfig):
    """Configuration of Gemma, which extends the Llama family's; satisfies `SoftCapped`."""

    sliding_rope: RopeConfig
    """Rotation of the layers with a window; the others use `rope`."""
    query_scalar: float
    has_inner_norms: bool = True
    """True if the results of attention and feed-forward are normed too, as from Gemma 2 on."""
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None

    @property
    def scale(self) -> float:
        return float(self.query_scalar**-0.5)


def gemma_config(config: Mapping[str, Any]) -> GemmaConfig:
    head_size = int(config.get("head_dim", _HEAD_SIZE))
    activation = config.get("hidden_act", "gelu")
    if activation == "gelu":  # in the first configurations it means the approximation
        activation = "gelu_pytorch_tanh"
    return _gemma_config(
        {**config, "hidden_activation": activation},
        rope=rope_config(config, head_size),
        sliding_rope=rope_config(config, head_size),
        query_scalar=head_size,
        has_inner_norms=False,
    )


def gemma2_config(config: Mapping[str, Any]) -> GemmaConfig:
    head_size = int(config.get("head_dim", _HEAD_SIZE))
    return _gemma_config(
        config,
        rope=rope_config(config, head_size),
        sliding_rope=rope_config(config, head_size),
        query_scalar=float(config.get("query_pre_attn_scalar", 256)),
        sliding_windows=_windows(config, every=2),
        attention_soft_cap=config.get("attn_logit_softcapping", 50.0),
        logit_soft_cap=config.get("final_logit_softcapping", 30.0),
    )


def gemma3_config(config: Mapping[str, Any]) -> GemmaConfig:
    head_size = int(config.get("head_dim", _HEAD_SIZE))
    ropes = _gemma3_ropes(config)
    both_ways = bool(config.get("use_bidirectional_attention"))
    return _gemma_config(
        config,
        qk_norm=True,
        rope=rope_config(ropes[_FULL], head_size),
        sliding_rope=rope_config(ropes[_SLIDING], head_size),
        query_scalar=float(config.get("query_pre_attn_scalar", 256)),
        sliding_windows=_gemma3_windows(config, both_ways=both_ways),
        is_bidirectional=both_ways,
        attention_soft_cap=config.get("attn_logit_softcapping"),
        logit_soft_cap=config.get("final_logit_softcapping"),
    )


def _gemma_config(config: Mapping[str, Any], **fields: Any) -> GemmaConfig:
    architecture = config["architectures"][0]
    activation = config.get("hidden_activation") or "gelu_pytorch_tanh"
    if activation != "gelu_pytorch_tanh":
        raise ModelError(
            f"{architecture} with activation {activation!r} is not supported; use gelu_pytorch_tanh"
        )
    if config.get("use_bidirectional_attention") and not fields.get("is_bidirectional"):
        raise ModelError(f"{architecture} that sees later tokens is not supported; use Gemma 3")
    bias = bool(config.get("attention_bias", False))
    explicit = {"head_dim": _HEAD_SIZE, "tie_word_embeddings": True, **config}
    explicit["rope_parameters"] = None  # in `fields`, one for each kind of layer
    shapes = decoder_shapes(explicit)
    return GemmaConfig(
        **(shapes | {"qkv_bias": bias, "o_bias": bias} | fields), architecture=architecture
    )


def _gemma3_ropes(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the rotations by kind of layer; old configurations scale only layers that see all."""
    nested = config.get("rope_parameters") or {}
    if _FULL in nested:
        return {kind: {"rope_parameters": nested[kind]} for kind in (_FULL, _SLIDING)}
    scaling = config.get("rope_scaling") or {}
    return {
        _FULL: {"rope_theta": config.get("rope_theta", 1e6), "rope_scaling": scaling},
        _SLIDING: {"rope_theta": config.get("rope_local_base_freq", 1e4)},
    }


def _gemma3_windows(config: Mapping[str, Any], *, both_ways: bool) -> tuple[int | None, ...]:
    """Returns the layers' windows; half of one is on either side if tokens see both."""
    if both_ways:
        window = counted(config, "sliding_window", _WINDOW) // 2 + 1
        config = {**config, "sliding_window": window}
    return _windows(config, every=int(config.get("sliding_window_pattern") or 6))


def _windows(config: Mapping[str, Any], *, every: int) -> tuple[int | None, ...]:
    """Returns the layers' windows; by default the last of `every` layers sees all, the others
    slide."""
    num_layers = int(config.get("num_hidden_layers", 0))
    kinds = [_SLIDING if (i + 1) % every else _FULL for i in range(num_layers)]
    explicit = {**config, "layer_types": config.get("layer_types") or kinds}
    return sliding_windows(explicit, config.get("sliding_window", _WINDOW))


class GemmaFeedForward(FeedForward):
    """GeGLU (Shazeer, 2020)."""

    def __call__(self, x: Tensor, adapters: BatchAdapters = ()) -> Tensor:
        return self.down(gelu_tanh_and_mul(self.gate_up(x, adapters)), adapters)


class GemmaLayer:
    """Attention and feed-forward, each behind a norm and perhaps before another."""

    def __init__(
        self, config: GemmaConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> None:
        def norm(size: int = config.hidden_size) -> OffsetRMSNorm:
            return OffsetRMSNorm(size, eps=config.rms_norm_eps, placement=placement)

        self.is_sliding = bool(config.sliding_windows and config.sliding_windows[layer])
        self.attention = Attention(config, layer, placement, group)
        if config.qk_norm:
            self.attention.qk_norms = HeadNorms(norm(config.head_size), norm(config.head_size))
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
        targets: dict[str, WeightTarget] = {
            "input_layernorm.weight": self.attention_norm.load_weight
        }
        if self.inner_norms is None:
            targets["post_attention_layernorm.weight"] = self.feed_forward_norm.load_weight
        else:
            targets["post_attention_layernorm.weight"] = self.inner_norms[0].load_weight
            targets["pre_feedforward_layernorm.weight"] = self.feed_forward_norm.load_weight
            targets["post_feedforward_layernorm.weight"] = self.inner_norms[1].load_weight
        targets |= {f"self_attn.{k}": v for k, v in self.attention.weight_targets().items()}
        targets |= {f"mlp.{k}": v for k, v in self.feed_forward.weight_targets().items()}
        return targets

    def finish(self) -> None:
        self.attention.finish()
        self.feed_forward.finish()


class GemmaDecoder(DecoderStack[GemmaLayer]):
    """Satisfies `Model`."""

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
        is_alike = config.sliding_rope == config.rope
        self.sliding_rotary = self.rotary if is_alike else rotary(config.sliding_rope)
        # rounded to the dtype of the weights, as the models were trained
        self.embedding_scale = torch.tensor(config.hidden_size**0.5, dtype=placement.dtype).item()
        indices = group.stage(config.num_layers).indices
        layers = [GemmaLayer(config, i, placement, group) for i in indices]
        norm = OffsetRMSNorm(config.hidden_size, eps=config.rms_norm_eps, placement=placement)
        super().__init__(config, layers, norm, placement, group)

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
