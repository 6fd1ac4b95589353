"""The layers that decoders are built of, divided over a tensor-parallel group from the start."""

from signalbox_worker.device.parallel_group import ParallelGroup
from signalbox_worker.layers.activation import Activation, activation, gelu_tanh_and_mul
from signalbox_worker.layers.embedding import (
    LearnedPositions,
    ParallelLMHead,
    VocabParallelEmbedding,
    VocabularyEnds,
)
from signalbox_worker.layers.feed_forward import PlainFeedForward
from signalbox_worker.layers.forward_context import (
    AttentionPlan,
    ForwardContext,
    HeadNorms,
    RotaryAttentionPlan,
    SinkAttentionPlan,
)
from signalbox_worker.layers.linear import (
    Linear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from signalbox_worker.layers.model import Model
from signalbox_worker.layers.moe import ExpertNames, MixtureOfExperts
from signalbox_worker.layers.norm import LayerNorm, OffsetRMSNorm, RMSNorm
from signalbox_worker.layers.rotary import Angles, RotaryEmbedding
from signalbox_worker.layers.weight_placement import Placement, WeightTarget

__all__ = [
    "Activation",
    "Angles",
    "AttentionPlan",
    "ExpertNames",
    "ForwardContext",
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
]
