"""Encodes what the scheduler tells of itself: explanations of requests, and its counts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from signalbox_contract import prefix_comparison
from signalbox_contract.cache_groups import CacheGroup, decode_group, encode_group, state_group
from signalbox_contract.errors import NotFound
from signalbox_contract.model import encode_rank
from signalbox_contract.step_result import encode_stages
from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.scheduler.v1 import explain_pb2, sample_pb2, stats_pb2
from signalbox_rpc.metrics.histogram import Histogram
from signalbox_rpc.metrics.sample import PER_NS, Sample
from signalbox_scheduler.insight.explain import Explanation
from signalbox_scheduler.insight.history_spans import spans_of
from signalbox_scheduler.insight.history_words import lines_of, summary_of
from signalbox_scheduler.insight.sessions import ClientSession
from signalbox_scheduler.insight.stats import RequestStats
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.block_table import num_held
from signalbox_scheduler.requests.stage_use import StageUse
from signalbox_scheduler.requests.timeline import TimelineEvent
from signalbox_scheduler.requests.wait_accounting import Wait
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.quarantine import Quarantine

_ENCODED = {"state", "events", "waits", "stages", "samples", "kind", "prefix"}
_ENCODED |= {"total", "last_turn", "last_prefix"}
"""Fields that have another form in the message; the others are as they are."""
_SAME = {*explain_pb2.ExplainResponse.DESCRIPTOR.fields_by_name}.intersection(Explanation.__slots__)
_SAME_OF_EVENTS = {*explain_pb2.Event.DESCRIPTOR.fields_by_name}.intersection(TimelineEvent._fields)
_SAME_OF_SESSIONS = {*stats_pb2.SessionSummary.DESCRIPTOR.fields_by_name}.intersection(
    ClientSession.__slots__
)


def explain(
    request: explain_pb2.ExplainRequest, cluster: Cluster, *, history: int
) -> explain_pb2.ExplainResponse:
    """Returns what happened to the request that is asked for. Raises NotFound.

    Args:
        history: requests that have ended and are still known.
    """
    requests, request_id = cluster.requests, request.request_id
    if request.HasField("request_number"):
        request_id = f"number {request.request_number}"
        known = requests.explain_number(request.request_number)
    elif (known := requests.explain(request_id)) is None and request_id:
        ids = requests.ids_that_begin_with(request_id)
        if len(ids) > 1:
            raise NotFound(f"{len(ids)} requests begin with {request_id!r}; give more of the id")
        known = requests.explain(ids[0]) if ids else None
    if known is None:
        raise NotFound(
            f"no request {request_id!r} is live, or among the last {history} that ended;"
            " each scheduler knows its own requests"
        )
    message = explanation(known, cluster)
    held = [(decode_group(one.group), one.num_blocks) for one in message.held_blocks]
    blocks = _blocks_of(known.worker, cluster)
    message.text.CopyFrom(
        _text(
            known,
            block_size=message.block_size,
            held=held,
            has_states=blocks is not None and state_group(blocks.groups) is not None,
        )
    )
    return message


def _text(
    known: Explanation,
    *,
    block_size: int,
    held: list[tuple[CacheGroup, int]],
    has_states: bool,
) -> explain_pb2.HistoryText:
    def since_arrival(at: float) -> int:
        return nanoseconds(at - known.arrival)

    return explain_pb2.HistoryText(
        summary=summary_of(known, block_size=block_size, held=held, has_states=has_states),
        lines=[
            explain_pb2.HistoryLine(at_ns=since_arrival(at), event=event, details=details)
            for at, event, details in lines_of(known.events)
        ],
        spans=[
            explain_pb2.HistorySpan(
                lane=lane,
                begins_at_ns=since_arrival(begin),
                ends_at_ns=since_arrival(end),
                details=details,
            )
            for lane, begin, end, details in spans_of(known.events, as_of=known.as_of)
        ],
    )


def explanation(known: Explanation, cluster: Cluster) -> explain_pb2.ExplainResponse:
    blocks = _blocks_of(known.worker, cluster)
    message = explain_pb2.ExplainResponse(
        **{name: getattr(known, name) for name in _SAME - _ENCODED},
        state=f"REQUEST_STATE_{known.state.name}",
        age_ns=nanoseconds(known.as_of - known.arrival),
        queued_ns=nanoseconds(known.queued_s),
        prefill_ns=nanoseconds(known.prefill_s),
        decode_ns=nanoseconds(known.decode_s),
        preempted_ns=nanoseconds(known.preempted_s),
        events=[_event(event, known.arrival) for event in known.events],
        waits=_waits(known.waits),
        role=_role(known.worker, cluster),
        block_size=blocks.block_size if blocks else 0,
        held_blocks=_held_blocks(known, blocks.groups)
        if blocks and any(known.block_tables)
        else (),
        stages=_stage_use(known.stages),
        samples=map(sample, known.samples),
        prefix=None if known.prefix is None else prefix_comparison.encode(known.prefix),
    )
    if known.failure is not None:
        message.code, message.message = known.failure.code, known.failure.message
    return message


def _role(worker_name: str, cluster: Cluster) -> str:
    """Returns what a worker computes, if that is only one part of the work."""
    roles = [cluster.roles.of(one) for one in cluster.step_loops if one.worker_name == worker_name]
    return "" if WorkerRole.BOTH in roles else "".join(roles[:1])


def _blocks_of(worker_name: str, cluster: Cluster) -> BlockSpaceManager | None:
    """Returns the blocks of a worker; None if it has left."""
    here = (one for one in cluster.step_loops if one.worker_name == worker_name)
    return next((one.scheduler.blocks for one in here), None)


def _held_blocks(
    known: Explanation, groups: Sequence[CacheGroup]
) -> Iterator[explain_pb2.GroupBlocks]:
    for column, group in enumerate(groups):
        num_blocks = num_held(known.block_tables, column=column, num_groups=len(groups))
        yield explain_pb2.GroupBlocks(group=encode_group(group), num_blocks=num_blocks)


def _stage_use(use: StageUse) -> explain_pb2.StageUse | None:
    """Returns None for a worker of one rank."""
    if not use.ranks:
        return None
    return explain_pb2.StageUse(
        ranks=map(encode_rank, use.ranks),
        stages=encode_stages(use.stages),
        num_steps=use.num_steps,
        in_flight_ns=use.in_flight_ns,
    )


def _event(event: TimelineEvent, arrival: float) -> explain_pb2.Event:
    return explain_pb2.Event(
        **{name: getattr(event, name) for name in _SAME_OF_EVENTS - _ENCODED},
        kind=f"EVENT_KIND_{event.kind.name}",
        at_ns=nanoseconds(event.at - arrival),
        duration_ns=nanoseconds(event.seconds),
        waits=_waits(event.waits),
    )


def _waits(waits: Iterable[Wait]) -> list[explain_pb2.Wait]:
    return [
        explain_pb2.Wait(
            reason=f"WAIT_REASON_{wait.reason.name}",
            duration_ns=nanoseconds(wait.seconds),
            num_plans=wait.num_plans,
        )
        for wait in waits
    ]


def stats(
    cluster: Cluster, *, max_live_requests: int = 0, max_sessions: int = 0
) -> stats_pb2.GetStatsResponse:
    """Encodes the counts, the oldest live requests, and the sessions that were used last."""
    return stats_pb2.GetStatsResponse(
        sessions=[
            session_summary(one, age_s=cluster.now - one.used_at)
            for one in cluster.requests.sessions.latest(max_sessions)
        ],
        live_requests=map(_live_request, cluster.requests.explain_live(max_live_requests)),
        model_name=cluster.model.name if cluster.model else "",
        num_requests_waiting=len(cluster.admission),
        workers=[_worker_stats(step_loop, cluster) for step_loop in cluster.step_loops],
        uptime_ns=nanoseconds(cluster.uptime_s),
        requests=_request_stats(cluster.requests.stats),
        num_refused=cluster.requests.num_refused,
        quarantined_workers=map(_quarantined, cluster.worker_records.quarantined()),
        samples=map(sample, cluster.samples()),
    )


def _quarantined(one: Quarantine) -> stats_pb2.QuarantinedWorker:
    return stats_pb2.QuarantinedWorker(
        address=one.worker,
        num_failures=one.num_failures,
        pause_ns=nanoseconds(one.pause_s),
        left_ns=nanoseconds(one.left_s),
    )


def _live_request(known: Explanation) -> stats_pb2.RequestSummary:
    return stats_pb2.RequestSummary(
        request_id=known.request_id,
        state=f"REQUEST_STATE_{known.state.name}",
        worker=known.worker,
        num_prompt_tokens=known.num_prompt_tokens,
        num_output_tokens=known.num_output_tokens,
        max_tokens=known.max_tokens,
        age_ns=nanoseconds(known.as_of - known.arrival),
        waited_ns=nanoseconds(known.queued_s + known.preempted_s),
    )


def session_summary(one: ClientSession, *, age_s: float) -> stats_pb2.SessionSummary:
    """Returns what is known of a session.

    Args:
        age_s: seconds since it was used.
    """
    return stats_pb2.SessionSummary(
        **{name: getattr(one, name) for name in _SAME_OF_SESSIONS - _ENCODED},
        total=stats_pb2.TurnTokens(**asdict(one.total)),
        last_turn=stats_pb2.TurnTokens(**asdict(one.last_turn)),
        idle_ns=nanoseconds(age_s),
        last_prefix=None if one.last_prefix is None else prefix_comparison.encode(one.last_prefix),
    )


def _worker_stats(step_loop: StepLoop, cluster: Cluster) -> stats_pb2.WorkerStats:
    scheduler = step_loop.scheduler
    gpu, cpu = scheduler.blocks.gpu, scheduler.blocks.cpu
    return stats_pb2.WorkerStats(
        address=step_loop.worker_name,
        num_requests_running=len(scheduler.running),
        num_requests_swapped=len(scheduler.swapped),
        num_gpu_blocks=gpu.num_blocks,
        num_free_gpu_blocks=gpu.num_free,
        num_cached_gpu_blocks=gpu.num_cached,
        num_cpu_blocks=cpu.num_blocks,
        num_free_cpu_blocks=cpu.num_free,
        num_cached_cpu_blocks=cpu.num_cached,
        is_draining=not scheduler.is_accepting,
        num_failures=cluster.worker_records.num_failures_of(step_loop.worker_name),
        role=cluster.roles.of(step_loop),
        groups=map(encode_group, scheduler.blocks.groups),
        requests=_request_stats(scheduler.request_stats),
        stages=_stage_use(scheduler.steps.stages.use()),
        samples=map(sample, scheduler.samples()),
    )


def _request_stats(requests: RequestStats) -> stats_pb2.RequestStats:
    return stats_pb2.RequestStats(
        num_ended=requests.num_ended,
        queue_ns=_histogram(requests.queue_ns, PER_NS),
        time_to_first_token_ns=_histogram(requests.time_to_first_token_ns, PER_NS),
        time_per_output_token_ns=_histogram(requests.time_per_output_token_ns, PER_NS),
    )


def sample(one: Sample) -> sample_pb2.Sample:
    kind, name, meaning, value, labels, unit = one
    message = sample_pb2.Sample(name=name, meaning=meaning, labels=labels)
    if isinstance(value, Histogram):
        message.histogram.CopyFrom(_histogram(value, unit))
    else:
        setattr(message, kind, value)
    return message


def _histogram(values: Histogram, unit: float) -> sample_pb2.Histogram:
    return sample_pb2.Histogram(
        bounds=values.bounds, counts=values.counts, sum=values.sum, unit=unit
    )


def nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))
