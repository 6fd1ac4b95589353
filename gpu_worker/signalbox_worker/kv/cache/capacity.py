"""Finds how many KV blocks fit beside weights and activations, by running the largest step or, of
a program whose memory grows with the tokens alone, a part of it.

On a CUDA device the budget is a share of its memory, less what this worker uses and what the step
took. On a CPU the cache shares RAM with everything else, so the default takes an eighth of what is
free, at most 2 GiB, and half of that again for swapped blocks. Neither pool is larger than all
sequences together can use.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup, num_token_groups, state_group
from signalbox_contract.model import StoreCapacity, WorkerCapacity
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.largest_batch import largest_batch, most_draws
from signalbox_worker.config import GIB, CacheConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.ram import available_ram
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.kv.cache.measured_device import MeasuredDevice

logger = logging.getLogger(__name__)

_CPU_SHARE, _CPU_LIMIT = 8, 2 * GIB
_CPU_SWAP_SHARE, _CPU_SWAP_LIMIT = 16, 1 * GIB
_SWAP_SHARE, _SWAP_LIMIT = 4, 4 * GIB
"""Divisors of free RAM and upper bounds in bytes: for the KV cache on a CPU, for swapped blocks on
a CPU, and for swapped blocks beside a CUDA device."""


@dataclass(frozen=True, slots=True)
class RankShare:
    """A rank's share of the capacity that is asked for its worker."""

    cache: float = 1.0
    """Share of the KV cache: that of its layers, divided by the ranks of its stage."""
    local_size: int = 1
    """Ranks that use the memory of this machine at once."""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    @classmethod
    def of(cls, parallel: ParallelConfig, layers: StageLayers) -> "RankShare":
        return cls(
            cache=len(layers) / layers.total / parallel.tensor_parallel_size,
            local_size=parallel.local_size,
            tensor_parallel_size=parallel.tensor_parallel_size,
            pipeline_parallel_size=parallel.pipeline_parallel_size,
        )


