"""Settings of the scheduler."""

from typing import ClassVar, Literal

from pydantic import Field

from signalbox.settings.base_settings import InnerSettings
from signalbox.settings.limit_settings import LimitSettings
from signalbox.settings.values.addresses import Host


class PolicySettings(LimitSettings):
    """Settings of the scheduler, shared by all commands with one."""

    GROUP: ClassVar[str] = "scheduling"

    scheduling_policy: str = Field(
        "fcfs",
        pattern=r"^(fcfs|priority|shortest-prompt|fair|[\w.]+:\w+)$",
        description="which request comes first: fcfs, priority, shortest-prompt, fair (equal"
        " service to tenants), or your own class as package.module:Class",
    )
    ageing: float = Field(
        60.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds of waiting that make up for one step of priority, or for 1,000 tokens"
        " of prompt under shortest-prompt",
    )
    fair_input_weight: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="what a prompt token counts for under fair"
    )
    fair_output_weight: float = Field(
        2.0, ge=0, allow_inf_nan=False, description="what a generated token counts for under fair"
    )
    prefill_spread: int = Field(
        16,
        ge=1,
        description="steps that prompts are spread over while others decode, so that a burst of"
        " them delays no request for long; a chunk is at least an eighth of max-num-batched-tokens,"
        " a quarter where 16 or more decode, and 1 computes prompts as fast as steps may",
    )
    preemption_mode: Literal["auto", "swap", "recompute"] = Field(
        "auto",
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
        None, gt=0, description="use so many of each worker's KV-cache blocks"
    )
    num_cpu_blocks_override: int | None = Field(
        None, ge=0, description="use so many of each worker's swap blocks"
    )
    max_steps_in_flight: int = Field(
        2, ge=1, le=2, description="2 plans the next step while one runs"
    )
    max_queued_requests: int = Field(
        4096, gt=0, description="requests that may wait; more are refused"
    )
    max_queued_tokens: int | None = Field(
        None, gt=0, description="prompt tokens that may wait; more are refused (default: unbounded)"
    )
    max_tenant_requests: int | None = Field(
        None,
        gt=0,
        description="requests of one tenant that may wait or run; more are refused (default:"
        " unbounded)",
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
    explain_history: int = Field(
        1024,
        ge=0,
        description="requests that `signalbox explain` can still explain after their end",
    )
    log_stats_interval: float = Field(
        10.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds between two log lines on what each worker does, while it does"
        " something; 0 writes none",
    )
    record: str | None = Field(
        None,
        description="file for the scheduler's decisions and all that they depend on, for `signalbox"
        " replay`; it holds the token ids of prompts and outputs, for its owner alone to read",
    )


class SchedulerSettings(PolicySettings, InnerSettings):
    """`signalbox scheduler`."""

    GROUP: ClassVar[str] = "addresses"

    host: Host = Field("127.0.0.1", description="address to listen on")
    port: int = Field(50052, ge=0, le=65535, description="port to listen on; 0 picks one")
