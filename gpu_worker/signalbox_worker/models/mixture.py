"""Decoders of the Llama family whose feed-forward is a mixture of experts: Mixtral, Qwen3-MoE."""

from dataclasses import dataclass
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import (
    DecoderConfig,
    HfConfig,
    mistral_config,
    qwen3_like,
    uniform_windows,
)
from signalbox_worker.models.family_config import FamilyConfig, counted, family, flag
from signalbox_worker.models.layers import ExpertNames, MixtureOfExperts, ParallelGroup, Placement
from signalbox_worker.models.llama import Decoder, DecoderLayer, FeedForward, FeedForwardLike
from signalbox_worker.models.mixture_trial import keep_if_right


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig(DecoderConfig):
    """A decoder with experts in some or all of its layers."""

    num_experts: int
    experts_per_token: int
    expert_size: int
    renormalise: bool
    """True if the shares of the chosen experts are normalised to the sum 1."""
    dense_layers: frozenset[int] = frozenset()
    """Layers with a plain feed-forward."""
    block: str
    """Name of the mixture in a layer."""
    names: ExpertNames


_MIXTRAL = ExpertNames(gate="w1", up="w3", down="w2")
_QWEN = ExpertNames(gate="gate_proj", up="up_proj", down="down_proj")


@family("MixtralConfig")
def mixtral_config(config: HfConfig) -> MoeConfig:
    return _moe_config(
        mistral_config(config),
        num_experts=counted(config, "num_local_experts"),
        experts_per_token=counted(config, "num_experts_per_tok"),
        expert_size=counted(config, "intermediate_size"),
        renormalise=True,
        block="block_sparse_moe",
        names=_MIXTRAL,
    )


@family("Qwen3MoeConfig")
def qwen3_moe_config(config: FamilyConfig) -> MoeConfig:
    if not flag(config, "use_sliding_window"):
        config.disregard("sliding_window")
        config = config.replacing(sliding_window=None)
    base = qwen3_like(config, uniform_windows(config))
    step = counted(config, "decoder_sparse_step")
    dense = {i for i in range(base.num_layers) if (i + 1) % step}
    return _moe_config(
        base,
        num_experts=counted(config, "num_experts"),
        experts_per_token=counted(config, "num_experts_per_tok"),
        expert_size=counted(config, "moe_intermediate_size"),
        renormalise=flag(config, "norm_topk_prob"),
        dense_layers=frozenset(dense | set(config.get("mlp_only_layers") or ())),
        block="mlp",
        names=_QWEN,
    )


def _moe_config(base: DecoderConfig, **fields: Any) -> MoeConfig:
    k, num_experts = fields["experts_per_token"], fields["num_experts"]
    if not 1 <= k <= num_experts:
        raise ModelError(f"num_experts_per_tok is {k}; it must be in [1, {num_experts}]")
    shared = {name: getattr(base, name) for name in DecoderConfig.__dataclass_fields__}
    return MoeConfig(**shared, **fields)


class MoeLayer(DecoderLayer):
    """Attention and experts, each behind a norm."""

    def __init__(
        self, config: DecoderConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> None:
        assert isinstance(config, MoeConfig)
        super().__init__(config, layer, placement, group)
        self.feed_forward_name = config.block

    def make_feed_forward(
        self, config: DecoderConfig, layer: int, placement: Placement, group: ParallelGroup
    ) -> FeedForwardLike:
        assert isinstance(config, MoeConfig)
        if layer in config.dense_layers:
            return FeedForward(config, placement, group)
        return MixtureOfExperts(
            hidden_size=config.hidden_size,
            num_experts=config.num_experts,
            experts_per_token=config.experts_per_token,
            expert_size=config.expert_size,
            renormalise=config.renormalise,
            names=config.names,
            placement=placement,
            group=group,
        )


class MoeDecoder(Decoder):
    """The whole model."""

    layer_type = MoeLayer
    takes_adapters = False

    def __init__(
        self,
        config: DecoderConfig,
        max_model_len: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        assert isinstance(config, MoeConfig)
        if placement.device.type == "cuda":
            keep_if_right(
                placement.device,
                dtype=placement.dtype,
                num_experts=config.num_experts,
                experts_per_token=config.experts_per_token,
                hidden_size=config.hidden_size,
                expert_size=group.divide(config.expert_size, "size of an expert"),
            )
        super().__init__(config, max_model_len, placement, group)
