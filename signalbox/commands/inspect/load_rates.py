"""Rates of a scheduler and its workers, from the difference of two answers to GetStats."""

from dataclasses import dataclass

from signalbox.commands.inspect.readings import Quantiles, Readings, quantiles, read
from signalbox.commands.inspect.session_use import SessionUse, session_use
from signalbox.commands.inspect.stage_use import StageLoad, stage_loads
from signalbox_contract.cache_groups import decode_group, describe_groups, is_one_full_group
from signalbox_protos.scheduler.v1 import explain_pb2
from signalbox_protos.scheduler.v1 import stats_pb2 as pb

STEPS = "step_duration_seconds"
"""Name of the sample that counts a worker's steps, by their duration."""
_PHASES = {
    explain_pb2.REQUEST_STATE_WAITING: "waiting",
    explain_pb2.REQUEST_STATE_SWAPPED: "swapped",
    explain_pb2.REQUEST_STATE_LOADING: "loading",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """One worker. Rates and quantiles are of the time between the two answers."""

    address: str
    is_draining: bool
    role: str
    """Role of the worker: prefill, decode or both."""
    groups: str
    """Groups of layers in words; empty of a worker with one, which keeps all tokens."""
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
    """Pipeline stages, the first first; none of a worker without them."""
    samples: Readings
    """Counts of the worker's parts, as its metrics name them."""


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
    sessions: list[SessionUse]
    """Sessions that clients name, the last used first; the scheduler lists at most 100."""
    samples: Readings
    """Counts of all workers together, as the scheduler's metrics name them."""


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
        queue_time=quantiles(before.requests.queue_ns, after.requests.queue_ns),
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
        sessions=[session_use(one) for one in after.sessions],
        samples=read(before.samples, after.samples, seconds),
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
    if _num_steps(before) > _num_steps(after):  # the worker has rejoined at the same address
        before = pb.WorkerStats()
    counts = read(before.samples, after.samples, seconds)
    queries, hits = counts.per_s("prefix_cache_queries"), counts.per_s("prefix_cache_hits")
    num_recomputes = int(counts.total("num_recomputes"))
    earlier, requests = before.requests, after.requests
    groups = list(map(decode_group, after.groups))
    return WorkerLoad(
        address=after.address,
        is_draining=after.is_draining,
        role=after.role or "both",
        groups="" if is_one_full_group(groups) else describe_groups(groups),
        num_running=after.num_requests_running,
        num_swapped=after.num_requests_swapped,
        num_gpu_blocks=after.num_gpu_blocks,
        num_used_gpu_blocks=after.num_gpu_blocks - after.num_free_gpu_blocks,
        num_cached_gpu_blocks=after.num_cached_gpu_blocks,
        num_cpu_blocks=after.num_cpu_blocks,
        num_used_cpu_blocks=after.num_cpu_blocks - after.num_free_cpu_blocks,
        steps_per_s=counts.per_s(STEPS),
        generated_tokens_per_s=counts.per_s("generation_tokens"),
        prefill_tokens_per_s=counts.per_s("prefill_tokens"),
        preemptions_per_s=counts.per_s("num_preemptions"),
        num_failures=after.num_failures,
        num_swaps=int(counts.total("num_preemptions")) - num_recomputes,
        num_recomputes=num_recomputes,
        prefix_hit_rate=hits / queries if queries else None,
        step=counts.quantiles(STEPS),
        time_to_first_token=quantiles(
            earlier.time_to_first_token_ns, requests.time_to_first_token_ns
        ),
        time_per_output_token=quantiles(
            earlier.time_per_output_token_ns, requests.time_per_output_token_ns
        ),
        step_shares=_shares(counts),
        stages=stage_loads(before.stages, after.stages),
        samples=counts,
    )


def _num_steps(worker: pb.WorkerStats) -> int:
    return sum(sum(one.histogram.counts) for one in worker.samples if one.name == STEPS)


def _shares(counts: Readings) -> dict[str, float]:
    phases = ("forward", "swap", "sample", "wait")
    spent = {phase: counts.per_s("step_phase_seconds", phase=phase) for phase in phases}
    whole = sum(spent.values())
    return {name: part / whole for name, part in spent.items()} if whole else {}
