"""What is counted of steps and of requests: sums that only grow, so that two looks give rates."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from scheduler_svc.plan import StepPlan, StepTimings
from scheduler_svc.sequence import SequenceGroup

MS, S = 1_000_000, 1_000_000_000
TIME_BOUNDS_NS = tuple(
    unit * factor
    for unit in (MS, 10 * MS, 100 * MS, S, 10 * S, 100 * S)
    for factor in (1, 2, 3, 5, 7)
)
"""From a millisecond to minutes, five for each factor of ten."""
TOKEN_BOUNDS = tuple(1 << exponent for exponent in range(15))


@dataclass(slots=True)
class Histogram:
    """How often values up to each bound were seen, and how often greater ones than the last."""

    bounds: tuple[int, ...]
    counts: list[int] = field(init=False)
    sum: int = 0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def _times() -> Histogram:
    return Histogram(TIME_BOUNDS_NS)


@dataclass(slots=True)
class StepStats:
    """Of the steps that one worker has answered."""

    tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS))
    duration_ns: Histogram = field(default_factory=_times)
    num_prefill_tokens: int = 0
    wait_ns: int = 0
    swap_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    num_blocks_swapped_out: int = 0
    num_blocks_swapped_in: int = 0
    num_blocks_copied: int = 0
    _last_answer_at: float = 0.0

    def observe(self, plan: StepPlan, timings: StepTimings, now: float) -> None:
        """Takes a step that was answered; it began when the one before it was."""
        num_tokens = plan.total_tokens
        self.tokens.observe(num_tokens)
        self.num_prefill_tokens += num_tokens - plan.num_new_tokens.count(1)
        self.duration_ns.observe(int((now - max(plan.planned_at, self._last_answer_at)) * S))
        self._last_answer_at = now
        self.wait_ns += timings.wait_ns
        self.swap_ns += timings.swap_ns
        self.forward_ns += timings.forward_ns
        self.sample_ns += timings.sample_ns
        self.num_blocks_swapped_out += len(plan.swap_out)
        self.num_blocks_swapped_in += len(plan.swap_in)
        self.num_blocks_copied += len(plan.copy)


@dataclass(slots=True)
class RequestStats:
    """Of requests that have ended."""

    num_ended: Counter[str] = field(default_factory=Counter)
    """By finish reason of the first sequence, or by status code."""
    queue_ns: Histogram = field(default_factory=_times)
    time_to_first_token_ns: Histogram = field(default_factory=_times)
    time_per_output_token_ns: Histogram = field(default_factory=_times)
    duration_ns: Histogram = field(default_factory=_times)

    def observe(self, group: SequenceGroup, now: float) -> None:
        """Takes a request that has just ended."""
        times = group.times
        self.num_ended[_how_it_ended(group)] += 1
        if times.first_scheduled is not None:
            self.queue_ns.observe(int((times.first_scheduled - times.arrival) * S))
        if times.first_token is not None:
            self.time_to_first_token_ns.observe(int((times.first_token - times.arrival) * S))
            num_steps = max(len(seq.output_token_ids) for seq in group.sequences) - 1
            if times.last_token is not None and num_steps > 0:
                decode_s = times.last_token - times.first_token
                self.time_per_output_token_ns.observe(int(decode_s / num_steps * S))
        if group.failure is None:
            self.duration_ns.observe(int((now - times.arrival) * S))


def _how_it_ended(group: SequenceGroup) -> str:
    if group.failure is not None:
        return group.failure.code.name
    reason = group.sequences[0].finish_reason
    return reason.name if reason is not None else "UNKNOWN"
