"""Makes the services' frozen configuration objects of settings. Imports no service's code."""

from gpu_worker.config import GIB, CacheConfig, DeviceConfig, ModelConfig
from router.config import RouterConfig
from scheduler_svc.config import PreemptionMode, SchedulerConfig, StepLimits
from signalbox.settings import RouterSettings, SchedulerSettings, WorkerSettings

MAX_BATCHED_TOKENS = 1 << 20
"""The scheduler's own bound of a step, unless one is set: each worker announces a tighter one."""


def router_config(settings: RouterSettings) -> RouterConfig:
    return RouterConfig(
        host=settings.host,
        port=settings.port,
        scheduler_addresses=(settings.scheduler,),
        reflection=settings.reflection,
        grace_s=settings.grace,
        max_live_requests=settings.max_live_requests,
    )


def scheduler_config(settings: SchedulerSettings) -> SchedulerConfig:
    return SchedulerConfig(
        host=settings.host,
        port=settings.port,
        limits=StepLimits(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens or MAX_BATCHED_TOKENS,
        ),
        preemption_mode=PreemptionMode(settings.preemption_mode),
        watermark=settings.watermark,
        prefix_caching=settings.prefix_caching,
        num_gpu_blocks_override=settings.num_gpu_blocks_override,
        num_cpu_blocks_override=settings.num_cpu_blocks_override,
        max_steps_in_flight=settings.max_steps_in_flight,
        max_queued_requests=settings.max_queued_requests,
        drain_timeout_s=settings.grace,
    )


def model_config(settings: WorkerSettings) -> ModelConfig:
    return ModelConfig(
        model=settings.model or "",
        served_name=settings.served_model_name,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        revision=settings.revision,
    )


def cache_config(settings: WorkerSettings) -> CacheConfig:
    memory = settings.kv_cache_memory
    return CacheConfig(
        block_size=settings.block_size,
        swap_space_bytes=int(settings.swap_space * GIB),
        gpu_memory_utilization=settings.gpu_memory_utilization,
        kv_cache_bytes=None if memory is None else int(memory * GIB),
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )


def device_config(settings: WorkerSettings) -> DeviceConfig:
    return DeviceConfig(device=settings.device, num_threads=settings.num_threads)
