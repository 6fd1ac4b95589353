"""Encodes the scheduler's whole state at one moment, for bug reports and the end of a replay."""

from collections.abc import Iterable

from signalbox_contract import sampling_codec
from signalbox_contract.model import encode_model
from signalbox_contract.sections.block_moves import NO_MOVES, encode_block_moves
from signalbox_protos.scheduler.v1 import state_pb2 as pb
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.insight.explain import explain
from signalbox_scheduler.kv.block_allocator import BlockAllocator
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup, SequenceStatus
from signalbox_scheduler.service.reports import insight_codec
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_scheduler.workers.engine.step_loop import StepLoop


def state(
    cluster: Cluster, config: SchedulerConfig, *, now: float, include_token_ids: bool = False
) -> list[pb.DumpStateResponse]:
    """Returns the parts of the state, all of this moment."""
    parts = [pb.DumpStateResponse(cluster=_cluster(cluster, config, now))]
    schedulers: dict[SequenceGroup, Scheduler] = {}
    for step_loop in cluster.step_loops:
        parts.append(pb.DumpStateResponse(worker=_worker(step_loop, now)))
        scheduler = step_loop.scheduler
        groups = [*scheduler.running, *scheduler.swapped, *scheduler.loading]
        schedulers.update(dict.fromkeys(groups, scheduler))
    for group in cluster.requests.live_groups:
        request = _request(group, schedulers.get(group), cluster, now)
        if include_token_ids:
            request.prompt_token_ids.extend(group.request.prompt_token_ids)
            for sequence, seq in zip(request.sequences, group.sequences, strict=True):
                sequence.MergeFrom(pb.LiveSequence(output_token_ids=seq.output_token_ids))
        parts.append(pb.DumpStateResponse(request=request))
    return parts


def _cluster(cluster: Cluster, config: SchedulerConfig, now: float) -> pb.ClusterState:
    return pb.ClusterState(
        model=encode_model(cluster.model) if cluster.model else None,
        waiting_request_ids=_ids(cluster.admission),
        now_ns=insight_codec.nanoseconds(now),
        settings={name: str(value) for name, value in config.own_values().items()},
    )


def _worker(step_loop: StepLoop, now: float) -> pb.WorkerSchedulerState:
    scheduler = step_loop.scheduler
    return pb.WorkerSchedulerState(
        address=step_loop.worker_name,
        is_draining=not scheduler.is_accepting,
        max_num_seqs=scheduler.limits.max_num_seqs,
        max_num_batched_tokens=scheduler.token_budget,
        block_size=scheduler.blocks.block_size,
        running_request_ids=_ids(scheduler.running),
        swapped_request_ids=_ids(scheduler.swapped),
        gpu=_pool(scheduler.blocks.gpu),
        cpu=_pool(scheduler.blocks.cpu),
        inflight=[_step(plan, now) for plan in scheduler.in_flight],
        forget_seq_ids=scheduler.state.worker_state.forget_seq_ids,
        draining=[_sequence(seq, scheduler) for seq in scheduler.state.sequence_release.draining],
        decode_batch_seq_ids=[seq.seq_id for seq in scheduler.state.decode_batch.seqs],
        block_bytes=scheduler.cost.block_bytes,
        loading_request_ids=_ids(scheduler.loading),
        num_moving_owners=scheduler.blocks.cpu.num_holds(),
        samples=map(insight_codec.sample, scheduler.samples()),
    )


def _pool(pool: BlockAllocator) -> pb.BlockPool:
    return pb.BlockPool(
        num_blocks=pool.num_blocks,
        num_free=pool.num_free,
        cached_blocks=pool.cached_blocks,
        num_owners=pool.num_owners(),
    )


def _step(plan: StepPlan, now: float) -> pb.PlannedStep:
    return pb.PlannedStep(
        step_id=plan.step_id,
        age_ns=insight_codec.nanoseconds(now - plan.planned_at),
        seq_ids=plan.seq_ids,
        num_new_tokens=plan.num_new_tokens,
        num_samples=plan.num_samples,
        forget_seq_ids=plan.forget,
        block_moves=None if plan.block_moves is NO_MOVES else encode_block_moves(plan.block_moves),
        deferred_victim_request_ids=_ids(plan.deferred_victims),
        is_short_of_blocks=plan.is_short_of_blocks,
    )


def _request(
    group: SequenceGroup, scheduler: Scheduler | None, cluster: Cluster, now: float
) -> pb.LiveRequest:
    return pb.LiveRequest(
        explanation=insight_codec.explanation(explain(group, cluster.admission, now=now), cluster),
        deadline_in_ns=None if group.deadline is None else int((group.deadline - now) * 1e9),
        sampling_params=sampling_codec.encode(group.params),
        is_in_decode_batch=group.is_in_decode_batch,
        num_lost_workers=group.num_lost_workers,
        sequences=[_sequence(seq, scheduler) for seq in group.sequences],
    )


def _sequence(seq: Sequence, scheduler: Scheduler | None) -> pb.LiveSequence:
    counters = scheduler.counters(seq) if scheduler else seq.counters
    is_swapped = seq.status is SequenceStatus.SWAPPED
    return pb.LiveSequence(
        seq_id=seq.seq_id,
        branch=seq.branch,
        status=seq.status.name,
        num_tokens=seq.num_tokens,
        num_computed_tokens=counters.num_computed_tokens,
        num_inflight_tokens=counters.num_inflight_tokens,
        num_inflight_samples=counters.num_inflight_samples,
        block_table=scheduler.blocks.blocks_in(seq.block_table, is_swapped=is_swapped)
        if scheduler
        else [],
        num_sent_blocks=seq.num_sent_blocks,
        num_cached_blocks=seq.num_cached_blocks,
        is_on_worker=seq.is_on_worker,
        finish_reason=seq.finish_reason.name if seq.finish_reason else "",
    )


def _ids(groups: Iterable[SequenceGroup]) -> list[str]:
    return [group.request_id for group in groups]
