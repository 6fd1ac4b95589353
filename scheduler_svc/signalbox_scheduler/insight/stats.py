"""Statistics of steps and requests, as sums that only grow: two readings give a rate."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from signalbox_contract.errors import Code
from signalbox_contract.step_result import StepResult
from signalbox_rpc.metrics.histogram import Histogram, S, times, token_counts
from signalbox_rpc.metrics.sample import Sample, counter, counters, durations, histogram
from signalbox_rpc.telemetry.trace_ids import of_traceparent
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup
from signalbox_scheduler.requests.stage_use import StageAccount

PREEMPTION_BOUNDS = (0, 1, 2, 3, 5, 10, 20)


@dataclass(slots=True)
class StepStats:
    """Statistics of the steps of one worker whose results were received."""

    tokens: Histogram = field(default_factory=token_counts)
    duration_ns: Histogram = field(default_factory=times)
    inter_token_ns: Histogram = field(default_factory=times)
    """Times between two tokens of a sequence: the duration of a step, or of a preemption."""
    num_prefill_tokens: int = 0
    wait_ns: int = 0
    swap_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    stages: StageAccount = field(default_factory=StageAccount)
    section_counts: Counter[str] = field(default_factory=Counter)
    """Sums of `StepPlan.section_counts`."""

    def samples(self) -> Iterator[Sample]:
        yield histogram("iteration_tokens_total", "Tokens of a step.", self.tokens)
        yield counter(
            "prefill_tokens", "Tokens of steps, without those of decodes.", self.num_prefill_tokens
        )
        yield durations(
            "step_duration_seconds",
            "From the answer before, or from planning if nothing ran, to the answer.",
            self.duration_ns,
        )
        yield durations(
            "inter_token_latency_seconds",
            "Between two tokens of a sequence: the step, or the preemption between them.",
            self.inter_token_ns,
        )
        phases = ("wait", "swap", "forward", "sample")
        yield from counters(
            "step_phase_seconds",
            "Where the time of a worker's steps went.",
            {phase: getattr(self, f"{phase}_ns") / S for phase in phases},
            by="phase",
        )
        moved = self.section_counts
        yield from counters(
            "blocks_moved",
            "KV-cache blocks that steps moved.",
            {
                "out": moved["blocks_swapped_out"],
                "in": moved["blocks_swapped_in"],
                "copy": moved["blocks_copied"],
            },
            by="direction",
        )

    def observe(self, plan: StepPlan, result: StepResult, *, seconds: float) -> None:
        """Takes a step that was answered, and its duration."""
        num_tokens, num_decodes = plan.total_tokens, plan.num_decodes
        duration_ns = int(seconds * S)
        self.tokens.observe(num_tokens)
        self.num_prefill_tokens += num_tokens - num_decodes
        self.duration_ns.observe(duration_ns)
        if num_decodes:
            self.inter_token_ns.observe(duration_ns, times=num_decodes)
        timings = result.timings
        self.wait_ns += timings.wait_ns
        self.swap_ns += timings.swap_ns
        self.forward_ns += timings.forward_ns
        self.sample_ns += timings.sample_ns
        self.stages.add(timings.stages, in_flight_ns=duration_ns)
        for name, number in plan.section_counts.items():
            if number:
                self.section_counts[name] += number

    def observe_preemptions(self, group: SequenceGroup, now: float) -> None:
        """Takes the gaps that preemptions left between the tokens of a request that has ended."""
        if group.num_preemptions and group.times.first_token is not None:
            gap_s = group.times.total_preempted(now) / group.num_preemptions
            trace_id = of_traceparent(group.request.traceparent)
            self.inter_token_ns.observe(
                int(gap_s * S), times=group.num_preemptions, trace_id=trace_id
            )


@dataclass(slots=True)
class RequestStats:
    """Statistics of requests that have ended."""

    num_ended: Counter[str] = field(default_factory=Counter)
    """Number by finish reason of the first sequence, or by status code."""
    num_corrupted: int = 0
    """Requests of which a worker failed to compute a sequence."""
    queue_ns: Histogram = field(default_factory=times)
    prefill_ns: Histogram = field(default_factory=times)
    """Nanoseconds from the first step to the first token, or to the vector."""
    decode_ns: Histogram = field(default_factory=times)
    """Nanoseconds from the first token to the last, preemptions included."""
    inference_ns: Histogram = field(default_factory=times)
    """Nanoseconds from the first step to the last token, preemptions included."""
    preemptions: Histogram = field(default_factory=lambda: Histogram(PREEMPTION_BOUNDS))
    """Number of preemptions of each request that was scheduled."""
    time_to_first_token_ns: Histogram = field(default_factory=times)
    time_per_output_token_ns: Histogram = field(default_factory=times)

    def samples(self) -> Iterator[Sample]:
        for name, meaning, values_ns in (
            ("queue", "From arrival to the first step.", self.queue_ns),
            ("prefill", "From the first step to the first token or the vector.", self.prefill_ns),
            ("decode", "From the first token to the last.", self.decode_ns),
            ("inference", "From the first step to the last token.", self.inference_ns),
        ):
            yield durations(f"request_{name}_time_seconds", meaning, values_ns)
        yield histogram(
            "request_num_preemptions", "Times that a request had to yield.", self.preemptions
        )
        yield counter(
            "corrupted_requests",
            "Requests of which a worker failed to compute a sequence.",
            self.num_corrupted,
        )

    def observe(self, group: SequenceGroup) -> None:
        """Takes a request that has just ended."""
        at, trace_id = group.times, of_traceparent(group.request.traceparent)
        self.num_ended[_how_it_ended(group)] += 1
        self.num_corrupted += any(_is_corrupted(seq) for seq in group.sequences)
        if at.first_scheduled is not None:
            self.queue_ns.observe(_ns(at.first_scheduled - at.arrival), trace_id=trace_id)
            self.preemptions.observe(group.num_preemptions, trace_id=trace_id)
        if at.first_token is not None:
            self._observe_tokens(group, at.first_token, trace_id)
        elif group.pools and group.failure is None:
            self._observe_vector(group, trace_id)

    def _observe_vector(self, group: SequenceGroup, trace_id: str) -> None:
        at = group.times
        if at.first_scheduled is not None and at.last_token is not None:
            took_ns = _ns(at.last_token - at.first_scheduled)
            self.prefill_ns.observe(took_ns, trace_id=trace_id)
            self.inference_ns.observe(took_ns, trace_id=trace_id)

    def _observe_tokens(self, group: SequenceGroup, first_token: float, trace_id: str) -> None:
        at = group.times
        self.time_to_first_token_ns.observe(_ns(first_token - at.arrival), trace_id=trace_id)
        if at.first_scheduled is not None:
            self.prefill_ns.observe(_ns(first_token - at.first_scheduled), trace_id=trace_id)
            last_token = first_token if at.last_token is None else at.last_token
            self.inference_ns.observe(_ns(last_token - at.first_scheduled), trace_id=trace_id)
        num_steps = max(len(seq.output_token_ids) for seq in group.sequences) - 1
        if at.last_token is not None and num_steps > 0:
            decode_ns = _ns(at.last_token - first_token)
            self.decode_ns.observe(decode_ns, trace_id=trace_id)
            self.time_per_output_token_ns.observe(decode_ns // num_steps, trace_id=trace_id)


def _ns(seconds: float) -> int:
    return int(seconds * S)


def _is_corrupted(seq: Sequence) -> bool:
    return seq.failure is not None and seq.failure.code is Code.INTERNAL


def _how_it_ended(group: SequenceGroup) -> str:
    if group.failure is not None:
        return group.failure.code.name
    reason = group.sequences[0].finish_reason
    return reason.name if reason is not None else "UNKNOWN"
