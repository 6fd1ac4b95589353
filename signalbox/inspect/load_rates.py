"""Rates of a scheduler and its workers, from the difference of two answers to GetStats."""

from collections.abc import Sequence
from dataclasses import dataclass

from signalbox.inspect.stage_use import StageLoad, stage_loads
from signalbox_protos.scheduler.v1 import explain_pb2
from signalbox_protos.scheduler.v1 import stats_pb2 as pb

_PHASES = {
    explain_pb2.REQUEST_STATE_WAITING: "waiting",
    explain_pb2.REQUEST_STATE_SWAPPED: "swapped",
    explain_pb2.REQUEST_STATE_LOADING: "loading",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Quantiles of durations, as exact as the scheduler's buckets; None if there were no values."""

    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLoad:
    """A worker's store of KV blocks. Rates are of the time between the two answers."""

    kind: str
    num_loading: int
    """Requests that look for their prefix there, or wait for it."""
    hit_rate: float | None
    """Share of the tokens that were looked up since the worker joined."""
    fetched_bytes_per_s: float
    stored_bytes_per_s: float
    num_failures: int
    """Moves that have failed or come late since the worker joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverLoad:
    """Running requests that went from worker to worker with their KV blocks, since it joined."""

    num_out: int
    num_in: int
    num_given_up: int
    """Groups whose handover was given up, so that they stayed here."""
    pause: Quantiles
    """Time without a token of those that came between the two answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """One worker. Rates and quantiles are of the time between the two answers."""

    address: str
    is_draining: bool
    role: str
    """Role of the worker: prefill, decode or both."""
    num_running: int
    num_swapped: int
    num_gpu_blocks: int
    num_used_gpu_blocks: int
    num_cached_gpu_blocks: int
    num_cpu_blocks: int
    num_used_cpu_blocks: int
    steps_per_s: float
    generated_tokens_per_s: float
    prefill_tokens_per_s: float
    preemptions_per_s: float
    num_failures: int
    """Failures of the last ten minutes, without those that a request caused."""
    num_swaps: int
    """Preemptions by swapping since it joined."""
    num_recomputes: int
    prefix_hit_rate: float | None
    step: Quantiles
    time_to_first_token: Quantiles
    time_per_output_token: Quantiles
    step_shares: dict[str, float]
    """Shares of the worker's time in forward, swap, sample and wait; their sum is 1."""
    stages: list[StageLoad]
    """Pipeline stages, the first first; none of a worker of one rank."""
    store: StoreLoad | None
    """None of a worker without one."""
    peers: StoreLoad | None
    """Blocks read of other workers, and by them; None of a worker that has none."""
    handovers: HandoverLoad | None
    """None of a worker that reads no other one's blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedWorker:
    """A worker that may not join yet, because it failed repeatedly."""

    address: str
    num_failures: int
    pause_s: float
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherLoad:
    """Launcher that keeps the workers running, and workers that do not run."""

    placement: str
    num_workers: int
    pending: dict[str, str]
    """Reason why a worker does not run yet, by name of the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """One live request."""

    request_id: str
    phase: str
    """Phase: waiting, loading, prefill, decode or swapped."""
    worker: str
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    age_s: float
    waited_s: float
    """Part of age_s spent in the queue or preempted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRates:
    """The scheduler and its workers."""

    model_name: str
    uptime_s: float
    num_waiting: int
    num_running: int
    num_swapped: int
    requests_per_s: float
    generated_tokens_per_s: float
    num_ended: dict[str, int]
    """Ended requests since the scheduler started, by reason, and those refused on arrival."""
    num_refused: dict[str, int]
    queue_time: Quantiles
    workers: list[WorkerLoad]
    quarantined_workers: list[QuarantinedWorker]
    launcher: LauncherLoad | None
    """None if each worker was started by itself."""
    requests: list[RequestLoad]
    """The oldest live requests; the scheduler lists at most 100."""


def measure(before: pb.GetStatsResponse, after: pb.GetStatsResponse) -> LoadRates:
    """Returns the load between two answers of one scheduler, the older first."""
    seconds = max(1e-3, (after.uptime_ns - before.uptime_ns) / 1e9)
    known = {worker.address: worker for worker in before.workers}
    workers = [
        _worker(known.get(worker.address, pb.WorkerStats()), worker, seconds)
        for worker in after.workers
    ]
    num_ended = sum(after.requests.num_ended.values()) - sum(before.requests.num_ended.values())
    return LoadRates(
        model_name=after.model_name,
        uptime_s=after.uptime_ns / 1e9,
        num_waiting=after.num_requests_waiting,
        num_running=sum(worker.num_running for worker in workers),
        num_swapped=sum(worker.num_swapped for worker in workers),
        requests_per_s=num_ended / seconds,
        generated_tokens_per_s=sum(worker.generated_tokens_per_s for worker in workers),
        num_ended=dict(after.requests.num_ended),
        num_refused=dict(after.num_refused),
        queue_time=_quantiles(before.requests.queue_ns, after.requests.queue_ns),
        workers=workers,
        quarantined_workers=[
            QuarantinedWorker(
                address=one.address,
                num_failures=one.num_failures,
                pause_s=one.pause_ns / 1e9,
                left_s=one.left_ns / 1e9,
            )
            for one in after.quarantined_workers
        ],
        launcher=_launcher(after.launcher) if after.HasField("launcher") else None,
        requests=[_request(request) for request in after.live_requests],
    )


def _launcher(state: pb.LauncherState) -> LauncherLoad:
    return LauncherLoad(
        placement=state.placement,
        num_workers=state.num_workers,
        pending={one.name: one.reason for one in state.pending},
    )


def _request(request: pb.RequestSummary) -> RequestLoad:
    phase = _PHASES.get(request.state, "decode" if request.num_output_tokens else "prefill")
    return RequestLoad(
        request_id=request.request_id,
        phase=phase,
        worker=request.worker,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        max_tokens=request.max_tokens,
        age_s=request.age_ns / 1e9,
        waited_s=request.waited_ns / 1e9,
    )


def _worker(before: pb.WorkerStats, after: pb.WorkerStats, seconds: float) -> WorkerLoad:
    if before.num_steps > after.num_steps:  # the worker has rejoined at the same address
        before = pb.WorkerStats()
    queries = after.num_prefix_queries - before.num_prefix_queries
    hits = after.num_prefix_hits - before.num_prefix_hits
    earlier, requests = before.requests, after.requests
    return WorkerLoad(
        address=after.address,
        is_draining=after.is_draining,
        role=after.role or "both",
        num_running=after.num_requests_running,
        num_swapped=after.num_requests_swapped,
        num_gpu_blocks=after.num_gpu_blocks,
        num_used_gpu_blocks=after.num_gpu_blocks - after.num_free_gpu_blocks,
        num_cached_gpu_blocks=after.num_cached_gpu_blocks,
        num_cpu_blocks=after.num_cpu_blocks,
        num_used_cpu_blocks=after.num_cpu_blocks - after.num_free_cpu_blocks,
        steps_per_s=(after.num_steps - before.num_steps) / seconds,
        generated_tokens_per_s=(after.num_generated_tokens - before.num_generated_tokens) / seconds,
        prefill_tokens_per_s=(after.steps.num_prefill_tokens - before.steps.num_prefill_tokens)
        / seconds,
        preemptions_per_s=(after.num_preemptions - before.num_preemptions) / seconds,
        num_failures=after.num_failures,
        num_swaps=after.num_preemptions - after.num_recomputes,
        num_recomputes=after.num_recomputes,
        prefix_hit_rate=hits / queries if queries else None,
        step=_quantiles(before.steps.duration_ns, after.steps.duration_ns),
        time_to_first_token=_quantiles(
            earlier.time_to_first_token_ns, requests.time_to_first_token_ns
        ),
        time_per_output_token=_quantiles(
            earlier.time_per_output_token_ns, requests.time_per_output_token_ns
        ),
        step_shares=_shares(before.steps, after.steps),
        stages=stage_loads(before.stages, after.stages),
        store=_store(before.store, after.store, seconds) if after.HasField("store") else None,
        peers=_store(before.peers, after.peers, seconds) if after.HasField("peers") else None,
        handovers=_handovers(before.handovers, after.handovers)
        if after.HasField("handovers")
        else None,
    )


def _handovers(before: pb.HandoverStats, after: pb.HandoverStats) -> HandoverLoad:
    return HandoverLoad(
        num_out=after.num_handed_over,
        num_in=after.num_taken_over,
        num_given_up=after.num_given_up,
        pause=_quantiles(before.pause_ns, after.pause_ns),
    )


def _store(before: pb.StoreStats, after: pb.StoreStats, seconds: float) -> StoreLoad:
    return StoreLoad(
        kind=after.kind,
        num_loading=after.num_requests_loading,
        hit_rate=after.num_hits / after.num_queries if after.num_queries else None,
        fetched_bytes_per_s=(after.num_fetched_bytes - before.num_fetched_bytes) / seconds,
        stored_bytes_per_s=(after.num_stored_bytes - before.num_stored_bytes) / seconds,
        num_failures=after.num_failed_loads + after.num_late_loads + after.num_failed_stores,
    )


def _shares(before: pb.StepStats, after: pb.StepStats) -> dict[str, float]:
    spent = {
        name: getattr(after, f"{name}_ns") - getattr(before, f"{name}_ns")
        for name in ("forward", "swap", "sample", "wait")
    }
    whole = sum(spent.values())
    return {name: part / whole for name, part in spent.items()} if whole else {}


def _quantiles(before: pb.Histogram, after: pb.Histogram) -> Quantiles:
    earlier = list(before.counts) or [0] * len(after.counts)
    counts = [count - then for count, then in zip(after.counts, earlier, strict=True)]
    return Quantiles(
        p50_s=_quantile(counts, after.bounds, 0.5), p99_s=_quantile(counts, after.bounds, 0.99)
    )


def _quantile(counts: list[int], bounds: Sequence[int], share: float) -> float | None:
    """Returns a quantile in seconds, assuming evenly distributed values within a bucket."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    seen, low = 0, 0
    for count, high in zip(counts, bounds, strict=False):
        if seen + count >= wanted:
            return (low + (high - low) * (wanted - seen) / count) / 1e9
        seen, low = seen + count, high
    return bounds[-1] / 1e9
