"""Loads a shard of a model: natively, or through PyTorch, which is imported for it alone."""

import socket
from dataclasses import replace

from signalbox_contract.model import StoreCapacity, WorkerRank
from signalbox_contract.startup import (
    ReportProgress,
    StartupPhase,
    StartupProgress,
    ignore_progress,
)
from signalbox_kernels.group import Group
from signalbox_worker.batch.stage_layers import StageLayers
from signalbox_worker.config import DeviceConfig, ModelError
from signalbox_worker.device.keys import Keys
from signalbox_worker.kv_store.pool_transfers import PoolTransfers
from signalbox_worker.kv_store.store_threads import StoreThreads
from signalbox_worker.loading.layer_partition import stage_layers
from signalbox_worker.loading.model_source import naming
from signalbox_worker.loading.opened_model import OpenedModel, open_with_config
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.native.eligibility import why_not_natively
from signalbox_worker.native.native_runner import NativeRunner
from signalbox_worker.native.rank_memory import meet, slot_bytes_of
from signalbox_worker.native.threads import default_num_threads
from signalbox_worker.parallel_config import ParallelConfig
from signalbox_worker.ranks.service.rank_messages import Start
from signalbox_worker.ranks.startup_checks import check_pytorch, check_store
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.store_config import STORE_WRITE_BYTES_PER_S

RankShard = LocalRunner
"""A runner of a rank's shard of a model."""


def load_shard(
    start: Start, keys: Keys | None = None, progress: ReportProgress = ignore_progress
) -> RankShard:
    """Loads what a rank holds, which may be all, and opens its store.

    Args:
        keys: where tensor-parallel ranks meet.

    Raises ModelError, ValueError, MemoryError or OSError with what is wrong and the remedy.
    """
    check_store(start.disk, start.shared)
    shard = _load(start, keys, progress)
    if _has_store(start):
        shard.transfers = PoolTransfers(_open_store(start, shard))
    return shard


def _load(start: Start, keys: Keys | None, progress: ReportProgress) -> RankShard:
    start = replace(start, device=_shared(start.device, start.parallel))
    with naming(start.model.model):
        opened = open_with_config(start.model, progress)
        if opened.pooling is not None:
            _check_pooling(start)
        layers = stage_layers(opened, start.parallel)
        why_not = why_not_natively(opened, start.model, start.cache, start.device, start.parallel)
        group: Group | str | None = why_not
        if start.parallel.tensor_parallel_size > 1:
            group = _meet(start, opened, keys, why_not)
        if not isinstance(group, str):
            return NativeRunner(
                opened,
                start.model,
                start.cache,
                start.device,
                parallel_config=start.parallel,
                layers=layers,
                group=group,
                progress=progress,
            )
        why_not = group
        check_pytorch(start.model, start.device, opened, why_not)
        progress(StartupProgress(StartupPhase.IMPORT))
        from signalbox_worker.runner.model_runner import ModelRunner

        return ModelRunner(
            start.model,
            start.cache,
            parallel_config=start.parallel,
            device_config=start.device,
            keys=keys,
            layers=layers,
            progress=progress,
            opened=opened,
            why_not_natively=why_not,
        )


def _check_pooling(start: Start) -> None:
    """Refuses what only a model that generates has. Raises ModelError."""
    if start.parallel.num_ranks > 1:
        raise ModelError(
            "a model that pools runs on one rank; use tensor_parallel_size 1 and "
            "pipeline_parallel_size 1, and several workers"
        )
    if _has_store(start):
        flag = "--kv-store" if start.disk.kv_disk is None else "--kv-disk"
        raise ModelError(f"{flag} takes a model that generates; leave it out")


def _has_store(start: Start) -> bool:
    return start.disk.kv_disk is not None or start.shared.kv_store is not None


def _open_store(start: Start, shard: RankShard) -> StoreThreads:
    """Opens the store that the settings name: each rank has one of its own, for its blocks alone.

    Raises FolderError, SecretFileError or OSError.
    """
    content, num_ranks = shard.block_content(), start.parallel.num_ranks
    if start.disk.kv_disk is None:
        from signalbox_worker.kv_shared.shared_tier import SharedTier

        shared = SharedTier(
            start.shared, block_bytes=content.block_bytes, identify=content.identity
        )
        most = STORE_WRITE_BYTES_PER_S // num_ranks
        return StoreThreads(shared, StoreCapacity(kind="shared", max_write_bytes_per_s=most))
    from signalbox_worker.kv_disk.disk_tier import DiskTier  # others load no SQLite

    disk = DiskTier(
        start.disk,
        block_bytes=content.block_bytes,
        model=shard.model.name,
        identify=content.identity,
        num_ranks=num_ranks,
    )
    return StoreThreads(disk, disk.capacity)


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


def _meet(start: Start, opened: OpenedModel, keys: Keys | None, why_not: str | None) -> Group | str:
    """Returns the tensor-parallel ranks of the stage, or why PyTorch computes, on all of them."""
    if keys is None:
        raise ValueError("tensor-parallel ranks have no place to meet at")
    slot_bytes = None
    if why_not is None:
        config, size = opened.config, start.parallel.tensor_parallel_size
        assert isinstance(config, DecoderConfig), "of a family that has a program"
        slot_bytes = slot_bytes_of(config, start.cache, size)
    return meet(start.parallel, keys, slot_bytes, why_not=why_not)
