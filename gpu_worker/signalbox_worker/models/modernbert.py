"""ModernBERT: rotation by a base for each kind of layer, gated activations, norms before layers."""

from collections.abc import Callable, Sequence

from torch import Tensor

from signalbox_worker.models.encoder_config import ModernBertConfig, is_ignored
from signalbox_worker.models.layers import (
    Angles,
    ForwardContext,
    LayerNorm,
    MergedColumnParallelLinear,
    Model,
    ParallelGroup,
    Placement,
    QKVParallelLinear,
    RotaryEmbedding,
    RowParallelLinear,
    VocabParallelEmbedding,
    WeightTarget,
    activation,
)
from signalbox_worker.models.rope import RopeConfig

_PREFIX = "model"


class ModernBertLayer:
    """Attention and a gated feed-forward, each behind a norm; the first layer has one norm less."""

    def __init__(
        self, config: ModernBertConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> None:
        self._layer, self._head_size = layer, config.head_size
        self._activation = activation(config.activation, config.architecture)
        self.is_sliding = config.sliding_windows[layer] is not None
        self.attention_norm = _norm(config, placement) if layer else None
        self.feed_forward_norm = _norm(config, placement)
        self.qkv = QKVParallelLinear(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_size=config.head_size,
            bias=config.attention_bias,
            placement=placement,
            group=group,
        )
        self.up_gate = MergedColumnParallelLinear(
            in_features=config.hidden_size,
            out_features={"up": config.intermediate_size, "gate": config.intermediate_size},
            bias=config.mlp_bias,
            placement=placement,
            group=group,
        )
        self.out, self.down = (
            RowParallelLinear(
                in_features=size,
                out_features=config.hidden_size,
                bias=bias,
                placement=placement,
                group=group,
            )
            for size, bias in (
                (config.hidden_size, config.attention_bias),
                (config.intermediate_size, config.mlp_bias),
            )
        )

    def __call__(self, x: Tensor, angles: Angles, context: ForwardContext) -> Tensor:
        normed = x if self.attention_norm is None else self.attention_norm(x)
        x = self._attended(normed, angles, context).add_(x)
        up, gate = self.up_gate(self.feed_forward_norm(x)).chunk(2, dim=-1)
        return self.down(self._activation(up).mul_(gate)).add_(x)

    def _attended(self, x: Tensor, angles: Angles, context: ForwardContext) -> Tensor:
        num_heads = self.qkv.num_heads
        heads = self.qkv(x).view(-1, 3 * num_heads, self._head_size)
        angles.rotate(heads[:, : 2 * num_heads])
        key_value = heads[:, num_heads:].view(-1, 2, num_heads, self._head_size)
        return self.out(context.attention(heads[:, :num_heads], key_value, layer=self._layer))

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = self.out.weight_targets("attn.Wo") | self.down.weight_targets("mlp.Wo")
        targets |= self.feed_forward_norm.weight_targets("mlp_norm")
        if self.attention_norm is not None:
            targets |= self.attention_norm.weight_targets("attn_norm")
        for name, layer, parts in (
            ("attn.Wqkv", self.qkv, ("q", "k", "v")),
            ("mlp.Wi", self.up_gate, ("up", "gate")),
        ):
            targets[f"{name}.weight"] = _split(layer.load_weight, parts)
            if layer.has_bias:
                targets[f"{name}.bias"] = _split(layer.load_bias, parts)
        return targets

    def finish(self) -> None:
        for layer in (self.qkv, self.out, self.up_gate, self.down):
            layer.finish()


class ModernBertEncoder(Model):
    """The whole model."""

    pools = True

    def __init__(
        self,
        config: ModernBertConfig,
        max_model_len: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        def rotary(rope: RopeConfig) -> RotaryEmbedding:
            return RotaryEmbedding(
                rope, head_size=config.head_size, max_position=max_model_len, placement=placement
            )

        self.config = config
        self.rotary, self.sliding_rotary = rotary(config.rope), rotary(config.sliding_rope)
        self.tokens = VocabParallelEmbedding(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            placement=placement,
            group=group,
        )
        self.embedding_norm, self.norm = (_norm(config, placement) for _ in range(2))
        self.layers = [
            ModernBertLayer(config, i, placement, group) for i in range(config.num_layers)
        ]

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets: dict[str, WeightTarget] = {
            "embeddings.tok_embeddings.weight": self.tokens.load_weight,
            **self.embedding_norm.weight_targets("embeddings.norm"),
            **self.norm.weight_targets("final_norm"),
        }
        for index, layer in enumerate(self.layers):
            targets |= {f"layers.{index}.{k}": v for k, v in layer.weight_targets().items()}
        return {f"{_PREFIX}.{name}": target for name, target in targets.items()}

    def ignores(self, name: str) -> bool:
        return is_ignored(name, _PREFIX)

    def finish(self) -> None:
        for layer in self.layers:
            layer.finish()

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        angles, sliding_angles = self.rotary(positions), self.sliding_rotary(positions)
        x = self.embedding_norm(self.tokens(token_ids))
        for layer in self.layers:
            x = layer(x, sliding_angles if layer.is_sliding else angles, context)
        return x

    def normed(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden)


def _norm(config: ModernBertConfig, placement: Placement) -> LayerNorm:
    return LayerNorm(
        config.hidden_size, eps=config.norm_eps, placement=placement, has_bias=config.norm_bias
    )


def _split(load: Callable[[Tensor, str], object], parts: Sequence[str]) -> WeightTarget:
    """Several matrices, or biases, one after another in the checkpoint."""

    def target(tensor: Tensor) -> None:
        for part, rows in zip(parts, tensor.chunk(len(parts)), strict=True):
            load(rows, part)

    return target