WHOLE = RankShare()


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Properties of a loaded model that decide how much memory it takes beyond its weights."""

    block_size: int
    block_bytes: int
    max_model_len: int
    computes_whole: bool = False
    """True if sequences are not cut, so that the longest is a step."""
    step_divisor: int = 1
    """A step of so much fewer tokens and sequences is run, and its memory multiplied; for programs
    whose memory grows no faster than these."""
    others_bytes: int = 0
    """Bytes of the device in use before this worker took any."""
    graphs_bytes: int = 0
    """Bytes that graphs will take, which are not there yet."""
    adapters_bytes: int = 0
    """Bytes that are reserved for adapters, less those of adapters that are loaded."""
    drafts_bytes: int = 0
    """Bytes that are reserved for recent outputs, and for KV and steps of a draft model or
    an MTP layer."""
    groups: tuple[CacheGroup, ...] = (FULL_GROUP,)
    """Groups of layers, each of which has blocks of `block_bytes`."""
    max_draft_tokens: int = 0
    """Most drafts of a sequence in a step."""

    @property
    def least_blocks(self) -> int:
        """Blocks of a sequence of one row, with two states."""
        group = state_group(self.groups)
        return num_token_groups(self.groups) + (2 * group.state_blocks if group else 0)

    @property
    def most_blocks(self) -> int:
        """Blocks of the longest sequence, none behind a window freed, with states in as many blocks
        as a group of K and V takes, or the two that it needs."""
        num_rows = -(-self.max_model_len // self.block_size)
        of_tokens = num_rows * num_token_groups(self.groups)
        group = state_group(self.groups)
        return of_tokens + (0 if group is None else max(num_rows, 2 * group.state_blocks))


def measure_capacity(
    cache_config: CacheConfig,
    model: Footprint,
    device: MeasuredDevice,
    execute: Callable[[Batch], None],
    *,
    share: RankShare = WHOLE,
    store: StoreCapacity | None = None,
) -> WorkerCapacity:
    """Runs the largest step; returns what fits. Raises MemoryError if not one block does.

    Args:
        share: of RAM, and of what is asked for.
        store: that of the rank, whose blocks pass through swap space.
    """
    num_tokens = cache_config.num_batched_tokens(device.type)
    activations, tokens_per_s = _measure_step(cache_config, model, device, execute)
    budget = _budget(
        cache_config,
        device,
        activations + model.graphs_bytes + model.adapters_bytes + model.drafts_bytes,
        share=share,
        others_bytes=model.others_bytes,
    )
    useful = cache_config.max_num_seqs * model.most_blocks
    num_blocks = min(budget // model.block_bytes, useful)
    capacity = WorkerCapacity(
        block_size=model.block_size,
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=_num_swap_blocks(
            cache_config, device, share=share, block_bytes=model.block_bytes, useful=useful
        ),
        block_bytes=model.block_bytes,
        max_num_seqs=_num_seqs(cache_config, num_blocks, device, model),
        max_num_batched_tokens=num_tokens,
        copy_bytes_per_s=device.copy_bytes_per_s(),
        prefill_tokens_per_s=tokens_per_s,
        activations_bytes=activations,
        tensor_parallel_size=share.tensor_parallel_size,
        pipeline_parallel_size=share.pipeline_parallel_size,
        store=store,
        groups=model.groups,
        max_draft_tokens=model.max_draft_tokens,
    )
    if store is not None and not capacity.num_cpu_blocks:
        raise MemoryError(
            f"the {store.kind} tier takes swap space, through which its blocks pass, and there is"
            " none; raise --swap-space, or leave --kv-disk and --kv-store out"
        )
    _check(capacity, budget, device, share, model)
    return capacity


def _num_seqs(
    cache_config: CacheConfig, num_blocks: int, device: MeasuredDevice, model: Footprint
) -> int:
    """Returns the most sequences of a step: on a CPU no more than so many blocks have states for,
    since all of them keep two."""
    wanted, fit = cache_config.max_num_seqs, num_blocks // model.least_blocks
    if state_group(model.groups) is None or device.type != "cpu" or not 0 < fit < wanted:
        return wanted
    logger.warning(
        "max_num_seqs is %d, not %d: a sequence takes %d KV blocks or more, two states of its "
        "recurrent layers included, and there are %d; raise kv_cache_memory for more",
        fit,
        wanted,
        model.least_blocks,
        num_blocks,
    )
    return fit


def _measure_step(
    cache_config: CacheConfig,
    model: Footprint,
    device: MeasuredDevice,
    execute: Callable[[Batch], None],
) -> tuple[int, float]:
    """Returns the bytes that the largest step takes, and its tokens per second. Raises
    MemoryError."""
    num_tokens, divisor = cache_config.num_batched_tokens(device.type), model.step_divisor
    if model.computes_whole and device.type == "cuda":
        # On a CPU, whose memory is shared, it would delay the start for little.
        num_tokens = max(num_tokens, model.max_model_len)
    num_seqs = -(-cache_config.max_num_seqs // divisor)
    num_draws = most_draws(
        max_num_seqs=cache_config.max_num_seqs, max_draft_tokens=model.max_draft_tokens
    )
    num_run = max(num_seqs, -(-num_tokens // divisor))
    batch = largest_batch(
        num_tokens=num_run,
        num_seqs=num_seqs,
        max_model_len=model.max_model_len,
        block_size=model.block_size,
        groups=model.groups,
        num_draws=-(-num_draws // divisor),
        # A wide nucleus takes the most memory; on a CPU without native kernels it takes seconds.
        top_p=1.0 if device.type == "cpu" else 0.9,
    )
    times: list[float] = []
    try:
        activations = device.peak_growth(
            lambda: times.append(device.seconds(lambda: execute(batch)))
        )
    except MemoryError:
        raise MemoryError(
            f"a step of {num_tokens} tokens does not fit on {device}; "
            "lower max_num_batched_tokens or max_num_seqs"
        ) from None
    if device.type == "cuda":  # the first run compiled kernels, too
        times = [device.seconds(lambda: execute(batch))]
    return divisor * activations, num_run / times[0]


def _num_swap_blocks(
    cache_config: CacheConfig,
    device: MeasuredDevice,
    *,
    share: RankShare,
    block_bytes: int,
    useful: int,
) -> int:
    """Raises MemoryError if `swap_space` was set and the device cannot be given so much."""
    wanted = min(int(_swap_space(cache_config, device) * share.cache) // block_bytes, useful)
    possible = device.swap_bytes(wanted * block_bytes) // block_bytes
    if possible < wanted:
        what = (
            f"{wanted * block_bytes >> 20} MiB of swap space cannot be pinned, "
            f"{possible * block_bytes >> 20} MiB can"
        )
        remedy = "raise the limit of locked memory (ulimit -l)"
        if cache_config.swap_space_bytes is not None:
            raise MemoryError(f"{what}; lower swap_space, or {remedy}")
        logger.warning("%s and are used; for more, %s", what, remedy)
    return possible


def _swap_space(cache_config: CacheConfig, device: MeasuredDevice) -> int:
    """Returns the bytes for swapped-out blocks."""
    if cache_config.swap_space_bytes is None:
        if device.type == "cpu":
            return cpu_swap_bytes(available_ram())
        return min(_SWAP_LIMIT, available_ram() // _SWAP_SHARE)
    return cache_config.swap_space_bytes


def _budget(
    cache_config: CacheConfig,
    device: MeasuredDevice,
    reserved: int,
    *,
    share: RankShare,
    others_bytes: int,
) -> int:
    """Returns the bytes for this rank's KV cache; 0 if none are left.

    Args:
        reserved: what steps, graphs, adapters and drafts will take.
    """
    if cache_config.kv_cache_bytes is not None:
        return int(cache_config.kv_cache_bytes * share.cache)
    if device.type == "cpu":
        free = available_ram() - share.local_size * reserved
        return int(cpu_cache_bytes(free) * share.cache)
    free, total = device.free_and_total()
    return share_left(
        free=free,
        total=total,
        others=others_bytes,
        utilization=cache_config.gpu_memory_utilization,
        reserved=reserved,
    )


def cpu_cache_bytes(free: int) -> int:
    """Returns the KV cache of a worker on a CPU, of so many bytes that are free, by default."""
    return max(0, min(_CPU_LIMIT, free // _CPU_SHARE))


def cpu_swap_bytes(free: int) -> int:
    """Returns the swap space of a worker on a CPU, of so many bytes that are free, by default."""
    return min(_CPU_SWAP_LIMIT, free // _CPU_SWAP_SHARE)


def share_left(*, free: int, total: int, others: int, utilization: float, reserved: int) -> int:
    """Returns what is left of this worker's share of a device, in bytes, as vLLM counts it.

    Whatever came into use since the worker began is its own: weights, graphs, and what libraries
    and drivers keep. Other users of the card do not reduce the share, but only free memory counts.
    """
    own = total - free - others
    return max(0, min(int(total * utilization) - own, free) - reserved)


def _check(
    capacity: WorkerCapacity,
    budget: int,
    device: MeasuredDevice,
    share: RankShare,
    model: Footprint,
) -> None:
    beside, remedy = "", ""
    reserved = model.adapters_bytes + model.drafts_bytes
    if model.adapters_bytes:
        beside = f" beside {model.adapters_bytes >> 20} MiB for adapters"
        remedy = ", or lower max_cpu_loras or max_lora_rank"
    if model.drafts_bytes:
        beside += f" beside {model.drafts_bytes >> 20} MiB for drafts"
    if capacity.num_gpu_blocks < (least := model.least_blocks):
        setting = "kv_cache_memory" if device.type == "cpu" else "gpu_memory_utilization"
        what = "one KV block" if least == 1 else f"the {least} KV blocks of one sequence"
        raise MemoryError(
            f"too little memory for {what}: it takes {least * capacity.block_bytes} bytes and "
            f"{budget} are left{beside}; raise {setting} or use a smaller model{remedy}"
        )
    in_ram = capacity.num_cpu_blocks + (capacity.num_gpu_blocks if device.type == "cpu" else 0)
    needed, free = int(in_ram * capacity.block_bytes / share.cache), available_ram()
    if device.type == "cpu":
        free = max(0, free - share.local_size * reserved)
    if needed > free:
        raise MemoryError(
            f"the KV cache in RAM would take {needed >> 20} MiB and {free >> 20} MiB are free"
            f"{beside}; lower swap_space or kv_cache_memory{remedy}"
        )
