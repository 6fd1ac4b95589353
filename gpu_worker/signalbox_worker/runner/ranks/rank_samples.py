"""Counts of the ranks and pipeline stages of a worker."""

from collections.abc import Iterable, Iterator

from signalbox_contract.model import WorkerRank
from signalbox_contract.step_result import Stages, StageTimings
from signalbox_rpc.metrics.sample import PER_NS, Sample, counter, counters, gauge, labelled


def of_ranks(ranks: Iterable[WorkerRank]) -> Iterator[Sample]:
    for one in ranks:
        yield gauge(
            "worker_rank_info",
            "Where a rank is, and its layers; always 1.",
            1,
            rank=str(one.rank),
            stage=str(one.stage),
            tensor_parallel_rank=str(one.tensor_parallel_rank),
            host=one.host,
            address=one.address,
            first_layer=str(one.first_layer),
            num_layers=str(one.num_layers),
        )


def of_stages(stages: Stages) -> Iterator[Sample]:
    """Yields the sums of stages; the last one passes nothing on."""
    for number, stage in enumerate(stages):
        phases = counters(
            "worker_stage_phase_seconds",
            "Where the time of steps went in each pipeline stage, on its first rank.",
            _phases(stage),
            by="phase",
        )
        yield from labelled(phases, stage=str(number))
    for number, stage in enumerate(stages[:-1]):
        yield counter(
            "worker_stage_boundary_bytes",
            "Hidden states that the next stage has got from this one.",
            stage.boundary_bytes,
            stage=str(number),
        )
        yield counter(
            "worker_stage_boundary_seconds",
            "From the end of this stage's computation until the next one said to have its states.",
            stage.boundary_ns * PER_NS,
            stage=str(number),
        )


def of_rank(times: StageTimings, *, rank: int, stage: int) -> Iterator[Sample]:
    """Yields the times of a rank but the first, which that rank shows itself."""
    return counters(
        "worker_rank_phase_seconds",
        "Where the time of steps went on a rank but the first.",
        _phases(times),
        by="phase",
        rank=str(rank),
        stage=str(stage),
    )


def _phases(times: StageTimings) -> dict[str, float]:
    return {phase: total_ns * PER_NS for phase, total_ns in times.phases_ns().items()}
