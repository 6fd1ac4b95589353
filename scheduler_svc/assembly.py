"""From the configuration to the objects that it describes; the service and a replay both use it."""

import time
from collections.abc import Callable

from scheduler_svc.admission import AdmissionQueue
from scheduler_svc.cluster import Cluster
from scheduler_svc.config import CacheShape, SchedulerConfig
from scheduler_svc.cost import CostModel
from scheduler_svc.model import ModelInfo, WorkerCapacity
from scheduler_svc.policy import make_policy
from scheduler_svc.scheduler import Scheduler


def make_cluster(
    config: SchedulerConfig, *, clock: Callable[[], float] = time.monotonic
) -> Cluster:
    """Raises ValueError for a scheduling policy that cannot be used."""
    return Cluster(
        bounds=config.bounds,
        policy=make_policy(config.policy),
        worker_wait_s=config.worker_wait_s,
        explain_history=config.explain_history,
        clock=clock,
    )


def make_scheduler(
    config: SchedulerConfig,
    *,
    model: ModelInfo,
    capacity: WorkerCapacity,
    admission: AdmissionQueue,
    worker_name: str,
) -> Scheduler:
    """Returns the scheduler of a worker that joins, within what it can hold."""
    return Scheduler(
        limits=config.limits.within(capacity.limits),
        cache=CacheShape(
            block_size=capacity.block_size,
            num_gpu_blocks=_at_most(config.num_gpu_blocks_override, capacity.num_gpu_blocks),
            num_cpu_blocks=_at_most(config.num_cpu_blocks_override, capacity.num_cpu_blocks),
            watermark=config.watermark,
            max_model_len=model.max_model_len,
            prefix_caching=config.prefix_caching,
            cpu_prefix_cache=config.cpu_prefix_cache,
        ),
        admission=admission,
        preemption_mode=config.preemption_mode,
        cost=CostModel(
            block_bytes=capacity.block_bytes,
            copy_bytes_per_s=capacity.copy_bytes_per_s,
            prefill_tokens_per_s=capacity.prefill_tokens_per_s,
        ),
        eos_token_ids=frozenset(model.eos_token_ids),
        worker_name=worker_name,
    )


def _at_most(wanted: int | None, available: int) -> int:
    return available if wanted is None else min(wanted, available)
