"""The layers that decoders are built of, divided over a tensor-parallel group from the start."""

from gpu_worker.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from gpu_worker.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from gpu_worker.layers.norm import RMSNorm
from gpu_worker.layers.parallel import ParallelGroup
from gpu_worker.layers.rotary import RotaryEmbedding
from gpu_worker.layers.weights import Placement, WeightTarget

__all__ = [
    "MergedColumnParallelLinear",
    "ParallelGroup",
    "ParallelLMHead",
    "Placement",
    "QKVParallelLinear",
    "RMSNorm",
    "RotaryEmbedding",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "WeightTarget",
]
