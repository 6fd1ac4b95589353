"""OLMo 1 (Groeneveld et al., 2024): a Llama whose LayerNorms have neither weight nor bias."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from signalbox_worker.layers import (
    Angles,
    ForwardContext,
    LayerNorm,
    ParallelGroup,
    ParallelLMHead,
    Placement,
    RotaryEmbedding,
    VocabParallelEmbedding,
    WeightTarget,
)
from signalbox_worker.models import (
    DecoderConfig,
    Model,
    ModelError,
    ModelSpec,
    decoder_shapes,
    register_model,
)
from signalbox_worker.models.llama import Attention, FeedForward

_EPS = 1e-5


def olmo_config(config: Mapping[str, Any]) -> DecoderConfig:
    if config.get("clip_qkv") is not None:
        raise ModelError("OlmoForCausalLM with clip_qkv is not supported; use a model without")
    shapes = decoder_shapes({**config, "rms_norm_eps": _EPS})
    bias = bool(config.get("attention_bias", False))
    return DecoderConfig(**shapes, architecture="OlmoForCausalLM", qkv_bias=bias, o_bias=bias)


class OlmoLayer:
    """Attention and feed-forward, each behind a norm."""

    def __init__(
        self, config: DecoderConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> None:
        self._norm = _norm(config, placement)
        self.attention = Attention(config, layer, placement, group)
        self.feed_forward = FeedForward(config, placement, group)

    def __call__(self, x: Tensor, angles: Angles, context: ForwardContext) -> Tensor:
        x = x + self.attention(self._norm(x), angles, context)
        return x + self.feed_forward(self._norm(x))

    def weight_targets(self) -> dict[str, WeightTarget]:
        attention, mlp = self.attention.weight_targets(), self.feed_forward.weight_targets()
        return {f"self_attn.{k}": v for k, v in attention.items()} | {
            f"mlp.{k}": v for k, v in mlp.items()
        }

    def finish(self) -> None:
        self.attention.finish()
        self.feed_forward.finish()


class Olmo(Model):
    """The whole model."""

    def __init__(
        self,
        config: DecoderConfig,
        max_model_len: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self._tied = config.tie_embeddings
        vocab = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size}
        self._embedding = VocabParallelEmbedding(**vocab, placement=placement, group=group)
        self._rotary = RotaryEmbedding(
            config.rope,
            head_size=config.head_size,
            max_position=max_model_len,
            placement=placement,
        )
        self._layers = [OlmoLayer(config, i, placement, group) for i in range(config.num_layers)]
        self._norm = _norm(config, placement)
        self._head = ParallelLMHead(**vocab, placement=placement, group=group)
        if self._tied:
            self._embedding.tie(self._head)

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets: dict[str, WeightTarget] = {
            "model.embed_tokens.weight": self._embedding.load_weight
        }
        if not self._tied:
            targets["lm_head.weight"] = self._head.load_weight
        for index, layer in enumerate(self._layers):
            targets |= {f"model.layers.{index}.{k}": v for k, v in layer.weight_targets().items()}
        return targets

    def ignores(self, name: str) -> bool:
        return self._tied and name == "lm_head.weight"

    def finish(self) -> None:
        for layer in self._layers:
            layer.finish()
        self._head.finish()

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        angles = self._rotary(positions)
        x = self._embedding(token_ids)
        for layer in self._layers:
            x = layer(x, angles, context)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(self._norm(hidden))


def _norm(config: DecoderConfig, placement: Placement) -> LayerNorm:
    return LayerNorm(config.hidden_size, eps=_EPS, placement=placement, is_affine=False)


register_model(ModelSpec("OlmoForCausalLM", olmo_config, Olmo))
