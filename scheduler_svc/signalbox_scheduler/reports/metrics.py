"""Metrics of the scheduler for Prometheus: gauges of this moment, counts of its steps and requests.

Names are those of vLLM's engine where it has them. A worker's series end when it leaves.
"""

import time
from collections.abc import Iterable

from signalbox_contract.errors import Code
from signalbox_contract.model import ModelInfo
from signalbox_rpc.metrics.histogram import Histogram
from signalbox_rpc.metrics.registry import PER_NS, Families
from signalbox_scheduler.cluster import Cluster
from signalbox_scheduler.insight.stats import RequestStats
from signalbox_scheduler.kv_moves.fetch_counts import FetchCounts
from signalbox_scheduler.kv_moves.store_planning import StorePlanning
from signalbox_scheduler.kv_moves.worker_handovers import WorkerHandovers
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.scheduler import Scheduler
from signalbox_scheduler.workers.step_loop import StepLoop


def read(cluster: Cluster, families: Families) -> None:
    """Adds the cluster as it is now."""
    model = cluster.model.name if cluster.model is not None else ""
    _add_queue(cluster, families, model)
    if cluster.model is not None and cluster.model.adapters:
        _add_adapters(cluster, cluster.model, families)
    _add_requests(cluster.requests.stats, families, model)
    for step_loop in cluster.step_loops:
        of_worker = {"model_name": model, "worker": step_loop.worker_name}
        _add_gauges(step_loop, families, of_worker)
        _add_counters(step_loop, families, of_worker)
        _add_steps(step_loop, families, of_worker)
        scheduler = step_loop.scheduler
        if scheduler.store is not None:
            _add_store(scheduler.store, scheduler, families, of_worker)
        if scheduler.handovers is not None:
            _add_handovers(scheduler.handovers, families, of_worker)


def _add_queue(cluster: Cluster, families: Families, model: str) -> None:
    families.gauge(
        "num_requests_waiting",
        "Requests in the admission queue.",
        len(cluster.admission),
        model_name=model,
    )
    for reason, number in (
        ("capacity", len(cluster.admission) - cluster.requests.num_stranded),
        ("deferred", cluster.requests.num_stranded),
    ):
        families.gauge(
            "num_requests_waiting_by_reason",
            "Requests in the admission queue: for room, or for a worker that takes them.",
            number,
            model_name=model,
            reason=reason,
        )
    num_draining = sum(not step_loop.scheduler.is_accepting for step_loop in cluster.step_loops)
    for state, number in (
        ("serving", len(cluster.step_loops) - num_draining),
        ("draining", num_draining),
        ("quarantined", sum(1 for _ in cluster.worker_records.quarantined())),
    ):
        families.gauge("workers", "Workers that hold a lease, or may not.", number, state=state)
    families.counter(
        "worker_failures",
        "Losses of workers that no request caused by itself.",
        cluster.worker_records.num_failures,
        model_name=model,
    )
    # A series that begins with a first refusal would hide it: there is no increase to alert on.
    refused = {Code.RESOURCE_EXHAUSTED.name: 0, **cluster.requests.num_refused}
    for code, number in refused.items():
        families.counter(
            "admission_rejections",
            "Requests that were refused on arrival, by status code.",
            number,
            model_name=model,
            reason=code.lower(),
        )


def _add_adapters(cluster: Cluster, model: ModelInfo, families: Families) -> None:
    loops = cluster.step_loops
    most = [loop.scheduler.limits.max_adapters or len(model.adapters) for loop in loops]
    running = (group for loop in loops for group in loop.scheduler.running + loop.scheduler.swapped)
    families.gauge(
        "lora_requests_info",
        "LoRA adapters of requests that wait and that run; the value is the time, in seconds.",
        time.time(),
        model_name=model.name,
        max_lora=str(min(most, default=0)),
        waiting_lora_adapters=_names(cluster.admission, model),
        running_lora_adapters=_names(running, model),
    )


def _names(groups: Iterable[SequenceGroup], model: ModelInfo) -> str:
    contents = {group.request.adapter for group in groups}
    return ",".join(sorted({one.name for one in model.adapters if one.sha256 in contents}))


