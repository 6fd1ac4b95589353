"""Models that the simulated worker pools like, and steps of prompts that are pooled."""

from typing import Any

from signalbox_contract.pooling import PoolingModel, PoolingParams
from signalbox_contract.step import NewSequence, Step
from tests.gpu_worker.builders import make_step

LAST = PoolingModel(task="embed", num_outputs=3)
MEAN = PoolingModel(task="embed", num_outputs=4, reads_all_tokens=True)
BOTH_WAYS = PoolingModel(
    task="classify", num_outputs=2, is_bidirectional=True, reads_all_tokens=True
)
MODELS = [LAST, MEAN, BOTH_WAYS]
NAMES = ["last", "mean", "both ways"]


def make_pooling_step(*new: NewSequence, params: PoolingParams | None = None, **rest: Any) -> Step:
    """Builds a step whose new sequences are all pooled alike."""
    pooling = {one.seq_id: params or PoolingParams() for one in new}
    return make_step(new=new, pooling=pooling, **rest)
