"""Counts a worker's executed steps, once for each, and exposes them to Prometheus."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from signalbox_contract.model import ModelInfo, WorkerCapacity
from signalbox_contract.step_result import Stages, StepResult, sum_stages
from signalbox_rpc.metrics.histogram import Histogram, times
from signalbox_rpc.metrics.registry import PER_NS, Families
from signalbox_worker.device.inspection import BackendInUse
from signalbox_worker.kv_store.block_store import StoreUsage
from signalbox_worker.kv_store.block_transfers import TransferUsage


@dataclass(slots=True)
class StepCounts:
    """Counts of the executed steps."""

    duration_ns: Histogram = field(default_factory=times)
    """Nanoseconds of block moves, forward passes and sampling, without waits for earlier steps."""
    wait_ns: int = 0
    swap_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    stages: Stages = ()
    """Sums by pipeline stage; empty for a worker of one rank."""
    num_sampled_tokens: int = 0
    num_failures: int = 0
    """Sequences that could not be computed."""

    @property
    def num_steps(self) -> int:
        return sum(self.duration_ns.counts)

    def observe(self, result: StepResult) -> None:
        """Counts a step's answer."""
        timings = result.timings
        self.duration_ns.observe(timings.swap_ns + timings.forward_ns + timings.sample_ns)
        self.wait_ns += timings.wait_ns
        self.swap_ns += timings.swap_ns
        self.forward_ns += timings.forward_ns
        self.sample_ns += timings.sample_ns
        if timings.stages:
            self.stages = sum_stages(self.stages, timings.stages)
        self.num_sampled_tokens += len(result.token_ids)
        self.num_failures += len(result.failures)


def read(
    steps: StepCounts,
    model: ModelInfo,
    capacity: WorkerCapacity,
    *,
    has_lease: bool,
    backends: Sequence[BackendInUse],
    transfers: TransferUsage,
    families: Families,
) -> None:
    """Adds a worker as it is now."""
    name = {"model_name": model.name}
    families.histogram(
        "worker_step_duration_seconds",
        "What a step took, without its wait for the one before.",
        steps.duration_ns,
        scale=PER_NS,
        **name,
    )
    for phase, total_ns in (
        ("wait", steps.wait_ns),
        ("swap", steps.swap_ns),
        ("forward", steps.forward_ns),
        ("sample", steps.sample_ns),
    ):
        families.counter(
            "worker_step_phase_seconds", "Where the time of steps went.", total_ns * PER_NS,
            **name, phase=phase,
        )  # fmt: skip
    _add_stages(steps.stages, families, name)
    _add_ranks(capacity, families, name)
    for part, backend, is_last_resort in backends:
        families.gauge(
            "worker_backend_info",
            "What does a part of the work; the last resort is PyTorch on a GPU; always 1.",
            1, **name, part=part, backend=backend, last_resort=str(is_last_resort).lower(),
        )  # fmt: skip
    for counter, meaning, number in (
        ("worker_sampled_tokens", "Tokens that were drawn.", steps.num_sampled_tokens),
        ("worker_failed_sequences", "Sequences that could not be computed.", steps.num_failures),
    ):
        families.counter(counter, meaning, number, **name)
    for gauge, meaning, number in (
        ("worker_lease", "1 while a scheduler holds this worker's lease.", int(has_lease)),
        ("worker_gpu_blocks", "KV-cache blocks that fit.", capacity.num_gpu_blocks),
        ("worker_cpu_blocks", "Swap blocks that fit.", capacity.num_cpu_blocks),
    ):
        families.gauge(gauge, meaning, number, **name)
    for direction, number in (("lend", transfers.num_exports), ("read", transfers.num_reads)):
        families.gauge(
            "worker_kv_peer_moves",
            "Lends of KV blocks under way to other workers, which pin them here, and reads.",
            number, **name, direction=direction,
        )  # fmt: skip
    if transfers.store is not None:
        _add_store(transfers.store, families, name)


def _add_store(store: StoreUsage, families: Families, name: dict[str, str]) -> None:
    for gauge, meaning, number in (
        (
            "worker_kv_store_open",
            "1 once the worker's store finds and keeps blocks.",
            store.is_open,
        ),
        ("worker_kv_store_blocks", "KV blocks in the worker's store.", store.num_blocks),
        ("worker_kv_store_bytes", "Space that the store's blocks take.", store.used_bytes),
        (
            "worker_kv_store_capacity_bytes",
            "Space that the store may take; 0 if a server has no limit, or reports none.",
            store.capacity_bytes,
        ),
    ):
        families.gauge(gauge, meaning, number, **name)
    for counter, meaning, number in (
        (
            "worker_kv_store_evictions",
            "Blocks of the store that made room for others.",
            store.num_evicted,
        ),
        (
            "worker_kv_store_errors",
            "Errors of the store's device, and blocks that are not what was written.",
            store.num_failed,
        ),
    ):
        families.counter(counter, meaning, number, **name)


def _add_stages(stages: Stages, families: Families, name: dict[str, str]) -> None:
    for number, stage in enumerate(stages):
        of_stage = {**name, "stage": str(number)}
        for phase, total_ns in stage.phases_ns().items():
            families.counter(
                "worker_stage_phase_seconds",
                "Where the time of steps went in each pipeline stage, on its first rank.",
                total_ns * PER_NS,
                **of_stage,
                phase=phase,
            )
        if number == len(stages) - 1:
            return
        families.counter(
            "worker_stage_boundary_bytes",
            "Hidden states that the next stage has got from this one.",
            stage.boundary_bytes,
            **of_stage,
        )
        families.counter(
            "worker_stage_boundary_seconds",
            "From the end of this stage's computation until the next one said to have its states.",
            stage.boundary_ns * PER_NS,
            **of_stage,
        )


def _add_ranks(capacity: WorkerCapacity, families: Families, name: dict[str, str]) -> None:
    for rank in capacity.ranks:
        families.gauge(
            "worker_rank_info",
            "Where a rank is, and its layers; always 1.",
            1,
            **name,
            rank=str(rank.rank),
            stage=str(rank.stage),
            tensor_parallel_rank=str(rank.tensor_parallel_rank),
            host=rank.host,
            address=rank.address,
            first_layer=str(rank.first_layer),
            num_layers=str(rank.num_layers),
        )
