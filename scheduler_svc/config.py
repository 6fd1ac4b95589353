"""Configuration of the scheduler service: frozen, checked when it is made."""

import math
from dataclasses import dataclass, field
from enum import Enum

from rpc.metrics.registry import NO_METRICS, MetricsConfig
from rpc.transport.tls import CLEAR, TlsConfig

POLICIES = ("fcfs", "priority", "shortest-prompt", "fair")


class PreemptionMode(Enum):
    """What happens to the blocks of a group that must yield."""

    AUTO = "auto"
    """Whichever costs less by the worker's measured rates."""
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Bounds of one step: sequences in it, and tokens computed by it."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    prefill_spread: int = 1
    """Steps that prompts are spread over while others decode."""

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {self.max_num_seqs}; it must be at least 1")
        if self.max_num_batched_tokens < 1:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least 1"
            )
        if self.prefill_spread < 1:
            raise ValueError(f"prefill_spread is {self.prefill_spread}; it must be at least 1")

    def within(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> "StepLimits":
        """Returns these limits, tightened to what a worker announces."""
        return StepLimits(
            max_num_seqs=min(self.max_num_seqs, max_num_seqs),
            max_num_batched_tokens=min(self.max_num_batched_tokens, max_num_batched_tokens),
            prefill_spread=self.prefill_spread,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """One worker's pools, in blocks of `block_size` tokens."""

    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int = 0
    watermark: float = 0.01
    """Share of the GPU blocks that admission leaves free."""
    max_model_len: int
    prefix_caching: bool = True
    cpu_prefix_cache: bool = True

    @property
    def num_watermark_blocks(self) -> int:
        return int(self.watermark * self.num_gpu_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Which scheduling policy, and the numbers of those that come with us; see policies.py."""

    name: str = "fcfs"
    """fcfs, priority, shortest-prompt, fair, or package.module:Class."""
    ageing_s: float = 60.0
    """Waiting that makes up for one step of priority, or for 1,000 tokens of prompt."""
    input_weight: float = 1.0
    """What a prompt token counts for under fair; an output token `output_weight`."""
    output_weight: float = 2.0

    def __post_init__(self) -> None:
        if self.name not in POLICIES and not all(self.name.partition(":")):
            allowed = ", ".join(POLICIES)
            raise ValueError(
                f"scheduling_policy is {self.name!r}; it is {allowed} or package.module:Class"
            )
        if not 0 < self.ageing_s < math.inf:
            raise ValueError(f"ageing_s is {self.ageing_s}; it must be positive and finite")
        for name in ("input_weight", "output_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"fair_{name} is {getattr(self, name)}; it must be at least 0")
        if not self.input_weight + self.output_weight:
            raise ValueError("fair_input_weight and fair_output_weight are both 0; raise one")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionBounds:
    """What may wait or live; None is unbounded. A request beyond a bound is refused at once."""

    max_queued_requests: int = 4096
    max_queued_tokens: int | None = None
    """Prompt tokens that wait, unless nothing else does."""
    max_tenant_requests: int | None = None
    """Live requests of one tenant."""

    def __post_init__(self) -> None:
        for name in ("max_queued_requests", "max_queued_tokens", "max_tenant_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Everything that `signalbox scheduler` takes."""

    host: str = "127.0.0.1"
    port: int = 50052
    limits: StepLimits = field(default_factory=StepLimits)
    """Tightened by what each worker announces."""
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    watermark: float = 0.01
    prefix_caching: bool = True
    """Whether requests share the K and V of prefixes that they have in common."""
    cpu_prefix_cache: bool = True
    """Whether prefixes that the GPU has no room for are kept in swap space."""
    num_gpu_blocks_override: int | None = None
    """Use so many of each worker's GPU blocks instead of all."""
    num_cpu_blocks_override: int | None = None
    max_steps_in_flight: int = 2
    bounds: AdmissionBounds = field(default_factory=AdmissionBounds)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    explain_history: int = 1024
    """Requests that can still be explained after they have ended."""
    heartbeat_interval_s: float = 0.5
    lease_s: float = 2.5
    """A worker that is silent for so long is lost."""
    worker_wait_s: float = 30.0
    """How long accepted requests wait when no worker takes them."""
    worker_quarantine_s: float = 60.0
    """Longest pause of a worker that is lost again and again; 0 lets it join at once."""
    step_timeout_s: float = 10.0
    """Least time that a step is given; longer if its size predicts more."""
    router_buffer_messages: int = 1024
    """Step messages that may wait for a router; past it the router loses its stream."""
    record: str | None = None
    """File that all decisions and what they depend on are written to, token ids included."""
    drain_timeout_s: float = 30.0
    metrics: MetricsConfig = NO_METRICS
    log_stats_interval_s: float = 0.0
    """Between two lines of the log on what each worker does; 0 writes none."""
    reflection: bool = True
    tls: TlsConfig = CLEAR
    """Of the port, and of the channels to workers."""

    def __post_init__(self) -> None:
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark is {self.watermark}; it must be in [0, 1)")
        if self.max_steps_in_flight not in (1, 2):
            raise ValueError(f"max_steps_in_flight is {self.max_steps_in_flight}; it is 1 or 2")
        if self.num_gpu_blocks_override is not None and self.num_gpu_blocks_override < 1:
            raise ValueError("num_gpu_blocks_override must be at least 1")
        if not 0 <= self.worker_wait_s < math.inf:
            raise ValueError(f"worker_wait is {self.worker_wait_s}; it must be at least 0")
        if not 0 <= self.worker_quarantine_s < math.inf:
            raise ValueError(
                f"worker_quarantine is {self.worker_quarantine_s}; it must be at least 0"
            )
        if self.lease_s < 2 * self.heartbeat_interval_s:
            raise ValueError("lease_s must be at least twice heartbeat_interval_s")
