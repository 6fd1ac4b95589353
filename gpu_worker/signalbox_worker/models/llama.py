"""The decoder of the Llama family: Llama 2 and 3, SmolLM2, Mistral, Qwen2, Qwen3, Granite, Gemma.

One implementation; `DecoderConfig` holds what differs: Gemma has GeGLU, norms of weight 1 + w and
scaled embeddings, from 2 on more norms; Gemma 2 caps scores and logits softly; Gemma 3 norms Q and
K instead, and its sliding layers rotate by a base of their own. Attention itself, and the cache,
are the caller's: a layer gives its rotated queries and its K and V to `context.attention`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.models.layers import (
    ForwardContext,
    HeadNorms,
    LayerNorm,
    Linear,
    MergedColumnParallelLinear,
    Model,
    OffsetRMSNorm,
    ParallelGroup,
    Placement,
    QKVParallelLinear,
    RMSNorm,
    RotaryEmbedding,
    RowParallelLinear,
    VocabularyEnds,
    WeightTarget,
    gelu_tanh_and_mul,
)
from signalbox_worker.models.layers.adapters import BatchAdapters
from signalbox_worker.models.layers.rotary import Angles


class Attention:
    """Projections around attention, with rotation and perhaps norms of Q and K."""

    def __init__(
        self, config: DecoderConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> None:
        self._layer = layer - group.stage(config.num_layers).start  # in this stage's cache
        self._head_size = config.head_size
        self.qkv = QKVParallelLinear(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            bias=config.qkv_bias,
            placement=placement,
            group=group,
        )
        self.out = RowParallelLinear(
            in_features=config.num_heads * config.head_size,
            out_features=config.hidden_size,
            bias=config.o_bias,
            placement=placement,
            group=group,
        )
        self.qk_norms: HeadNorms | None = None
        if config.qk_norm:
            norm = partial(_rms_norm, config, config.head_size, placement)
            self.qk_norms = HeadNorms(norm(), norm())

    def __call__(self, x: Tensor, angles: Angles, context: ForwardContext) -> Tensor:
        attended = self.attend(self.qkv(x, context.adapters), angles, context)
        return self.out(attended, context.adapters)

    def attend(self, projected: Tensor, angles: Angles, context: ForwardContext) -> Tensor:
        """Returns [num_tokens, num_heads * head_size] for Q, K and V as they are projected."""
        num_heads, num_kv_heads = self.qkv.num_heads, self.qkv.num_kv_heads
        heads = projected.view(-1, num_heads + 2 * num_kv_heads, self._head_size)
        query, key_value = heads[:, :num_heads], heads[:, num_heads:]
        key_value = key_value.view(-1, 2, num_kv_heads, self._head_size)
        # No isinstance: of a protocol it takes microseconds, in each layer.
        rotary_attend = getattr(context.attention, "attend_rotated", None)
        if rotary_attend is not None:
            norms, layer = self.qk_norms, self._layer
            attended: Tensor = rotary_attend(query, key_value, angles, layer=layer, norms=norms)
            return attended
        if self.qk_norms is not None:
            query.copy_(self.qk_norms.query(query))
            key = key_value[:, 0]
            key.copy_(self.qk_norms.key(key))
        angles.rotate(heads[:, : num_heads + num_kv_heads])
        return context.attention(query, key_value, layer=self._layer)

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = self.qkv.weight_targets(q="q_proj", k="k_proj", v="v_proj")
        targets |= self.out.weight_targets("o_proj")
        if self.qk_norms is not None:
            targets["q_norm.weight"] = self.qk_norms.query.load_weight
            targets["k_norm.weight"] = self.qk_norms.key.load_weight
        return targets

    def finish(self) -> None:
        self.qkv.finish()
        self.out.finish()


class FeedForward:
    """SwiGLU or GeGLU (Shazeer, 2020)."""

    def __init__(self, config: DecoderConfig, placement: Placement, group: ParallelGroup) -> None:
        self._gated = ops.silu_and_mul if config.activation == "silu" else gelu_tanh_and_mul
        self.gate_up = MergedColumnParallelLinear(
            in_features=config.hidden_size,
            out_features={"gate": config.intermediate_size, "up": config.intermediate_size},
            bias=config.mlp_bias,
            placement=placement,
            group=group,
        )
        self.down = RowParallelLinear(
            in_features=config.intermediate_size,
            out_features=config.hidden_size,
            bias=config.mlp_bias,
            placement=placement,
            group=group,
        )

    def __call__(self, x: Tensor, adapters: BatchAdapters = ()) -> Tensor:
        return self.down(self._gated(self.gate_up(x, adapters)), adapters)

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = self.gate_up.weight_targets(gate="gate_proj", up="up_proj")
        return targets | self.down.weight_targets("down_proj")

    def finish(self) -> None:
        self.gate_up.finish()
        self.down.finish()


def decoder_norm(config: DecoderConfig, placement: Placement) -> RMSNorm | LayerNorm:
    """Makes a norm of hidden states."""
    if not config.norm_is_centred:
        return _rms_norm(config, config.hidden_size, placement)
    return LayerNorm(
        config.hidden_size,
        eps=config.rms_norm_eps,
        placement=placement,
        is_affine=bool(config.norm_parts),
        has_bias="bias" in config.norm_parts,
    )


def _rms_norm(config: DecoderConfig, size: int, placement: Placement) -> RMSNorm:
    kind = OffsetRMSNorm if config.norm_offset else RMSNorm
    return kind(size, eps=config.rms_norm_eps, placement=placement)


class ModelPart(Protocol):
    """A part of a model that loads weights."""

    def weight_targets(self) -> dict[str, WeightTarget]: ...
    def finish(self) -> None: ...


class FeedForwardLike(ModelPart, Protocol):
    """The part of a layer that treats each token by itself."""

    def __call__(self, x: Tensor, adapters: BatchAdapters = ()) -> Tensor: ...


class DecoderLayer:
    """Attention and feed-forward, each behind a norm and perhaps before another."""

    feed_forward_name = "mlp"

    def __init__(
        self, config: DecoderConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> None:
        self.is_sliding = bool(config.sliding_windows and config.sliding_windows[layer])
        self.input_norm = decoder_norm(config, placement)
        self.attention = Attention(config, layer, placement, group)
        self.post_norm = decoder_norm(config, placement)
        self.feed_forward = self.make_feed_forward(config, layer, placement, group)
        self.inner_norms: tuple[RMSNorm | LayerNorm, ...] = ()
        """Norms of the results of attention and feed-forward, if they have any."""
        if config.has_inner_norms:
            self.inner_norms = decoder_norm(config, placement), decoder_norm(config, placement)

    def make_feed_forward(
        self, config: DecoderConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> FeedForwardLike:
        """Makes the part after attention, which other families make of experts."""
        return FeedForward(config, placement, group)

    def add_to(self, residual: Tensor, angles: Angles, context: ForwardContext) -> None:
        """Adds attention and feed-forward to few rows; norms, activation and sums are parts of
        products."""
        assert isinstance(self.feed_forward, FeedForward)
        assert isinstance(self.input_norm, RMSNorm) and isinstance(self.post_norm, RMSNorm)
        projected = self.attention.qkv.after_norm(residual, self.input_norm)
        self.attention.out.add_to(residual, self.attention.attend(projected, angles, context))
        gate_up = self.feed_forward.gate_up
        gated = gate_up.after_norm(residual, self.post_norm, is_gated=True)
        self.feed_forward.down.add_to(residual, gated)

    @property
    def products(self) -> Iterator[Linear]:
        """The products of `add_to`, in order."""
        assert isinstance(self.feed_forward, FeedForward)
        yield from (self.attention.qkv, self.attention.out)
        yield from (self.feed_forward.gate_up, self.feed_forward.down)

    def weight_targets(self) -> dict[str, WeightTarget]:
        norms = {"input_layernorm": self.input_norm, "post_attention_layernorm": self.post_norm}
        if self.inner_norms:
            norms["pre_feedforward_layernorm"] = self.post_norm
            names = ("post_attention_layernorm", "post_feedforward_layernorm")
            norms |= zip(names, self.inner_norms, strict=True)
        targets = dict[str, WeightTarget]()
        for name, norm in norms.items():
            targets |= norm.weight_targets(name)
        targets |= {f"self_attn.{k}": v for k, v in self.attention.weight_targets().items()}
        of_feed_forward = self.feed_forward.weight_targets().items()
        targets |= {f"{self.feed_forward_name}.{k}": v for k, v in of_feed_forward}
        return targets

    def finish(self) -> None:
        self.attention.finish()
        self.feed_forward.finish()


LayerT = TypeVar("LayerT", bound=ModelPart)


class DecoderStack(Model, Generic[LayerT]):
    """Embedding, layers, norm and head with Llama's names; a subclass adds the forward pass."""

    pools = True

    def __init__(
        self,
        config: DecoderConfig,
        layers: list[LayerT],
        norm: RMSNorm | LayerNorm,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self.stage = group.stage(config.num_layers)
        self.layers = layers
        self.norm = norm
        self.ends = VocabularyEnds(
            self.stage,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            is_tied=config.tie_embeddings,
            has_head=config.has_head,
            placement=placement,
            group=group,
        )
        self._is_tied = config.tie_embeddings
        self._has_head = config.has_head

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = self.ends.weight_targets("model.embed_tokens.weight", "lm_head.weight")
        if self.stage.is_last:
            targets |= self.norm.weight_targets("model.norm")
        for index, layer in zip(self.stage.indices, self.layers, strict=True):
            targets |= {f"model.layers.{index}.{k}": v for k, v in layer.weight_targets().items()}
        return targets

    def ignores(self, name: str) -> bool:
        is_unused = self._is_tied or not self._has_head
        other_head = name == "score.weight" and not self._has_head  # a classifier's
        is_unused = (is_unused and name == "lm_head.weight") or other_head
        return is_unused or name.endswith(".rotary_emb.inv_freq")

    def finish(self) -> None:
        for layer in self.layers:
            layer.finish()
        self.ends.finish()

    def normed(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.ends.head(self.norm(hidden))


class Decoder(DecoderStack[DecoderLayer]):
    """The whole model."""

    layer_type: type[DecoderLayer] = DecoderLayer
    takes_adapters = True
    fused_rows = 0
    """Most rows of a step whose layers are computed by `DecoderLayer.add_to`."""

    def __init__(
        self,
        config: DecoderConfig,
        max_model_len: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self.config = config
        rotary = partial(
            RotaryEmbedding,
            head_size=config.head_size,
            max_position=max_model_len,
            placement=placement,
        )
        self.rotary = rotary(config.rope)
        sliding = config.sliding_rope
        self.sliding_rotary = self.rotary if sliding is None else rotary(sliding)
        scale = config.embedding_scale
        if config.rounds_embedding_scale:
            scale = torch.tensor(scale, dtype=placement.dtype).item()
        self._embedding_scale = scale
        indices = group.stage(config.num_layers).indices
        layers = [self.layer_type(config, i, placement, group) for i in indices]
        super().__init__(config, layers, decoder_norm(config, placement), placement, group)

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        angles = self.rotary(positions)
        is_alike = self.sliding_rotary is self.rotary
        sliding_angles = angles if is_alike else self.sliding_rotary(positions)
        residual = self._embedded(token_ids) if self.stage.is_first else context.hidden_before
        if len(residual) <= self.fused_rows and not context.adapters:
            for layer in self.layers:
                layer.add_to(residual, sliding_angles if layer.is_sliding else angles, context)
            return residual
        x = self.layers[0].input_norm(residual)
        for index, layer in enumerate(self.layers):
            if index:
                x = layer.input_norm.add(x, residual)
            x = layer.attention(x, sliding_angles if layer.is_sliding else angles, context)
            if layer.inner_norms:
                x = layer.inner_norms[0](x)
            x = layer.post_norm.add(x, residual)
            x = layer.feed_forward(x, context.adapters)
            if layer.inner_norms:
                x = layer.inner_norms[1](x)
        return residual.add_(x)

    def _embedded(self, token_ids: Tensor) -> Tensor:
        embedded, scale = self.ends.embedded(token_ids), self._embedding_scale
        return embedded if scale == 1 else embedded * scale

    def logits(self, hidden: Tensor) -> Tensor:
        logits, config = super().logits(hidden), self.config
        if config.logit_divisor != 1:
            logits = logits / config.logit_divisor
        cap = config.logit_soft_cap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)
