"""Builders of requests that pool, and of the scheduler of a worker for them."""

from typing import Any

import numpy as np

from signalbox_contract.pooling import PoolingModel, PoolingParams
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.fake_worker import pooled_vector
from tests.scheduler_svc.make import Loop, make_loop, make_request, make_scheduler

LAST = PoolingModel(task="embed", num_outputs=2)
MEAN = PoolingModel(task="embed", num_outputs=2, reads_all_tokens=True)
BOTH_WAYS = PoolingModel(
    task="classify", num_outputs=2, reads_all_tokens=True, is_bidirectional=True
)
MODELS = {"last": LAST, "mean": MEAN, "both ways": BOTH_WAYS}


def make_pooling_loop(model: PoolingModel, *, depth: int = 2, **options: Any) -> Loop:
    """Returns the loop of a worker that pools, with the options that the factory would choose."""
    caching = options.pop("prefix_caching", True) and not model.reads_all_tokens
    scheduler = make_scheduler(
        cuts_prompts=not model.is_bidirectional, prefix_caching=caching, **options
    )
    return make_loop(scheduler, depth=depth, pooling=model)


def make_pooling_request(prompt: list[int], **fields: Any) -> SequenceGroup:
    return make_request(prompt, max_tokens=1, pooling=PoolingParams(), **fields)


def has_its_vector(group: SequenceGroup, loop: Loop) -> bool:
    expected = pooled_vector(group.request.prompt_token_ids)
    return group in loop.pooled and np.array_equal(loop.pooled[group], expected)
