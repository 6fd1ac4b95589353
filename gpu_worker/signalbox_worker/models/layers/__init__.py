"""The layers that decoders are built of, divided over a tensor-parallel group from the start."""

from signalbox_worker.device.parallel_group import ParallelGroup
from signalbox_worker.files.checkpoints.weight_names import ExpertNames
from signalbox_worker.models.layers.activation import Activation, activation, gelu_tanh_and_mul
from signalbox_worker.models.layers.embedding import (
    LearnedPositions,
    ParallelLMHead,
    VocabParallelEmbedding,
    VocabularyEnds,
)
from signalbox_worker.models.layers.feed_forward import GatedFeedForward, PlainFeedForward
from signalbox_worker.models.layers.forward_context import (
    AttentionPlan,
    BiasedAttentionPlan,
    ForwardContext,
    HeadNorms,
    RotaryAttentionPlan,
    SinkAttentionPlan,
)
from signalbox_worker.models.layers.linear import (
    Linear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from signalbox_worker.models.layers.model import Model
from signalbox_worker.models.layers.moe import MixtureOfExperts
from signalbox_worker.models.layers.norm import LayerNorm, OffsetRMSNorm, RMSNorm
from signalbox_worker.models.layers.rotary import Angles, RotaryEmbedding
from signalbox_worker.models.layers.weight_placement import (
    Placement,
    WeightTarget,
    split_target,
)

__all__ = [
    "Activation",
    "Angles",
    "AttentionPlan",
    "BiasedAttentionPlan",
    "ExpertNames",
    "ForwardContext",
    "GatedFeedForward",
    "HeadNorms",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "MergedColumnParallelLinear",
    "MixtureOfExperts",
    "Model",
    "OffsetRMSNorm",
    "ParallelGroup",
    "ParallelLMHead",
    "Placement",
    "PlainFeedForward",
    "QKVParallelLinear",
    "RMSNorm",
    "RotaryAttentionPlan",
    "RotaryEmbedding",
    "RowParallelLinear",
    "SinkAttentionPlan",
    "VocabParallelEmbedding",
    "VocabularyEnds",
    "WeightTarget",
    "activation",
    "gelu_tanh_and_mul",
    "split_target",
]
