"""Configuration of decoders of the Llama family whose feed-forward is a mixture of experts."""

from dataclasses import dataclass
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.weight_names import ExpertNames
from signalbox_worker.models.decoder_config import (
    MAX_NUM_LAYERS,
    DecoderConfig,
    HfConfig,
    check_no_windows,
    granite_config,
    mistral_config,
    olmo_like,
    qwen2_like,
    qwen3_like,
    sliding_windows,
    uniform_windows,
)
from signalbox_worker.models.family_config import (
    FamilyConfig,
    UnsoundConfig,
    counted,
    family,
    flag,
    positive,
)
from signalbox_worker.models.glm_config import glm_like


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertChoice:
    """Choice of experts, and their shares before renormalisation and after it."""

    by_sigmoid: bool = False
    """True if a share is the sigmoid of its score alone, and not the softmax of all scores."""
    has_bias: bool = False
    """True if a vector of a layer is added to the shares to choose by."""
    num_groups: int = 1
    """Groups of neighbouring experts."""
    num_chosen_groups: int = 1
    """Groups among whose experts a token chooses."""
    num_summed: int = 2
    """Experts of a group whose shares, summed, decide whether it is chosen."""
    scale: float = 1.0
    """Factor of the shares of those that are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig(DecoderConfig):
    """A decoder with experts in some or all of its layers."""

    num_experts: int
    experts_per_token: int
    expert_size: int
    renormalise: bool
    """True if the shares of the chosen experts are normalised to the sum 1."""
    choice: ExpertChoice = ExpertChoice()
    expert_columns: int | None = None
    """Columns of a latent of hidden states that experts read and write; None is hidden states."""
    dense_layers: frozenset[int] = frozenset()
    """Layers with a plain feed-forward."""
    block: str
    """Name of the mixture in a layer."""
    names: ExpertNames
    shared_size: int = 0
    """Inner columns of the expert that all tokens have beside theirs; 0 is none."""
    shared_name: str = "shared_expert"
    shared_has_gate: bool = True
    """True if its result is multiplied with the sigmoid of a score of its own."""
    has_stacks: bool = False
    """True if checkpoints have Granite's tensors of all experts of a layer."""
    has_transposed_stacks: bool = False
    """True if they have GPT-OSS's, of [num_experts, columns, rows], gate and up in turn."""
    has_expert_biases: bool = False
    """True if the router and the matrices of experts have biases."""
    router_has_norm: bool = False
    """True if the router has a norm of its own, and each expert a factor of its share (Gemma 4)."""
    gate_limit: float | None = None
    """Largest gate of an expert, and largest magnitude of the product with `up`, to which 1 is then
    added (GPT-OSS)."""
    gate_scale: float = 1.0
    """Factor within the sigmoid of a gate that has a limit."""

    @property
    def stacks(self) -> dict[str, tuple[str, ...]]:
        """Tensors of a mixture that may hold [num_experts, rows, columns], and the matrices of each
        expert in them."""
        of_granite = "input_linear.weight", "output_linear.weight"
        usual = "experts.gate_up_proj", "experts.down_proj"
        gate_up, down = of_granite if self.has_stacks else usual
        if not self.has_gate:
            return {"experts.up_proj": self.names[1:2], down: self.names[2:]}
        return {gate_up: self.names[:2], down: self.names[2:]}


STACKED_ROUTER = "router.layer.weight"
"""Name of the router beside them."""
_MIXTRAL = ExpertNames(gate="w1", up="w3", down="w2")
QWEN_EXPERTS = ExpertNames(gate="gate_proj", up="up_proj", down="down_proj")
MAX_NUM_EXPERTS = 1 << 12
"""More than any layer has; the names of all their matrices are in memory."""


@family("MixtralConfig")
def mixtral_config(config: HfConfig) -> MoeConfig:
    return _sparse_block(config, mistral_config(config), names=_MIXTRAL)


@family("Qwen2MoeConfig")
def qwen2_moe_config(config: FamilyConfig) -> MoeConfig:
    bias, windows = flag(config, "qkv_bias"), _alternating_windows(config)
    return qwen_moe_config(
        config,
        qwen2_like(config, windows, qkv_bias=bias),
        shared_size=counted(config, "shared_expert_intermediate_size"),
    )


@family("Qwen3MoeConfig")
def qwen3_moe_config(config: FamilyConfig) -> MoeConfig:
    if not flag(config, "use_sliding_window"):
        config.disregard("sliding_window")
        config = config.replacing(sliding_window=None)
    return qwen_moe_config(config, qwen3_like(config, uniform_windows(config)))


@family("OlmoeConfig")
def olmoe_config(config: HfConfig) -> MoeConfig:
    if config.get("clip_qkv") is not None:
        raise ModelError(f"{config['architectures'][0]} with clip_qkv is not supported natively")
    check_no_windows(config)
    return moe_config(
        olmo_like(config),
        num_experts=counted(config, "num_experts", most=MAX_NUM_EXPERTS),
        experts_per_token=counted(config, "num_experts_per_tok"),
        expert_size=counted(config, "intermediate_size"),
        renormalise=flag(config, "norm_topk_prob"),
        block="mlp",
        names=QWEN_EXPERTS,
    )


