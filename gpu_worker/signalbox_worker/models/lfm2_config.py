"""Configurations of LFM2 and its mixtures: short convolutions between layers of attention."""

from typing import Any

from signalbox_worker.models.decoder_config import (
    FULL,
    MAX_NUM_LAYERS,
    DecoderConfig,
    dense_config,
)
from signalbox_worker.models.family_config import (
    FamilyConfig,
    UnsoundConfig,
    counted,
    family,
    flag,
    positive,
)
from signalbox_worker.models.hybrid_config import (
    CONVOLUTION,
    check_no_window,
    kernel,
    kinds_of_all,
    places,
)
from signalbox_worker.models.mixture_config import (
    MAX_NUM_EXPERTS,
    QWEN_EXPERTS,
    ExpertChoice,
    MoeConfig,
    moe_config,
)
from signalbox_worker.models.recurrence import GatedConvolution


@family("Lfm2Config")
def lfm2_config(config: FamilyConfig) -> DecoderConfig:
    num_layers = counted(config, "num_hidden_layers", most=MAX_NUM_LAYERS)
    kinds = config["layer_types"]
    if kinds is None:
        attends = _attending(config, num_layers)
        kinds = [FULL if i in attends else CONVOLUTION for i in range(num_layers)]
    else:
        config.disregard("full_attn_idxs")
    return _with_convolutions(config.replacing(intermediate_size=_inner_size(config)), kinds)


@family("Lfm2MoeConfig")
def lfm2_moe_config(config: FamilyConfig) -> MoeConfig:
    base = _with_convolutions(config, config["layer_types"])
    dense = min(counted(config, "num_dense_layers", least=0), base.num_layers)
    return moe_config(
        base,
        num_experts=counted(config, "num_experts", most=MAX_NUM_EXPERTS),
        experts_per_token=counted(config, "num_experts_per_tok"),
        expert_size=counted(config, "moe_intermediate_size"),
        renormalise=flag(config, "norm_topk_prob"),
        choice=ExpertChoice(
            by_sigmoid=True,
            has_bias=flag(config, "use_expert_bias"),
            scale=positive(config, "routed_scaling_factor"),
        ),
        dense_layers=frozenset(range(dense)),
        block="mlp",
        names=QWEN_EXPERTS,
    )


def _with_convolutions(config: FamilyConfig, kinds: Any) -> DecoderConfig:
    check_no_window(config)
    num_layers = counted(config, "num_hidden_layers", most=MAX_NUM_LAYERS)
    bias = flag(config, "conv_bias")
    found = kinds_of_all(config, kinds, (CONVOLUTION, FULL), num_layers)
    tied = "tie_embedding" if config.says("tie_embedding") else "tie_word_embeddings"
    return dense_config(
        config.replacing(
            rms_norm_eps=config["norm_eps"],
            hidden_act="silu",
            tie_word_embeddings=flag(config, tied),
        ),
        qk_norm=True,
        recurrence=GatedConvolution(
            channels=counted(config, "hidden_size"),
            kernel=kernel(config, "conv_L_cache"),
            conv_bias=bias,
            proj_bias=bias,
        ),
        recurrent_layers=places(found, CONVOLUTION),
    )


def _attending(config: FamilyConfig, num_layers: int) -> Any:
    """Returns the layers with attention of the first files, all if they do not say it."""
    indices = config["full_attn_idxs"]
    if indices is None:
        return range(num_layers)
    if not isinstance(indices, list) or any(type(one) is not int for one in indices):
        raise UnsoundConfig(f"config.json says full_attn_idxs = {str(indices)[:40]}")
    return indices


def _inner_size(config: FamilyConfig) -> int:
    """Returns the inner columns of the feed-forward, which the field names before they are cut to
    two thirds and rounded up."""
    name = "block_ff_dim" if config.says("block_ff_dim") else "intermediate_size"
    size = counted(config, name)
    if not flag(config, "block_auto_adjust_ff_dim"):
        config.disregard("block_ffn_dim_multiplier", "block_multiple_of")
        return size
    cut = int(positive(config, "block_ffn_dim_multiplier") * int(2 * size / 3))
    if not cut:
        raise UnsoundConfig(f"config.json says {name} = {size}, of which two thirds are none")
    multiple = counted(config, "block_multiple_of")
    return multiple * -(-cut // multiple)
