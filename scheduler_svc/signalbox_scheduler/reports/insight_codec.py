"""Encodes what the scheduler tells of itself: explanations of requests, and its counts."""

from collections.abc import Iterable

from signalbox_contract.model import encode_rank
from signalbox_contract.step_result import encode_stages
from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.scheduler.v1 import explain_pb2, stats_pb2
from signalbox_rpc.metrics.histogram import Histogram
from signalbox_scheduler.cluster import Cluster
from signalbox_scheduler.insight.explain import Explanation
from signalbox_scheduler.insight.stats import RequestStats, StepStats
from signalbox_scheduler.kv_moves.peers import TransferPeer
from signalbox_scheduler.kv_moves.store_planning import StorePlanning
from signalbox_scheduler.kv_moves.worker_handovers import WorkerHandovers
from signalbox_scheduler.requests.stage_use import StageUse
from signalbox_scheduler.requests.timeline import Event
from signalbox_scheduler.requests.wait_accounting import Wait
from signalbox_scheduler.scheduler import Scheduler
from signalbox_scheduler.workers.quarantine import Quarantine
from signalbox_scheduler.workers.step_loop import StepLoop


def explanation(known: Explanation, cluster: Cluster) -> explain_pb2.ExplainResponse:
    message = explain_pb2.ExplainResponse(
        request_id=known.request_id,
        state=f"REQUEST_STATE_{known.state.name}",
        worker=known.worker,
        age_ns=nanoseconds(known.as_of - known.arrival),
        num_prompt_tokens=known.num_prompt_tokens,
        num_cached_tokens=known.num_cached_tokens,
        num_output_tokens=known.num_output_tokens,
        max_tokens=known.max_tokens,
        num_sequences=known.num_sequences,
        num_preemptions=known.num_preemptions,
        queued_ns=nanoseconds(known.queued_s),
        prefill_ns=nanoseconds(known.prefill_s),
        decode_ns=nanoseconds(known.decode_s),
        preempted_ns=nanoseconds(known.preempted_s),
        events=[_event(event, known.arrival) for event in known.events],
        num_dropped_events=known.num_dropped_events,
        waits=_waits(known.waits),
        num_ahead=known.num_ahead,
        role=_role(known.worker, cluster),
        num_steps_sat_out=known.num_steps_sat_out,
    )
    if known.stages.ranks:
        message.stages.CopyFrom(_stage_use(known.stages))
    if known.failure is not None:
        message.code, message.message = known.failure.code, known.failure.message
    return message


def _role(worker_name: str, cluster: Cluster) -> str:
    """Returns what a worker computes, if that is only one part of the work."""
    roles = [cluster.roles.of(one) for one in cluster.step_loops if one.worker_name == worker_name]
    return "" if WorkerRole.BOTH in roles else "".join(roles[:1])


def _stage_use(use: StageUse) -> explain_pb2.StageUse:
    return explain_pb2.StageUse(
        ranks=map(encode_rank, use.ranks),
        stages=encode_stages(use.stages),
        num_steps=use.num_steps,
        in_flight_ns=use.in_flight_ns,
    )


