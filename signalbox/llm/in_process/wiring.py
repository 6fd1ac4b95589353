"""Makes the services' objects for an engine in this process: model, scheduler, groups.

Over a network the registry, the router's model client and the codecs do this.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from contract.model import ModelInfo
from contract.request import Request
from contract.tokenizer_files import hash_files
from gpu_worker.sampling.grammars import MEMORY_BYTES
from router.params.generation_params import GenerationParams
from router.served_model import ServedModel
from router.tokenization.tokenizer import Tokenizer
from scheduler_svc.cluster import Cluster
from scheduler_svc.config import CacheShape, PreemptionMode, StepLimits
from scheduler_svc.factory import at_most
from scheduler_svc.kv.cost_model import CostModel
from scheduler_svc.queue.policies import SchedulingPolicy
from scheduler_svc.scheduler import Scheduler
from signalbox.llm.in_process.local_worker import LocalWorker
from signalbox.llm.requests.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Options of the core beside the runner's."""

    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    prefix_caching: bool = True
    cpu_prefix_cache: bool = True
    policy: SchedulingPolicy | None = None
    """Scheduling policy; None is first come, first served."""
    limits: StepLimits = field(default_factory=lambda: StepLimits(max_num_batched_tokens=1 << 20))
    """Tightened by what the worker can do."""
    watermark: float = 0.01
    num_gpu_blocks_override: int | None = None
    num_cpu_blocks_override: int | None = None
    max_steps_in_flight: int = 2
    log_stats_interval_s: float = 10.0
    grammar_bytes: int = MEMORY_BYTES
    """Memory for compiled structured outputs."""
    seed: int | None = 0
    """Seed of the sequence of seeds for requests without one; None differs from run to run."""
    stream_interval: int = 1
    """Fewest tokens of a sequence between two outputs, except the first and the last."""
    disable_additional_properties: bool = True
    """True if objects of JSON schemas have only the keys that they declare."""
    tokenizer_files: Mapping[str, bytes] | None = None
    """Tokenizer files that replace the model's own."""
    chat_template: str | None = None
    """Source of a chat template that replaces the tokenizer's."""
    max_logprobs: int | None = 20
    """Maximum logprobs at a position that a request may ask for; None is no limit."""
    profile_folder: str | None = None
    """Folder for profiles; None disables profiling."""
    log_stats: bool = False


def served_model(
    worker: LocalWorker,
    files: Mapping[str, bytes],
    pool: ThreadPoolExecutor,
    *,
    chat_template: str | None = None,
) -> ServedModel:
    """Returns the model for the router's checks. Raises ValueError for unusable tokenizer files."""
    model = worker.model
    tokenizer = Tokenizer.from_files(
        files, vocab_size=model.vocab_size, pool=pool, chat_template=chat_template
    )
    if files is not worker.tokenizer_files and tokenizer.max_token_id >= model.vocab_size:
        raise ValueError(
            f"tokenizer has token ids up to {tokenizer.max_token_id}; "
            f"{model.name} knows ids below {model.vocab_size}"
        )
    return ServedModel(
        name=model.name,
        architecture=model.architecture,
        dtype=model.dtype,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        tokenizer=tokenizer,
    )


def model_info(worker: LocalWorker, files: Mapping[str, bytes]) -> ModelInfo:
    """Returns the model for the scheduler's checks."""
    return replace(worker.model, tokenizer_sha256=hash_files(files))


def make_scheduler(cluster: Cluster, worker: LocalWorker, config: CoreConfig) -> Scheduler:
    """Returns the scheduler that plans this worker's steps."""
    capacity = worker.capacity
    return Scheduler(
        limits=config.limits.within(
            max_num_seqs=capacity.max_num_seqs,
            max_num_batched_tokens=capacity.max_num_batched_tokens,
        ),
        cache=CacheShape(
            block_size=capacity.block_size,
            num_gpu_blocks=at_most(config.num_gpu_blocks_override, capacity.num_gpu_blocks),
            num_cpu_blocks=at_most(config.num_cpu_blocks_override, capacity.num_cpu_blocks),
            watermark=config.watermark,
            max_model_len=worker.model.max_model_len,
            prefix_caching=config.prefix_caching,
            cpu_prefix_cache=config.cpu_prefix_cache,
        ),
        admission=cluster.admission,
        preemption_mode=config.preemption_mode,
        cost=CostModel(
            block_bytes=capacity.block_bytes,
            copy_bytes_per_s=capacity.copy_bytes_per_s,
            prefill_tokens_per_s=capacity.prefill_tokens_per_s,
        ),
        eos_token_ids=frozenset(worker.model.eos_token_ids),
        grammar_bytes=capacity.grammar_bytes,
    )


def request(
    handle: int, request_id: str, prompt: Prompt, params: GenerationParams, *, priority: int = 0
) -> Request:
    return Request(
        handle=handle,
        request_id=request_id,
        prompt_token_ids=list(prompt.token_ids),
        cache_salt=prompt.cache_salt,
        params=params.sampling,
        max_tokens=params.max_tokens,
        max_tokens_is_default=params.max_tokens_is_default,
        num_sequences=params.num_sequences,
        beam_search=params.beam_search,
        priority=priority,
    )
