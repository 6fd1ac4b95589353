"""Makes the services' objects for an engine in this process: model, scheduler, groups.

What the registry, the router's model client and the codecs do where there is a network.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpu_worker.worker import hash_files
from router.model import ServedModel
from router.sampling import GenerationParams
from router.tokenizer import Tokenizer
from scheduler_svc.beam import BeamSearchParams
from scheduler_svc.cluster import Cluster
from scheduler_svc.config import CacheShape, PreemptionMode, StepLimits
from scheduler_svc.cost import CostModel
from scheduler_svc.model import ModelInfo
from scheduler_svc.policy import SchedulingPolicy
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.sequence import SequenceGroup
from scheduler_svc.timeline import GroupTimes
from signalbox.llm.local_worker import LocalWorker
from signalbox.llm.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """What is not the runner's to know."""

    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    prefix_caching: bool = True
    cpu_prefix_cache: bool = True
    policy: SchedulingPolicy | None = None
    """None is first come, first served."""
    seed: int | None = 0
    """Seed of the sequence of seeds for requests without one; None differs from run to run."""
    stream_interval: int = 1
    """Least tokens of a sequence between two outputs, the first and the last aside."""
    disable_additional_properties: bool = True
    """True if objects of JSON schemas have only the keys that they declare."""
    tokenizer_files: Mapping[str, bytes] | None = None
    """Instead of the model's own."""
    chat_template: str | None = None
    """Source of a template instead of the tokenizer's."""
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
    """What the router checks requests against. Raises ValueError for tokenizer files not usable."""
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
    """What the scheduler checks requests against."""
    model = worker.model
    return ModelInfo(
        name=model.name,
        architecture=model.architecture,
        dtype=model.dtype,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        tokenizer_sha256=hash_files(files),
    )


def make_scheduler(cluster: Cluster, worker: LocalWorker, config: CoreConfig) -> Scheduler:
    """The planner of this worker's steps."""
    capacity = worker.capacity
    return Scheduler(
        limits=StepLimits(
            max_num_seqs=capacity.max_num_seqs,
            max_num_batched_tokens=capacity.max_num_batched_tokens,
        ),
        cache=CacheShape(
            block_size=capacity.block_size,
            num_gpu_blocks=capacity.num_gpu_blocks,
            num_cpu_blocks=capacity.num_cpu_blocks,
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
    )


def group(
    request_id: str, prompt: Prompt, params: GenerationParams, *, priority: int = 0
) -> SequenceGroup:
    """A request that arrives now."""
    return SequenceGroup(
        request_id=request_id,
        prompt_token_ids=list(prompt.token_ids),
        cache_salt=prompt.cache_salt,
        params=params.sampling,
        max_tokens=params.max_tokens,
        max_tokens_is_default=params.max_tokens_is_default,
        num_sequences=params.num_sequences,
        beam_search=_beam_search(params),
        priority=priority,
        times=GroupTimes(arrival=time.monotonic()),
    )


def _beam_search(params: GenerationParams) -> BeamSearchParams | None:
    search = params.beam_search
    if search is None:
        return None
    return BeamSearchParams(
        width=search.width,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
    )
