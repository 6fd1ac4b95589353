"""Counts a worker's executed steps, once for each."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from signalbox_contract.step_result import Stages, StepResult, sum_stages
from signalbox_rpc.metrics.histogram import Histogram, times
from signalbox_rpc.metrics.sample import PER_NS, Sample, counter, counters, durations


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
    """Sums by pipeline stage; empty for a worker without them."""
    num_sampled_tokens: int = 0
    num_failures: int = 0
    """Sequences that could not be computed."""

    @property
    def num_steps(self) -> int:
        return sum(self.duration_ns.counts)

    def samples(self) -> Iterator[Sample]:
        yield durations(
            "worker_step_duration_seconds",
            "What a step took, without its wait for the one before.",
            self.duration_ns,
        )
        phases = ("wait", "swap", "forward", "sample")
        yield from counters(
            "worker_step_phase_seconds",
            "Where the time of steps went.",
            {phase: getattr(self, f"{phase}_ns") * PER_NS for phase in phases},
            by="phase",
        )
        yield counter("worker_sampled_tokens", "Tokens that were drawn.", self.num_sampled_tokens)
        yield counter(
            "worker_failed_sequences", "Sequences that could not be computed.", self.num_failures
        )

    def observe(self, result: StepResult) -> None:
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