def _add_requests(requests: RequestStats, families: Families, model: str) -> None:
    def times(name: str, meaning: str, values: Histogram) -> None:
        families.histogram(name, meaning, values, scale=PER_NS, model_name=model)

    times("request_queue_time_seconds", "From arrival to the first step.", requests.queue_ns)
    times(
        "request_prefill_time_seconds", "From the first step to the first token or the vector.",
        requests.prefill_ns,
    )  # fmt: skip
    times("request_decode_time_seconds", "From the first token to the last.", requests.decode_ns)
    times(
        "request_inference_time_seconds", "From the first step to the last token.",
        requests.inference_ns,
    )  # fmt: skip
    families.histogram(
        "request_num_preemptions",
        "Times that a request had to yield.",
        requests.preemptions,
        model_name=model,
    )
    families.counter(
        "corrupted_requests",
        "Requests of which a worker failed to compute a sequence.",
        requests.num_corrupted,
        model_name=model,
    )


def _add_gauges(step_loop: StepLoop, families: Families, of_worker: dict[str, str]) -> None:
    scheduler = step_loop.scheduler
    gpu, cpu = scheduler.blocks.gpu, scheduler.blocks.cpu
    arithmetic = scheduler.planner.arithmetic_changes.arithmetic
    num_tokens = gpu.num_blocks * scheduler.blocks.block_size
    families.gauge(
        "cache_config_info",
        "How a worker's KV cache is set up; always 1.",
        1,
        **of_worker,
        block_size=str(scheduler.blocks.block_size),
        num_gpu_blocks=str(gpu.num_blocks),
        num_cpu_blocks=str(cpu.num_blocks),
        kv_cache_size_tokens=str(num_tokens),
        kv_cache_max_concurrency=f"{num_tokens / scheduler.blocks.sizes.max_model_len:.4g}",
        enable_prefix_caching=str(scheduler.blocks.prefix_caching),
        cache_dtype=arithmetic.kv_cache_dtype if arithmetic else "",
    )
    for name, meaning, value in (
        ("num_requests_running", "Requests in a worker's batch.", len(scheduler.running)),
        ("num_requests_swapped", "Requests in CPU swap.", len(scheduler.swapped)),
        (
            "kv_cache_usage_perc",
            "Share of the KV-cache blocks that requests hold, 1 is all.",
            gpu.share_in_use,
        ),
        (
            "cpu_cache_usage_perc",
            "Share of the swap blocks that requests hold, 1 is all.",
            cpu.share_in_use,
        ),
        ("num_gpu_blocks", "KV-cache blocks.", gpu.num_blocks),
        ("num_cpu_blocks", "Swap blocks.", cpu.num_blocks),
    ):
        families.gauge(name, meaning, value, **of_worker)


def _add_counters(step_loop: StepLoop, families: Families, of_worker: dict[str, str]) -> None:
    scheduler = step_loop.scheduler
    planner, preemption = scheduler.planner, scheduler.preemption
    processor = scheduler.output_processor
    for name, meaning, number in (
        (
            "prompt_tokens",
            "Prompt tokens of requests with a first token.",
            processor.num_prompt_tokens,
        ),
        ("generation_tokens", "Tokens that were drawn.", processor.num_generated_tokens),
        ("num_preemptions", "Times that a request had to yield.", preemption.num_preemptions),
        ("num_recomputes", "Preemptions that were not swaps.", preemption.num_recomputes),
        (
            "num_arithmetic_changes",
            "Requests that go on here with tokens of a worker with another arithmetic.",
            planner.arithmetic_changes.num_requests,
        ),
        ("prefix_cache_queries", "Prompt tokens that were looked for.", planner.num_prefix_queries),
        ("prefix_cache_hits", "Prompt tokens that were found.", planner.num_prefix_hits),
        ("cpu_prefix_cache_hits", "Of those, found in CPU memory.", planner.num_cpu_prefix_hits),
        (
            "mask_turns_missed",
            "Steps that requests sat out because the masks of their structured outputs are dear.",
            planner.mask_turns.num_sat_out,
        ),
        (
            "mask_seconds",
            "CPU time that steps waited for masks of structured outputs.",
            planner.mask_turns.mask_ns / 1e9,
        ),
    ):
        families.counter(name, meaning, number, **of_worker)


