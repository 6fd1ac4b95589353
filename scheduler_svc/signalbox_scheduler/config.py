"""Settings of the scheduler, and the limits that follow from them for one worker."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.model import Numerics, StoreCapacity, WorkerCapacity, WorkerRank
from signalbox_rpc.settings.addresses import Port
from signalbox_rpc.settings.service_settings import (
    FilePath,
    HostSettings,
    InnerSettings,
    LimitSettings,
    SettingsGroup,
)
from signalbox_rpc.transport.tls import is_loopback


class PolicyName(StrEnum):
    """The policies of signalbox_scheduler/queue/policies.py."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    SHORTEST_PROMPT = "shortest-prompt"
    FAIR = "fair"


class PreemptionMode(StrEnum):
    """Fate of the blocks of a group that must yield."""

    AUTO = "auto"
    """Whichever costs less by the worker's measured rates."""
    SWAP = "swap"
    RECOMPUTE = "recompute"


class Disaggregation(StrEnum):
    """Roles of the workers, to compute prompts or to decode; see workers/roles.py."""

    OFF = "off"
    """All workers do both."""
    STATIC = "static"
    """Each worker has the role that it asks for."""


def _disaggregation(value: Any) -> Any:
    if value is False:  # what YAML reads as `off`
        return Disaggregation.OFF
    if value == "auto":
        raise ValueError(
            "roles no longer follow the load; give workers theirs, --role prefill and --role decode"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Limits of one worker's steps."""

    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_spread_steps: int = 1
    """Steps that prompts are spread over while others decode."""
    max_in_flight: int = 2
    """Most steps in flight; 2 keep the worker busy while the next step is planned."""
    num_stages: int = 1
    """Pipeline stages of the worker."""
    max_adapters: int | None = None
    """LoRA adapters of a step; None is all."""
    cuts_prompts: bool = True
    """False if each prompt is computed whole, because attention sees both ways; one that exceeds
    max_num_batched_tokens has a step of its own, up to the model's window."""
    max_draft_tokens: int = 0
    """Most drafts of a sequence in a step; 0 if none are computed."""


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
    groups: tuple[CacheGroup, ...] = (FULL_GROUP,)
    """Groups of layers, each of which has a block for the same tokens of a sequence."""

    @property
    def has_cpu_cache(self) -> bool:
        """True if cached blocks may be in the CPU pool, and go on from there."""
        return self.prefix_caching and self.cpu_prefix_cache and self.num_cpu_blocks > 0

    @property
    def num_watermark_blocks(self) -> int:
        return int(self.watermark * self.num_gpu_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """Address and names of a worker, as other workers need them to read its blocks."""

    address: str = ""
    certified_name: str = ""
    """Name in its certificate; empty if the scheduler is shown none."""
    epoch: int = 0
    """Epoch of its lease."""
    kv_format: str = ""
    """Equal of workers that can read each other's blocks; empty if no other worker can."""

    def has_format_of(self, other: "PeerIdentity") -> bool:
        """Says whether another worker's blocks have the same bytes as those of this one."""
        return bool(self.kv_format) and self.kv_format == other.kv_format


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Properties of a worker that its scheduler is told when the worker joins."""

    limits: StepLimits
    cache: CacheShape
    identity: PeerIdentity = PeerIdentity()
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    eos_token_ids: frozenset[int] = frozenset()
    numerics: Numerics | None = None
    grammar_bytes: int = 0
    """Bytes that the compiled structured outputs may take together."""
    ranks: tuple[WorkerRank, ...] = ()
    store: StoreCapacity | None = None
    """Store to which blocks go from the CPU pool; None if there is none."""
    arithmetic: str = ""
    """Equal of workers that compute the same bits; empty if they depend on the batch."""


class PolicySettings(SettingsGroup):
    """The scheduling policy and its numbers; see signalbox_scheduler/queue/policies.py."""

    GROUP: ClassVar[str] = "scheduling"

    scheduling_policy: str = Field(
        PolicyName.FCFS,
        pattern=rf"^({'|'.join(PolicyName)}|[\w.]+:\w+)$",
        description=f"which request comes first: {', '.join(PolicyName)} (equal service to"
        " tenants), or your own class as package.module:Class",
    )
    priority_aging_s: float = Field(
        60.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds of waiting that make up for one step of priority, or for 1,000 tokens"
        " of prompt under shortest-prompt",
    )


class AdmissionBounds(SettingsGroup):
    """Bounds of what waits or lives. A request beyond one is refused at once."""

    GROUP: ClassVar[str] = "scheduling"

    max_queued_requests: int = Field(
        4096, gt=0, description="requests that may wait; more are refused"
    )
    max_queued_tokens: int | None = Field(
        None,
        gt=0,
        description="tokens of prompts and predictions that may wait; more are refused, unless no"
        " other request waits (default: unbounded)",
    )
    max_tenant_requests: int | None = Field(
        None,
        gt=0,
        description="requests of one tenant that may wait or run; more are refused (default:"
        " unbounded)",
    )


class SchedulingSettings(LimitSettings, PolicySettings, AdmissionBounds):
    """Settings of the scheduler that all commands with one have."""

    GROUP: ClassVar[str] = "scheduling"

    prefill_spread_steps: int = Field(
        16,
        ge=1,
        description="steps that prompts are spread over while others decode, so that a burst of"
        " them delays no request for long; a chunk is at least an eighth of max-num-batched-tokens,"
        " a quarter where 16 or more decode, and 1 computes prompts as fast as steps may",
    )
    preemption_mode: PreemptionMode = Field(
        PreemptionMode.AUTO,
        description="what happens to the blocks of a group that must yield; auto takes what costs"
        " less by the worker's measured rates",
    )
    watermark: float = Field(
        0.01, ge=0, lt=1, description="share of the blocks that admission leaves free"
    )
    prefix_caching: bool = Field(
        True, description="share the KV cache of common prefixes between requests"
    )
    cpu_prefix_cache: bool = Field(
        True, description="keep prefixes that no longer fit in swap space, if that pays"
    )
    num_gpu_blocks_override: int | None = Field(
        None, gt=0, description="use so many of each worker's KV-cache blocks (default: all)"
    )
    max_steps_in_flight: int | None = Field(
        None,
        ge=1,
        description="most steps of a worker that are planned and not answered; 1 plans none while"
        " one runs (default: 2, and one more than the stages of a pipeline-parallel worker)",
    )
    disaggregation: Annotated[Disaggregation, BeforeValidator(_disaggregation)] = Field(
        Disaggregation.STATIC,
        description="with static each worker has the role of its --role, to compute prompts or to"
        " decode; with off all do both",
    )
    max_loras: int | None = Field(
        None,
        gt=0,
        description="most LoRA adapters of one step; requests of more take turns (default: all)",
    )
    worker_wait: float = Field(
        30.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds that accepted requests wait for a worker when none is left for them",
    )
    worker_quarantine: float = Field(
        60.0,
        ge=0,
        allow_inf_nan=False,
        description="longest pause, in seconds, of a worker that fails again and again: 1 s after"
        " its second failure in ten minutes, then twice as long each time; 0 lets it join at once",
    )
    audit_cpu: float = Field(
        0.01,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="share of its time in which a worker that has nothing else to do computes"
        " earlier answers again, to find faults that no checksum shows; 0 audits none",
    )
    log_stats_interval: float = Field(
        10.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds after which a log line says the load of each worker where it has"
        " changed; 0 writes none",
    )
    recording_path: FilePath | None = Field(
        None,
        description="file for the scheduler's decisions and all that they depend on, for `signalbox"
        " replay`; it holds the token ids of prompts and outputs, for its owner alone to read",
    )

    def step_limits(self, capacity: WorkerCapacity, *, cuts_prompts: bool = True) -> StepLimits:
        """Returns the limits of a worker's steps, within those that it announces.

        Steps that pass through stages have no drafts.
        """
        has_drafts = capacity.num_stages == 1
        most_tokens, most_steps = capacity.max_num_batched_tokens, capacity.max_steps_in_flight
        return StepLimits(
            max_num_seqs=min(self.max_num_seqs, capacity.max_num_seqs),
            max_num_batched_tokens=min(self.max_num_batched_tokens or most_tokens, most_tokens),
            prefill_spread_steps=self.prefill_spread_steps,
            max_in_flight=min(self.max_steps_in_flight or most_steps, most_steps),
            num_stages=capacity.num_stages,
            max_adapters=self.max_loras,
            cuts_prompts=cuts_prompts,
            max_draft_tokens=capacity.max_draft_tokens if has_drafts else 0,
        )


class SchedulerSettings(HostSettings, SchedulingSettings, InnerSettings):
    """`signalbox scheduler`."""

    GROUP: ClassVar[str] = "addresses"

    port: Port = Field(50052, description="port to listen on; 0 picks one")

    @property
    def reflection(self) -> bool:
        """True if the port serves gRPC reflection."""
        return is_loopback(self.host)


class SchedulerConfig(SchedulerSettings):
    """The settings, and numbers that only tests change."""

    heartbeat_interval_s: float = 0.5
    lease_s: float = 2.75
    """Silence after which a worker is lost: that of one that stands still for 2 s is no longer than
    2.5 s, and one that has stopped is noticed within 3 s."""
    step_timeout_s: float = 10.0
    """Least time that a step is given; longer if its size predicts more."""
    router_buffer_messages: int = 1024
    """Step messages that may wait for a router; a router with more loses its stream."""
    explain_history: int = 1024
    """Requests that can still be explained after their end."""

    @model_validator(mode="after")
    def _outlasts_a_heartbeat(self) -> Self:
        if self.lease_s < 2 * self.heartbeat_interval_s:
            raise ValueError("lease_s must be at least twice heartbeat_interval_s")
        return self

    def own_values(self) -> dict[str, Any]:
        """Returns plain values by name, without settings that every service has: addresses of
        others among them may hold secrets."""
        return self.model_dump(mode="json", exclude=set(InnerSettings.model_fields))
