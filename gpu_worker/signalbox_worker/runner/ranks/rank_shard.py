"""Loads a shard of a model: natively, or through PyTorch, which is imported for it alone."""

import socket
from dataclasses import replace
from functools import partial
from typing import Any

from signalbox_contract.model import StoreCapacity, WorkerRank
from signalbox_contract.startup import (
    ReportProgress,
    StartupPhase,
    StartupProgress,
    ignore_progress,
)
from signalbox_kernels.group import Group
from signalbox_worker.config import DeviceConfig, ModelError
from signalbox_worker.device.keys import Keys
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.kv.store.late_store import LateStore
from signalbox_worker.kv.store.pool_transfers import PoolTransfers
from signalbox_worker.kv.store.store_threads import StoreThreads, no_store
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.runner.draft_model.draft_model import (
    DraftModel,
    load_draft_model,
    open_draft_model,
)
from signalbox_worker.runner.executors.executor import Executor
from signalbox_worker.runner.loading.block_content import BlockContent
from signalbox_worker.runner.loading.layer_partition import stage_layers
from signalbox_worker.runner.loading.model_source import naming
from signalbox_worker.runner.loading.opened_model import (
    OpenedModel,
    for_pytorch,
    open_with_config,
)
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.mtp.mtp_layer import check_mtp, load_mtp
from signalbox_worker.runner.native.eligibility import native_unsupported_reason
from signalbox_worker.runner.native.executor_factory import load_native_executor
from signalbox_worker.runner.native.rank_memory import meet, slot_bytes_of
from signalbox_worker.runner.native.threads import default_num_threads
from signalbox_worker.runner.ranks.service.rank_messages import Start
from signalbox_worker.runner.ranks.startup_checks import check_pytorch, check_store
from signalbox_worker.runner.runner_model import CheckpointModel, why_no_drafts


def load_shard(
    config: RunnerConfig, keys: Keys | None = None, progress: ReportProgress = ignore_progress
) -> LocalRunner:
    """Loads what a rank holds, which may be all, and opens its store.

    Args:
        keys: where tensor-parallel ranks meet.

    Raises ModelError, ValueError, MemoryError or OSError with what is wrong and the remedy.
    """
    check_store(config.disk, config.shared)
    config = replace(config, device=_shared(config.device, config.parallel))
    with naming(config.model.model):
        opened = open_with_config(config.model, progress)
        check_mtp(config, opened)
    small = open_draft_model(config, opened, progress)
    with naming(config.model.model):
        executor = _load_executor(opened, config, keys, progress)
    draft_model: DraftModel | None = None
    if small is not None and why_no_drafts(executor, config.parallel) is None:
        draft_model = load_draft_model(
            config,
            small,
            max_model_len=executor.model.max_model_len,
            load=lambda opened, config: _load_executor(opened, config, None, progress),
        )
    elif config.speculation.mtp:
        with naming(config.model.model):
            draft_model = load_mtp(config, opened, executor)
    served = CheckpointModel(
        executor,
        opened,
        config,
        progress,
        draft_model_bytes=draft_model.reserved_bytes if draft_model else 0,
    )
    store = _open_store(config, served) if _has_store(config) else no_store()
    return LocalRunner(executor, served, PoolTransfers(store), draft_model)


def _load_executor(
    opened: OpenedModel, config: RunnerConfig, keys: Keys | None, progress: ReportProgress
) -> Executor:
    if opened.pooling is not None:
        check_pooling(config)
    why_not = native_unsupported_reason(
        opened, config.model, config.cache, config.device, config.parallel
    )
    group: Group | str | None = why_not
    if config.parallel.tensor_parallel_size > 1:
        group = _meet(config, opened, keys, why_not)
    if not isinstance(group, str):
        layers = stage_layers(opened, config.parallel)
        return load_native_executor(opened, config, layers=layers, group=group, progress=progress)
    check_pytorch(config.model, config.device, opened, group)
    progress(StartupProgress(StartupPhase.IMPORT))
    opened = for_pytorch(opened, config.model, config.parallel, group)
    layers = stage_layers(opened, config.parallel)
    from signalbox_worker.runner.executors.executor_factory import load_executor

    return load_executor(
        opened, config, keys=keys, layers=layers, native_unsupported_reason=group, progress=progress
    )