def _event(event: Event, arrival: float) -> explain_pb2.Event:
    return explain_pb2.Event(
        kind=f"EVENT_KIND_{event.kind.name}",
        at_ns=nanoseconds(event.at - arrival),
        worker=event.worker,
        step_id=event.step_id,
        num_tokens=event.num_tokens,
        num_cached_tokens=event.num_cached_tokens,
        num_blocks=event.num_blocks,
        num_sequences=event.num_sequences,
        num_ahead=event.num_ahead,
        num_waiting=event.num_waiting,
        is_swap=event.is_swap,
        other_request_id=event.other_request_id,
        detail=event.detail,
        waits=_waits(event.waits),
        branch=event.branch,
        num_bytes=event.num_bytes,
        duration_ns=nanoseconds(event.seconds),
        source=event.source,
        store=event.store,
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


def stats(cluster: Cluster, *, max_live_requests: int = 0) -> stats_pb2.GetStatsResponse:
    """Encodes the counts, and the oldest live requests up to `max_live_requests`."""
    return stats_pb2.GetStatsResponse(
        live_requests=map(_live_request, cluster.requests.explain_live(max_live_requests)),
        model_name=cluster.model.name if cluster.model else "",
        num_requests_waiting=len(cluster.admission),
        workers=[_worker_stats(step_loop, cluster) for step_loop in cluster.step_loops],
        uptime_ns=nanoseconds(cluster.uptime_s),
        requests=_request_stats(cluster.requests.stats),
        num_refused=cluster.requests.num_refused,
        quarantined_workers=map(_quarantined, cluster.worker_records.quarantined()),
        num_worker_failures=cluster.worker_records.num_failures,
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


def _worker_stats(step_loop: StepLoop, cluster: Cluster) -> stats_pb2.WorkerStats:
    scheduler = step_loop.scheduler
    gpu, cpu = scheduler.blocks.gpu, scheduler.blocks.cpu
    return stats_pb2.WorkerStats(
        address=step_loop.worker_name,
        num_requests_running=len(scheduler.running),
        num_requests_swapped=len(scheduler.swapped),
        num_gpu_blocks=gpu.num_blocks,
        num_free_gpu_blocks=gpu.num_free,
        num_cpu_blocks=cpu.num_blocks,
        num_free_cpu_blocks=cpu.num_free,
        num_steps=scheduler.num_steps,
        num_preemptions=scheduler.preemption.num_preemptions,
        num_generated_tokens=scheduler.output_processor.num_generated_tokens,
        num_prompt_tokens=scheduler.output_processor.num_prompt_tokens,
        num_steps_in_flight=len(scheduler.inflight),
        is_draining=not scheduler.is_accepting,
        block_size=scheduler.blocks.block_size,
        num_cached_gpu_blocks=gpu.num_cached,
        num_recomputes=scheduler.preemption.num_recomputes,
        num_prefix_queries=scheduler.planner.num_prefix_queries,
        num_prefix_hits=scheduler.planner.num_prefix_hits,
        steps=_step_stats(scheduler.steps),
        requests=_request_stats(scheduler.request_stats),
        copy_bytes_per_second=scheduler.cost.copy_bytes_per_s,
        prefill_tokens_per_second=scheduler.cost.prefill_tokens_per_s,
        num_cpu_prefix_hits=scheduler.planner.num_cpu_prefix_hits,
        num_cached_cpu_blocks=cpu.num_cached,
        num_failures=cluster.worker_records.num_failures_of(step_loop.worker_name),
        stages=_stage_use(scheduler.steps.stages.use()) if scheduler.steps.stages.ranks else None,
        store=_store_stats(scheduler.store, scheduler),
        peers=_peer_stats(scheduler.peer, scheduler),
        role=cluster.roles.of(step_loop),
        handovers=_handover_stats(scheduler.handovers),
    )


def _store_stats(store: StorePlanning | None, scheduler: Scheduler) -> stats_pb2.StoreStats | None:
    """Returns None of a worker without a store."""
    if store is None or (write_behind := store.write_behind) is None:
        return None
    counts = store.loading.counts
    return stats_pb2.StoreStats(
        kind=store.kind,
        num_requests_loading=len(scheduler.loading),
        num_queries=counts.num_queries,
        num_hits=counts.num_hits,
        num_fetched_bytes=counts.num_bytes,
        num_failed_loads=counts.num_failures,
        num_late_loads=counts.num_late,
        num_stored_bytes=write_behind.num_bytes,
        num_stored_blocks=write_behind.num_blocks,
        num_failed_stores=write_behind.num_failures,
        load_bytes_per_second=scheduler.cost.load_bytes_per_s,
    )


def _peer_stats(peer: TransferPeer | None, scheduler: Scheduler) -> stats_pb2.StoreStats | None:
    """Returns None of a worker that has nothing to do with others."""
    if peer is None:
        return None
    counts, num_lent_bytes = peer.reads.counts, peer.exports.num_bytes
    if not (peer.reads.has_peers or counts.num_queries or num_lent_bytes):
        return None
    return stats_pb2.StoreStats(
        kind="peer",
        num_requests_loading=peer.reads.num_fetches,
        num_stored_bytes=num_lent_bytes,
        num_queries=counts.num_queries,
        num_hits=counts.num_hits,
        num_fetched_bytes=counts.num_bytes,
        num_failed_loads=counts.num_failures,
        num_late_loads=counts.num_late,
        load_bytes_per_second=scheduler.cost.peer_bytes_per_s,
    )


def _handover_stats(handovers: WorkerHandovers | None) -> stats_pb2.HandoverStats | None:
    """Returns None of a worker that has nothing to do with others."""
    if handovers is None or not (handovers.peer.reads.has_peers or handovers.has_moved):
        return None
    return stats_pb2.HandoverStats(
        num_handed_over=handovers.num_handed_over,
        num_taken_over=handovers.num_taken_over,
        num_given_up=handovers.num_given_up,
        num_bytes=handovers.num_bytes,
        pause_ns=_histogram(handovers.pause_ns),
    )


def _step_stats(steps: StepStats) -> stats_pb2.StepStats:
    return stats_pb2.StepStats(
        tokens=_histogram(steps.tokens),
        duration_ns=_histogram(steps.duration_ns),
        num_prefill_tokens=steps.num_prefill_tokens,
        wait_ns=steps.wait_ns,
        swap_ns=steps.swap_ns,
        forward_ns=steps.forward_ns,
        sample_ns=steps.sample_ns,
        num_blocks_swapped_out=steps.section_counts["blocks_swapped_out"],
        num_blocks_swapped_in=steps.section_counts["blocks_swapped_in"],
        num_blocks_copied=steps.section_counts["blocks_copied"],
    )


def _request_stats(requests: RequestStats) -> stats_pb2.RequestStats:
    return stats_pb2.RequestStats(
        num_ended=requests.num_ended,
        queue_ns=_histogram(requests.queue_ns),
        time_to_first_token_ns=_histogram(requests.time_to_first_token_ns),
        time_per_output_token_ns=_histogram(requests.time_per_output_token_ns),
        duration_ns=_histogram(requests.duration_ns),
    )


def _histogram(values: Histogram) -> stats_pb2.Histogram:
    return stats_pb2.Histogram(bounds=values.bounds, counts=values.counts, sum=values.sum)


def nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))