def _add_store(
    store: StorePlanning, scheduler: Scheduler, families: Families, of_worker: dict[str, str]
) -> None:
    write_behind, peer = store.write_behind, store.peer
    families.gauge(
        "num_requests_loading",
        "Requests whose prefix comes from a worker's store of KV blocks, or from another worker, or"
        " is looked for.",
        len(scheduler.loading),
        **of_worker,
        tier=store.kind,
    )
    if write_behind is not None:
        _add_tier(
            store.loading.counts,
            (write_behind.num_bytes, write_behind.num_failures),
            families,
            {**of_worker, "tier": store.kind},
        )
    if peer is not None:
        of_tier = {**of_worker, "tier": "peer"}
        _add_tier(peer.reads.counts, (peer.exports.num_bytes, 0), families, of_tier)


def _add_handovers(
    handovers: WorkerHandovers, families: Families, of_worker: dict[str, str]
) -> None:
    for result, number in (
        ("handed_over", handovers.num_handed_over),
        ("taken_over", handovers.num_taken_over),
        ("given_up", handovers.num_given_up),
    ):
        families.counter(
            "handovers",
            "Running requests that a worker handed over to another, took over, or kept after all.",
            number,
            **of_worker,
            result=result,
        )
    families.counter(
        "handover_bytes", "Bytes of KV that a worker took over with requests.",
        handovers.num_bytes, **of_worker,
    )  # fmt: skip
    families.histogram(
        "handover_pause_seconds",
        "From the pause of a request at the other worker to its first step at this one.",
        handovers.pause_ns,
        scale=PER_NS,
        **of_worker,
    )


def _add_tier(
    counts: FetchCounts, out: tuple[int, int], families: Families, of_tier: dict[str, str]
) -> None:
    """`out` is the number of bytes that went there, and of failures."""
    for name, meaning, number in (
        ("kv_store_queries", "Prompt tokens that were looked up in the tier.", counts.num_queries),
        ("kv_store_hits", "Prompt tokens that were fetched from the tier.", counts.num_hits),
        ("kv_store_late_loads", "Lookups and fetches that took too long.", counts.num_late),
    ):
        families.counter(name, meaning, number, **of_tier)
    for direction, num_bytes, num_failures in (
        ("in", counts.num_bytes, counts.num_failures),
        ("out", *out),
    ):
        families.counter(
            "kv_store_bytes", "Bytes that came from the tier, and went there.", num_bytes,
            **of_tier, direction=direction,
        )  # fmt: skip
        families.counter(
            "kv_store_failures", "Moves from the tier, and to it, that failed.", num_failures,
            **of_tier, direction=direction,
        )  # fmt: skip


def _add_steps(step_loop: StepLoop, families: Families, of_worker: dict[str, str]) -> None:
    steps = step_loop.scheduler.steps
    families.histogram(
        "iteration_tokens_total", "Tokens of a step.", steps.tokens, scale=1, **of_worker
    )
    families.histogram(
        "step_duration_seconds",
        "From the answer before, or from planning if nothing ran, to the answer.",
        steps.duration_ns,
        scale=PER_NS,
        **of_worker,
    )
    families.histogram(
        "inter_token_latency_seconds",
        "Between two tokens of a sequence: the step, or the preemption between them.",
        steps.inter_token_ns,
        scale=PER_NS,
        **of_worker,
    )
    for direction, number in (
        ("out", steps.section_counts["blocks_swapped_out"]),
        ("in", steps.section_counts["blocks_swapped_in"]),
        ("copy", steps.section_counts["blocks_copied"]),
    ):
        families.counter(
            "blocks_moved", "KV-cache blocks that steps moved.", number,
            **of_worker, direction=direction,
        )  # fmt: skip