def check_pooling(config: RunnerConfig) -> None:
    """Refuses what only a model that generates has. Raises ModelError."""
    if config.parallel.num_ranks > 1:
        raise ModelError(
            "a model that pools runs on one rank; use tensor_parallel_size 1 and "
            "pipeline_parallel_size 1, and several workers"
        )
    if _has_store(config):
        flag = "--kv-disk" if config.disk.has_disk else "--kv-store"
        raise ModelError(f"{flag} takes a model that generates; leave it out")


def _has_store(config: RunnerConfig) -> bool:
    return config.disk.has_disk or config.shared.has_server


OPENING_S = 1.0
"""Seconds that a worker waits for its store before it joins, so that its first request finds what
an earlier worker has kept. Only weights whose digest is not known take longer."""


def _open_store(config: RunnerConfig, served: CheckpointModel) -> StoreThreads:
    """Returns the store that the settings name: each rank has one of its own, for its blocks alone.
    It opens once the arithmetic of the worker is known.

    Raises FolderError, SecretFileError or OSError.
    """
    content, num_ranks = served.block_content(), config.parallel.num_ranks
    if config.shared.has_server:
        from signalbox_worker.kv.shared.shared_tier import SharedTier

        shared = SharedTier(
            config.shared,
            block_bytes=content.block_bytes,
            num_ranks=num_ranks,
        )
        return _opened_later(shared, shared.capacity, content)
    from signalbox_worker.kv.disk.disk_tier import DiskTier  # others load no SQLite

    disk = DiskTier(
        config.disk,
        block_bytes=content.block_bytes,
        model=served.model.name,
        num_ranks=num_ranks,
    )
    return _opened_later(disk, disk.capacity, content)


def _opened_later(
    store: LateStore[Any], capacity: StoreCapacity, content: BlockContent
) -> StoreThreads:
    def open_for(arithmetic: str) -> None:
        store.start(partial(content.identity, arithmetic), wait_s=OPENING_S)

    return StoreThreads(store, capacity, open_for=open_for)


def describe_rank(start: Start, layers: StageLayers) -> WorkerRank:
    """Returns what operators are shown of this rank."""
    parallel = start.parallel
    address = start.addresses[parallel.rank].address if parallel.is_placed else ""
    return WorkerRank(
        rank=parallel.rank,
        stage=parallel.stage,
        tensor_parallel_rank=parallel.tensor_rank,
        host=socket.gethostname(),
        address=address,
        first_layer=layers.start,
        num_layers=len(layers),
    )


def _shared(config: DeviceConfig, parallel: ParallelConfig) -> DeviceConfig:
    """Returns a rank's share of the worker's threads, or of its host's."""
    if parallel.num_ranks == 1:
        return config
    if config.num_threads:
        num_threads = config.num_threads // parallel.num_ranks
    else:
        num_threads = default_num_threads() // parallel.local_size
    return config.model_copy(update={"num_threads": max(1, num_threads)})


def _meet(
    config: RunnerConfig, opened: OpenedModel, keys: Keys | None, why_not: str | None
) -> Group | str:
    """Returns the tensor-parallel ranks of the stage, or why PyTorch computes, on all of them."""
    if keys is None:
        raise ValueError("tensor-parallel ranks have no place to meet at")
    slot_bytes = None
    if why_not is None:
        decoder, size = opened.config, config.parallel.tensor_parallel_size
        assert isinstance(decoder, DecoderConfig), "of a family that has a program"
        slot_bytes = slot_bytes_of(decoder, config.cache, size)
    return meet(config.parallel, keys, slot_bytes, why_not=why_not)
