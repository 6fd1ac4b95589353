"""Makes the objects that the configuration describes, for the service and for a replay."""

import time
from collections.abc import Callable
from dataclasses import replace

from signalbox_contract.cache_groups import FULL_GROUP
from signalbox_contract.model import ModelInfo, WorkerCapacity
from signalbox_scheduler.config import (
    CacheShape,
    PeerIdentity,
    SchedulerConfig,
    SchedulingSettings,
    WorkerConfig,
)
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.policies import make_policy
from signalbox_scheduler.transfers.transfer_connector import check_store
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.scheduler import Scheduler


def make_cluster(
    config: SchedulerConfig, *, clock: Callable[[], float] = time.monotonic
) -> Cluster:
    """Raises ValueError for a scheduling policy that cannot be used."""
    return Cluster(
        bounds=config,
        policy=make_policy(config),
        worker_wait_s=config.worker_wait,
        max_quarantine_s=config.worker_quarantine,
        explain_history=config.explain_history,
        disaggregation=config.disaggregation,
        audit_cpu=config.audit_cpu,
        clock=clock,
    )


def make_scheduler(
    config: SchedulingSettings,
    *,
    model: ModelInfo,
    capacity: WorkerCapacity,
    admission: AdmissionQueue,
    identity: PeerIdentity,
) -> Scheduler:
    """Returns the scheduler of a worker that joins, within what it can hold.

    A vector that reads all tokens takes no prefix from the cache, so that there is none.

    Args:
        identity: of the worker, still without a format of blocks.

    Raises ValueError if the worker has a store that would not be used, or not be cleared.
    """
    check_store(config, capacity)
    pooling = model.pooling
    is_bidirectional = pooling is not None and pooling.is_bidirectional
    reads_all_tokens = is_bidirectional or (pooling is not None and pooling.reads_all_tokens)
    worker = WorkerConfig(
        limits=config.step_limits(capacity, cuts_prompts=not is_bidirectional),
        cache=CacheShape(
            block_size=capacity.block_size,
            num_gpu_blocks=min(
                config.num_gpu_blocks_override or capacity.num_gpu_blocks, capacity.num_gpu_blocks
            ),
            num_cpu_blocks=capacity.num_cpu_blocks,
            watermark=config.watermark,
            max_model_len=model.max_model_len,
            prefix_caching=config.prefix_caching and not reads_all_tokens,
            cpu_prefix_cache=config.cpu_prefix_cache,
            groups=capacity.groups,
        ),
        identity=replace(identity, kv_format=_kv_format(model, capacity)),
        preemption_mode=config.preemption_mode,
        eos_token_ids=frozenset(model.eos_token_ids),
        numerics=model.numerics,
        grammar_bytes=capacity.grammar_bytes,
        ranks=capacity.ranks,
        store=capacity.store,
        arithmetic=capacity.arithmetic,
    )
    cost = CostModel(
        block_bytes=capacity.block_bytes,
        copy_bytes_per_s=capacity.copy_bytes_per_s,
        prefill_tokens_per_s=capacity.prefill_tokens_per_s,
        load_bytes_per_s=capacity.store.read_bytes_per_s if capacity.store is not None else 0.0,
    )
    return Scheduler(worker, admission=admission, cost=cost)


def _kv_format(model: ModelInfo, capacity: WorkerCapacity) -> str:
    """Returns what workers have in common that read each other's blocks; empty if it has none."""
    if not capacity.block_format:
        return ""
    sizes = f"{capacity.block_size} tokens in {capacity.block_bytes} bytes"
    if capacity.groups != (FULL_GROUP,):
        sizes += f" of {capacity.groups}"
    bits = f", {capacity.arithmetic}" if capacity.arithmetic else ""
    return f"{capacity.block_format}, {sizes}, {model.numerics}{bits}"
