"""Decoders of the Llama family whose feed-forward is a mixture of experts: Mixtral, Qwen3-MoE."""

from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.models.layers import MixtureOfExperts, ParallelGroup, Placement
from signalbox_worker.models.llama import Decoder, DecoderLayer, FeedForward, FeedForwardLike
from signalbox_worker.models.mixture_config import MoeConfig
from signalbox_worker.models.mixture_trial import keep_if_right


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
