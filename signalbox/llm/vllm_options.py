"""Options of vLLM's engine that have no counterpart here, and their accepted values.

A value is accepted if it asks for what happens anyway, or if it only changes vLLM's speed. Any
other value is refused by name, so that no script relies on an option without effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from signalbox.settings.vllm_flags import POOLING_TASKS


class _Any:
    """Equals every value."""

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ANY = _Any()


def _taken(*values: object) -> Any:
    """Returns a field with a default, that accepts only these values."""
    return field(default=values[0], repr=False, metadata={"taken": values})


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """vLLM's options that `EngineArgs` accepts only at a neutral value.

    Raises ValueError for any other value.
    """

    # Tasks of the model.
    task: object = _taken("auto", "generate", None, *POOLING_TASKS)
    skip_tokenizer_init: object = _taken(False)
    served_model_name: object = _taken(None, ANY)
    pooler_config: object = _taken(None)
    override_pooler_config: object = _taken(None)
    reasoning_parser: object = _taken("", None)
    logits_processors: object = _taken(None, [])
    logprobs_mode: object = _taken("raw_logprobs", None)
    limit_mm_per_prompt: object = _taken(None, {})
    mm_processor_kwargs: object = _taken(None, {})
    allowed_local_media_path: object = _taken("", None)
    allowed_media_domains: object = _taken(None)
    enable_prompt_embeds: object = _taken(False)
    enable_return_routed_experts: object = _taken(False)
    # Loading the model.
    tokenizer_revision: object = _taken(None)
    code_revision: object = _taken(None)
    config_format: object = _taken("auto", "hf")
    hf_config_path: object = _taken(None)
    hf_token: object = _taken(None)
    hf_overrides: object = _taken(None, {})
    download_dir: object = _taken(None)
    ignore_patterns: object = _taken(None)
    model_loader_extra_config: object = _taken(None, {})
    rope_scaling: object = _taken(None, {})
    rope_theta: object = _taken(None)
    cpu_offload_gb: object = _taken(0)
    lora_dtype: object = _taken("auto", None)
    fully_sharded_loras: object = _taken(False)
    calculate_kv_scales: object = _taken(False)
    # Parallelism.
    data_parallel_size: object = _taken(1)
    decode_context_parallel_size: object = _taken(1)
    enable_expert_parallel: object = _taken(False)
    distributed_executor_backend: object = _taken(None, "mp", "uni")
    worker_use_ray: object = _taken(False)
    disable_custom_all_reduce: object = _taken(False, ANY)
    max_parallel_loading_workers: object = _taken(None)
    # Planning of steps; prompts are always computed in chunks.
    enable_chunked_prefill: object = _taken(None, True)
    max_num_partial_prefills: object = _taken(1)
    long_prefill_token_threshold: object = _taken(0)
    num_scheduler_steps: object = _taken(1)
    scheduler_delay_factor: object = _taken(0)
    use_v2_block_manager: object = _taken(None, ANY)
    async_scheduling: object = _taken(None, ANY)
    disable_async_output_proc: object = _taken(False, ANY)
    disable_cascade_attn: object = _taken(False, ANY)
    disable_sliding_window: object = _taken(False)
    prefix_caching_hash_algo: object = _taken(None, ANY)
    speculative_model: object = _taken(None)
    num_speculative_tokens: object = _taken(None)
    per_request_spec_decode_metrics: object = _taken("none", "summary", None)
    # Computation and metrics.
    max_seq_len_to_capture: object = _taken(None, ANY)
    compilation_config: object = _taken(None, ANY)
    attention_config: object = _taken(None, {})
    guided_decoding_backend: object = _taken(None, ANY)  # llguidance takes the same grammars
    structured_outputs_config: object = _taken(None, {})
    additional_config: object = _taken(None, {})
    kv_transfer_config: object = _taken(None)
    kv_events_config: object = _taken(None)
    otlp_traces_endpoint: object = _taken(None)
    collect_detailed_traces: object = _taken(None)
    enable_sleep_mode: object = _taken(False, True)

    def check_neutral(self) -> None:
        """Raises ValueError for an option with another value."""
        for one in fields(VllmOptions):
            value = getattr(self, one.name)
            if value not in one.metadata["taken"]:
                raise ValueError(f"{one.name}={value!r} is not served; leave it {one.default!r}")


_ARGUMENTS = {
    "prompt_adapter_request": None,
    "tokenization_kwargs": None,
    "trace_headers": None,
    "data_parallel_rank": None,
    "mm_processor_kwargs": None,
    "chat_template_content_format": "auto",
}
"""Arguments of vLLM's calls that are not served, and their neutral values."""


def check_arguments(call: str, given: Mapping[str, object]) -> None:
    """Raises TypeError for an unknown argument, ValueError for one that is not served."""
    for name, value in given.items():
        if name not in _ARGUMENTS:
            raise TypeError(f"{call}() has no argument {name!r}")
        if value and value != _ARGUMENTS[name]:
            raise ValueError(f"{call}(): {name} is not served; leave it {_ARGUMENTS[name]!r}")