@family("GraniteMoeConfig")
def granite_moe_config(config: HfConfig) -> MoeConfig:
    """Reads Granite's mixtures; softmax over the chosen scores is that of all, renormalised."""
    return _sparse_block(config, granite_config(config), names=QWEN_EXPERTS, has_stacks=True)


@family("Glm4MoeConfig")
def glm4_moe_config(config: FamilyConfig) -> MoeConfig:
    """Reads GLM-4's mixtures, which rotate halves of the part that is rotated.

    Raises ModelError for groups that cannot be, or if nothing is shared.
    """
    base = glm_like(config, qk_norm=flag(config, "use_qk_norm"), may_have_more_layers=True)
    if not counted(config, "n_shared_experts", least=0):
        raise ModelError(f"{base.architecture} without n_shared_experts is not supported natively")
    return moe_config(
        base,
        renormalise=flag(config, "norm_topk_prob"),
        dense_layers=first_layers(config, base.num_layers),
        choice=biased_choice(config),
        **routed_and_shared(config),
    )


def first_layers(config: FamilyConfig, num_layers: int) -> frozenset[int]:
    """Returns the layers with a plain feed-forward of DeepSeek and GLM, which are the first."""
    return frozenset(range(min(counted(config, "first_k_dense_replace", least=0), num_layers)))


def biased_choice(config: FamilyConfig) -> ExpertChoice:
    """Reads how DeepSeek V3 and GLM choose experts: by sigmoids and a bias, within groups."""
    num_groups = counted(config, "n_group")
    return ExpertChoice(
        by_sigmoid=True,
        has_bias=True,
        num_groups=num_groups,
        num_chosen_groups=counted(config, "topk_group", most=num_groups),
        scale=positive(config, "routed_scaling_factor"),
    )


def routed_and_shared(config: FamilyConfig) -> dict[str, Any]:
    """Reads the experts of DeepSeek and GLM, of which those that all tokens have are one."""
    size = counted(config, "moe_intermediate_size")
    return {
        "num_experts": counted(config, "n_routed_experts", most=MAX_NUM_EXPERTS),
        "experts_per_token": counted(config, "num_experts_per_tok"),
        "expert_size": size,
        "shared_size": size * counted(config, "n_shared_experts"),
        "shared_name": "shared_experts",
        "shared_has_gate": False,
        "block": "mlp",
        "names": QWEN_EXPERTS,
    }


def _sparse_block(config: HfConfig, base: DecoderConfig, **fields: Any) -> MoeConfig:
    return moe_config(
        base,
        num_experts=counted(config, "num_local_experts", most=MAX_NUM_EXPERTS),
        experts_per_token=counted(config, "num_experts_per_tok"),
        expert_size=counted(config, "intermediate_size"),
        renormalise=True,
        block="block_sparse_moe",
        **fields,
    )


def _alternating_windows(config: HfConfig) -> tuple[int | None, ...]:
    """Returns the windows of Qwen2's mixtures: only if enabled, in every other one of the first
    max_window_layers."""
    enabled = flag(config, "use_sliding_window")
    end = counted(config, "max_window_layers", least=0)
    num_layers = counted(config, "num_hidden_layers", most=MAX_NUM_LAYERS)
    slides = [enabled and i % 2 == 0 and i < end for i in range(num_layers)]
    window = config["sliding_window"]
    return sliding_windows(config, slides, window if enabled else None)


def qwen_moe_config(config: HfConfig, base: DecoderConfig, **fields: Any) -> MoeConfig:
    """Adds experts to what Qwen's mixtures share with its other decoders."""
    step = counted(config, "decoder_sparse_step")
    dense = {i for i in range(base.num_layers) if (i + 1) % step}
    dense_too = config.get("mlp_only_layers") or []
    if not isinstance(dense_too, list) or any(type(one) is not int for one in dense_too):
        raise UnsoundConfig(f"config.json says mlp_only_layers = {str(dense_too)[:40]}")
    return moe_config(
        base,
        num_experts=counted(config, "num_experts", most=MAX_NUM_EXPERTS),
        experts_per_token=counted(config, "num_experts_per_tok"),
        expert_size=counted(config, "moe_intermediate_size"),
        renormalise=flag(config, "norm_topk_prob"),
        dense_layers=frozenset(dense.union(dense_too)),
        block="mlp",
        names=QWEN_EXPERTS,
        **fields,
    )


def moe_config(base: DecoderConfig, **fields: Any) -> MoeConfig:
    """Adds experts to what a family shares with Llama."""
    k, num_experts = fields["experts_per_token"], fields["num_experts"]
    if not 1 <= k <= num_experts:
        raise ModelError(f"num_experts_per_tok is {k}; it must be in [1, {num_experts}]")
    choice: ExpertChoice = fields.get("choice", ExpertChoice())
    most = num_experts // choice.num_groups * choice.num_chosen_groups
    if num_experts % choice.num_groups or k > most:
        raise ModelError(
            f"num_experts_per_tok {k} of n_routed_experts {num_experts} cannot be chosen with "
            f"n_group {choice.num_groups} and topk_group {choice.num_chosen_groups}"
        )
    shared = {name: getattr(base, name) for name in DecoderConfig.__dataclass_fields__}
    return MoeConfig(**shared, **fields)
