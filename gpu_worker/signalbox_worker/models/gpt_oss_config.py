"""Configuration of GPT-OSS: sinks of attention, and mixtures with biases and clamped gates."""

from signalbox_worker.models.decoder_config import decoder_shapes, periodic_windows
from signalbox_worker.models.family_config import FamilyConfig, counted, family, flag, positive
from signalbox_worker.models.mixture_config import MAX_NUM_EXPERTS, QWEN_EXPERTS, MoeConfig

_ROTATION = "rope_parameters"


@family("GptOssConfig")
def gpt_oss_config(config: FamilyConfig) -> MoeConfig:
    """Reads GPT-OSS; softmax over the chosen scores is that of all, renormalised.

    A rotation that is null is the class's own, which is YaRN.
    """
    if config[_ROTATION] is None:
        config = config.replacing(**{_ROTATION: config.default(_ROTATION)})
    num_experts = counted(config, "num_local_experts", most=MAX_NUM_EXPERTS)
    bias = flag(config, "attention_bias")
    return MoeConfig(
        **decoder_shapes(config),
        architecture=config["architectures"][0],
        qkv_bias=bias,
        o_bias=bias,
        has_sinks=True,
        sliding_windows=periodic_windows(config, 2, config["sliding_window"]),
        num_experts=num_experts,
        experts_per_token=counted(config, "num_experts_per_tok", most=num_experts),
        expert_size=counted(config, "intermediate_size"),
        renormalise=True,
        block="mlp",
        names=QWEN_EXPERTS,
        has_expert_biases=True,
        gate_scale=positive(config, "swiglu_alpha"),
        gate_limit=positive(config, "swiglu_limit"),
        has_transposed_stacks=True,
    )
