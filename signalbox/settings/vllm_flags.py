"""Maps each flag of `vllm serve`: to a setting of another name, to no effect, or to an error.

A flag is in the table unless a setting has its very name.
"""

from collections.abc import Mapping

from signalbox.settings.flag_kinds import (
    SEVERAL,
    SWITCH,
    Alias,
    ForeignFlag,
    NoEffect,
    Refused,
)

POOLING_TASKS = ("embed", "embedding", "classify", "score")
"""Values of vLLM's earlier option `task` that ask for vectors."""
_BYTES_PER_GIB = 1 << 30
_OURS_ALONE = "there is one implementation"
_NO_GRAPH_SIZES = "the sizes are chosen; --max-cudagraph-capture-size bounds them"
_STATES = "states of recurrent layers are kept in float32"
_STATE_DTYPE = NoEffect(
    why=_STATES, values=("auto", "float32"), otherwise=f"{_STATES}; leave it out"
)
_SNAPSHOTS = "prefixes of recurrent layers are found by snapshots at boundaries of blocks"
NO_MEDIA = "requests with images, audio or video are refused"
_LORA_DTYPE = "adapters are computed in the type of activations"
_NO_LORA_RANKS = "each rank has its share of an adapter's larger matrix"
OWN_TEXT = "drafts come from a sequence's own text"
AS_THE_SERVED = "a draft model has the device, the threads and the KV type of the served one"
DRAFTS_FOLLOW = "the number of drafts follows how many were kept"
_RAY = "--placement ray starts the ranks of a worker on a Ray cluster"
_DIVIDED = "--prefill-spread-steps divides a step among prompts"
NO_RANKS = "start `signalbox worker` on each machine, with --scheduler HOST:PORT"
POOLS_AS_SAVED = "a model pools as the sentence-transformers modules beside it say"
CONFIG_JSON = "change the model's config.json"
CORS = "answer browsers of other origins through a proxy"


def _gib(text: str) -> float:
    from signalbox_rpc.settings.quantities import whole_number

    return whole_number(text) / _BYTES_PER_GIB


_SPECULATIVE = ("--speculative-config.", "-sc.")
"""Before the name of a member, which vLLM takes as a flag of its own."""


def _of_member(member: str) -> tuple[str, ...]:
    return tuple(before + member for before in _SPECULATIVE)


def _lookup(member: str, also: tuple[str, ...] = ()) -> Alias:
    """Returns the row of a number in speculative_config."""
    return Alias(
        setting="speculative_config",
        member=member,
        also=(*also, *_of_member(member)),
        meaning=f"its `{member}`",
    )


VLLM_FLAGS: Mapping[str, ForeignFlag] = {
    # The model and its name.
    "model_tag": Alias(setting="model", also=("-m",)),
    "task": Alias(
        setting="runner",
        values=dict.fromkeys(POOLING_TASKS, "pooling"),
        meaning="`pooling` for " + ", ".join(f"`{task}`" for task in POOLING_TASKS),
    ),
    "pooler_config": Refused(remedy=POOLS_AS_SAVED),
    "override_pooler_config": Refused(remedy=POOLS_AS_SAVED),
    "tokenizer": Refused(remedy="the tokenizer that comes with MODEL is used"),
    "tokenizer_mode": NoEffect(why=_OURS_ALONE, values=("auto",), otherwise="leave it auto"),
    "tokenizer_revision": Refused(remedy="--revision is that of weights and tokenizer"),
    "code_revision": Refused(remedy="--revision is that of weights and code"),
    "skip_tokenizer_init": Refused(
        remedy="leave it out: requests with token ids are served as well", takes=SWITCH
    ),
    "hf_token": Refused(remedy="set HF_TOKEN in the environment", also=("-hft",)),
    "hf_config_path": Refused(remedy="put config.json beside the weights"),
    "config_format": NoEffect(
        why="MODEL shows its format", values=("auto", "hf"), otherwise="leave it auto"
    ),
    "hf_overrides": Refused(remedy=CONFIG_JSON),
    "rope_scaling": Refused(remedy=CONFIG_JSON),
    "rope_theta": Refused(remedy=CONFIG_JSON),
    "download_dir": Refused(remedy="set HF_HUB_CACHE in the environment"),
    "safetensors_load_strategy": NoEffect(why="files are mapped into memory"),
    "model_loader_extra_config": Refused(remedy="weights are read from files or the hub"),
    "ignore_patterns": Refused(remedy="what is fetched of a repository follows from MODEL"),
    "use_tqdm_on_load": NoEffect(why="loading is logged", takes=SWITCH),
    "pt_load_map_location": NoEffect(why="weights are read on the CPU first"),
    "disable_sliding_window": Refused(remedy="--max-model-len bounds the window", takes=SWITCH),
    "quantization_param_path": Refused(
        remedy="scales of a KV cache in FP8 come from the checkpoint"
    ),
    "override_attention_dtype": Refused(remedy="--dtype is that of attention too"),
    "tokenizer_pool_size": NoEffect(
        why="threads of the router tokenise",
        also=("--tokenizer-pool-type", "--tokenizer-pool-extra-config"),
    ),
    "model_weights": Refused(remedy="MODEL is both configuration and weights"),
    "allow_deprecated_quantization": NoEffect(why="no form of weights is hidden", takes=SWITCH),
    "quantization_config": Refused(remedy="--quantization takes the name of a form"),
    "weight_transfer_config": Refused(remedy="a new checkpoint takes a new worker"),
    # Memory and cache.
    "enable_prefix_caching": Alias(setting="prefix_caching", takes=SWITCH),
    "prefix_caching_hash_algo": NoEffect(why="blocks are found by one kind of hash"),
    "kv_cache_memory_bytes": Alias(
        setting="kv_cache_memory", convert=_gib, meaning="in bytes, 8G or 8g instead of GiB"
    ),
    "calculate_kv_scales": Refused(
        remedy="scales of an FP8 KV cache are the checkpoint's, or 1.0", takes=SWITCH
    ),
    "cpu_offload_gb": NoEffect(
        why="weights stay on one device",
        values=("0", "0.0"),
        otherwise="weights are not offloaded; --swap-space is for KV blocks",
    ),
    "kv_offloading_size": Refused(
        remedy="--swap-space is the CPU memory for KV blocks, in GiB;"
        " --kv-disk keeps them on a disk"
    ),
    "kv_offloading_backend": Refused(remedy="--swap-space is the CPU memory for KV blocks"),
    "kv_transfer_config": Refused(
        remedy="--kv-disk keeps KV blocks on a disk, --kv-store shares them,"
        " --role divides prefill and decode"
    ),
    "kv_events_config": Refused(remedy="KV events are not published"),
    "kv_sharing_fast_prefill": NoEffect(why=_OURS_ALONE, takes=SWITCH),
    "disable_hybrid_kv_cache_manager": NoEffect(why=_OURS_ALONE, takes=SWITCH),
    "use_v2_block_manager": NoEffect(why=_OURS_ALONE, takes=SWITCH),
    "mamba_cache_dtype": _STATE_DTYPE,
    "mamba_ssm_cache_dtype": _STATE_DTYPE,
    "mamba_block_size": NoEffect(why=_SNAPSHOTS),
    "mamba_cache_mode": NoEffect(why=_SNAPSHOTS),
    "mamba_config": NoEffect(why=_SNAPSHOTS),
    "ec_transfer_config": Refused(remedy=NO_MEDIA),
    "enable_sleep_mode": Refused(remedy="stop the server to free its memory", takes=SWITCH),
    # Devices.
    "data_parallel_size": Alias(setting="workers"),
    "data_parallel_size_local": Alias(setting="workers"),
    "data_parallel_rank": Refused(remedy=NO_RANKS),
    "data_parallel_start_rank": Refused(remedy=NO_RANKS),
    "data_parallel_address": Refused(remedy=NO_RANKS),
    "data_parallel_rpc_port": Refused(remedy=NO_RANKS),
    "data_parallel_backend": NoEffect(
        why="workers are processes", values=("mp",), otherwise=NO_RANKS
    ),
    "data_parallel_hybrid_lb": Refused(remedy=NO_RANKS, takes=SWITCH),
    "data_parallel_external_lb": Refused(remedy=NO_RANKS, takes=SWITCH),
    "decode_context_parallel_size": NoEffect(
        why="a sequence is not divided",
        values=("1",),
        otherwise="--tensor-parallel-size divides the model",
    ),
    "prefill_context_parallel_size": NoEffect(
        why="a sequence is not divided",
        values=("1",),
        otherwise="--tensor-parallel-size divides the model",
    ),
    "cp_kv_cache_interleave_size": NoEffect(
        why="a sequence is not divided", also=("--dcp-kv-cache-interleave-size",)
    ),
    "data_parallel_supervisor_port": Refused(
        remedy=NO_RANKS,
        also=(
            "--dp-supervisor-probe-interval-s",
            "--dp-supervisor-probe-timeout-s",
            "--dp-supervisor-probe-failure-threshold",
        ),
    ),
    "nnodes": NoEffect(why="serve is for one machine", values=("1",), otherwise=NO_RANKS),
    "node_rank": NoEffect(why="serve is for one machine", values=("0",), otherwise=NO_RANKS),
    "master_addr": Refused(remedy=NO_RANKS),
    "master_port": Refused(remedy=NO_RANKS),
    "headless": Refused(remedy=NO_RANKS, takes=SWITCH),
    "enable_expert_parallel": NoEffect(
        why="experts are divided as --tensor-parallel-size says", takes=SWITCH
    ),
    "all2all_backend": NoEffect(why="experts exchange nothing between workers"),
    "enable_eplb": NoEffect(why="experts exchange nothing between workers", takes=SWITCH),
    "eplb_config": NoEffect(why="experts exchange nothing between workers"),
    "enable_dbo": NoEffect(why="experts exchange nothing between workers", takes=SWITCH),
    "dbo_decode_token_threshold": NoEffect(
        why="experts exchange nothing between workers", also=("--dbo-prefill-token-threshold",)
    ),
    "expert_placement_strategy": NoEffect(why="experts exchange nothing between workers"),
    "disable_nccl_for_dp_synchronization": NoEffect(
        why="workers exchange nothing between steps", takes=SWITCH
    ),
    "enable_return_routed_experts": Refused(
        remedy="answers do not name the experts of their tokens", takes=SWITCH
    ),
    "moe_backend": NoEffect(why=_OURS_ALONE, values=("auto",), otherwise=_OURS_ALONE),
    "enable_fault_tolerance": NoEffect(why="a worker that is lost is started again", takes=SWITCH),
    "fault_tolerance_config": Refused(remedy="a worker that is lost is started again"),
    "distributed_executor_backend": NoEffect(
        why="ranks are processes of this machine",
        values=("mp", "uni"),
        otherwise=_RAY,
    ),
    "worker_use_ray": Refused(remedy=_RAY, takes=SWITCH),
    "engine_use_ray": Refused(remedy=_RAY, takes=SWITCH),
    "disable_custom_all_reduce": NoEffect(why="NCCL reduces", takes=SWITCH),
    "max_parallel_loading_workers": NoEffect(why="each rank reads its own part"),
    "worker_cls": Refused(remedy="--attention-backend and --model-plugin take your own code"),
    "worker_extension_cls": Refused(remedy="--model-plugin takes your own code"),
    # Scheduling and steps.
    "enable_chunked_prefill": NoEffect(
        why="prompts are always computed in chunks",
        takes=SWITCH,
        values=("true",),
        otherwise="--max-num-batched-tokens is the size of a step",
    ),
    "async_scheduling": Alias(
        setting="max_steps_in_flight",
        takes=SWITCH,
        values={"true": 2, "false": 1},
        meaning="2, or 1 for the --no- form",
    ),
    "max_num_partial_prefills": NoEffect(why=_DIVIDED),
    "max_long_partial_prefills": NoEffect(
        why="--prefill-spread-steps divides a step among prompts"
    ),
    "long_prefill_token_threshold": NoEffect(
        why="--prefill-spread-steps divides a step among prompts"
    ),
    "num_lookahead_slots": NoEffect(why="blocks for drafts are taken as they are allowed"),
    "num_scheduler_steps": NoEffect(why="the next step is planned while one runs"),
    "multi_step_stream_outputs": NoEffect(why="each step's tokens are streamed", takes=SWITCH),
    "scheduler_delay_factor": NoEffect(why="prompts wait for room alone"),
    "scheduler_cls": Refused(remedy="--scheduling-policy takes your own class"),
    "disable_chunked_mm_input": NoEffect(why=NO_MEDIA, takes=SWITCH),
    "compilation_config": NoEffect(why="kernels need no compilation by torch.compile"),
    "optimization_level": NoEffect(why="kernels need no compilation by torch.compile"),
    "performance_mode": NoEffect(why="there is one mode"),
    "cudagraph_capture_sizes": NoEffect(why=_NO_GRAPH_SIZES, takes=SEVERAL),
    "cuda_graph_sizes": NoEffect(why=_NO_GRAPH_SIZES, takes=SEVERAL),
    "max_seq_len_to_capture": NoEffect(why=_NO_GRAPH_SIZES),
    "max_context_len_to_capture": NoEffect(why=_NO_GRAPH_SIZES),
    "disable_cascade_attn": NoEffect(why="there is no cascade attention", takes=SWITCH),
    "spec_method": Alias(
        setting="speculative_config",
        member="method",
        is_text=True,
        also=_of_member("method"),
        meaning="its `method`",
    ),
    "num_speculative_tokens": _lookup("num_speculative_tokens", also=("--spec-tokens",)),
    "ngram_prompt_lookup_max": _lookup("prompt_lookup_max"),
    "ngram_prompt_lookup_min": _lookup("prompt_lookup_min"),
    "speculative_model": Alias(setting="draft_model", also=("--spec-model",)),
    "speculative_model_quantization": Refused(
        remedy=AS_THE_SERVED,
        also=("--speculative-draft-tensor-parallel-size", "--speculative-max-model-len"),
    ),
    "speculative_disable_by_batch_size": NoEffect(why=DRAFTS_FOLLOW),
    "spec_decoding_acceptance_method": NoEffect(
        why="a draft is kept if it is what is drawn",
        values=("rejection_sampler",),
        otherwise="a draft is kept only if it is what is drawn; leave it out",
    ),
    "per_request_spec_decode_metrics": NoEffect(
        why="answers with drafts have their counts",
        values=("none", "summary"),
        otherwise="the counts of an answer are those of all its steps; leave it out",
    ),
    "attention_config": Refused(remedy="--attention-backend chooses the implementation"),
    "kernel_config": Refused(remedy="--linear-backend and --sampling-backend choose"),
    "disable_async_output_proc": NoEffect(why="answers are read beside the steps", takes=SWITCH),
    "additional_config": Refused(remedy="each option is a flag of its own"),
    # Chat, tools, structured output.
    "chat_template_content_format": NoEffect(
        why="the chat template shows what it takes",
        values=("auto",),
        otherwise="leave it auto",
    ),
    "default_chat_template_kwargs": Refused(remedy="send chat_template_kwargs with each request"),
    "trust_request_chat_template": NoEffect(
        why="a request's chat template is rendered in a sandbox of its own",
        takes=SWITCH,
        values=("true",),
        otherwise="a request's chat template is always taken, and rendered in a sandbox",
    ),
    "response_role": NoEffect(
        why="answers are the assistant's", values=("assistant",), otherwise="leave it assistant"
    ),
    "enable_auto_tool_choice": NoEffect(
        why="tool_choice auto is always served",
        takes=SWITCH,
        values=("true",),
        otherwise="--tool-call-parser none leaves calls in the text",
    ),
    "exclude_tools_when_tool_choice_none": Refused(
        remedy="leave the tools out of a request with tool_choice none", takes=SWITCH
    ),
    "reasoning_parser_plugin": Refused(remedy="--reasoning-parser has the parsers that there are"),
    "cohere_format": Refused(
        remedy="OpenAI's endpoints have the chats", also=("--cohere-is-reasoning-model",)
    ),
    "tool_parser_plugin": Refused(
        remedy="an installed package adds a parser by an entry point of signalbox.tool_call_formats"
    ),
    "tool_server": Refused(remedy="tools are called by the client"),
    "enable_reasoning": NoEffect(why="reasoning is found by the model's template", takes=SWITCH),
    "guided_decoding_backend": NoEffect(why="llguidance is used, which takes the same grammars"),
    "structured_outputs_config": Refused(remedy="send structured_outputs with each request"),
    "max_logprobs": NoEffect(
        why="up to 20 log probabilities a token are served",
        values=("20",),
        otherwise="up to 20 log probabilities a token are served",
    ),
    "logprobs_mode": NoEffect(
        why="log probabilities are those of the model",
        values=("raw_logprobs",),
        otherwise="log probabilities are those of the model, before sampling changes them",
    ),
    "return_tokens_as_token_ids": Refused(
        remedy="send return_tokens_as_token_ids with each request", takes=SWITCH
    ),
    "stream_interval": NoEffect(
        why="each token is streamed", values=("1",), otherwise="send stream_interval over gRPC"
    ),
    "logits_processors": Refused(remedy="sampling is defined by a request's parameters"),
    "logits_processor_pattern": Refused(remedy="sampling is defined by a request's parameters"),
    # The HTTP API.
    "uds": Refused(remedy="--host and --http-port are where it listens"),
    "api_server_count": NoEffect(why="a router is one process; start several `signalbox router`"),
    "disable_frontend_multiprocessing": NoEffect(
        why="the router is a process of its own", takes=SWITCH
    ),
    "ssl_certfile": Alias(setting="tls_cert"),
    "ssl_keyfile": Alias(setting="tls_key"),
    "ssl_ca_certs": Refused(remedy="--tls-client-ca FILE asks clients for certificates"),
    "ssl_cert_reqs": NoEffect(
        why="clients are asked for a certificate with --tls-client-ca alone",
        values=("0",),
        otherwise="--tls-client-ca FILE asks clients for certificates",
    ),
    "enable_ssl_refresh": NoEffect(
        why="certificates are looked at in each handshake", takes=SWITCH
    ),
    "ssl_ciphers": Refused(remedy="the ciphers are those of the Python that runs"),
    "allowed_methods": Refused(remedy=CORS),
    "allowed_headers": Refused(remedy=CORS),
    "allow_credentials": Refused(remedy=CORS, takes=SWITCH),
    "root_path": Refused(remedy="let the proxy strip the path"),
    "middleware": Refused(remedy="put a proxy in front"),
    "enable_offline_docs": NoEffect(why="/docs fetches nothing from elsewhere", takes=SWITCH),
    "tokens_only": Refused(
        remedy="requests with token ids are served beside the others", takes=SWITCH
    ),
    "fingerprint_mode": Refused(
        remedy="system_fingerprint has the version and the model", also=("--fingerprint-value",)
    ),
    "shutdown_timeout": Alias(setting="drain_timeout"),
    "enable_per_request_metrics": Refused(
        remedy="`signalbox explain` has the times of a request", takes=SWITCH
    ),
    "enable_flash_late_interaction": NoEffect(why="a text has one vector", takes=SWITCH),
    "io_processor_plugin": Refused(remedy="put a proxy in front"),
    "enable_request_id_headers": NoEffect(why="every answer has x-request-id", takes=SWITCH),
    "disable_fastapi_docs": Refused(remedy="hide /docs in a proxy", takes=SWITCH),
    "h11_max_incomplete_event_size": NoEffect(why="headers have a limit of their own"),
    "h11_max_header_count": NoEffect(why="headers have a limit of their own"),
    "enable_prompt_tokens_details": NoEffect(
        why="usage always says how many tokens were cached",
        takes=SWITCH,
        values=("true",),
        otherwise="usage always says how many tokens were cached",
    ),
    "enable_force_include_usage": Refused(
        remedy="send stream_options.include_usage with each request", takes=SWITCH
    ),
    "enable_tokenizer_info_endpoint": NoEffect(
        why="/tokenizer_info is always served",
        takes=SWITCH,
        values=("true",),
        otherwise="/tokenizer_info is always served",
    ),
    "enable_server_load_tracking": NoEffect(why="the load is always counted", takes=SWITCH),
    "lora_modules": Alias(setting="lora", takes=SEVERAL),
    "enable_lora": NoEffect(
        why="--lora and --adapter-dir name adapters",
        takes=SWITCH,
        beside=frozenset({"lora", "lora_modules", "adapter_dir"}),
    ),
    "lora_dtype": NoEffect(
        why=_LORA_DTYPE, values=("auto",), otherwise="leave it auto: " + _LORA_DTYPE
    ),
    "fully_sharded_loras": NoEffect(
        why=_NO_LORA_RANKS, takes=SWITCH, values=("false",), otherwise=_NO_LORA_RANKS
    ),
    "lora_extra_vocab_size": Refused(remedy="adapters add no tokens"),
    "long_lora_scaling_factors": Refused(remedy="an adapter has a scale of its own"),
    "enable_lora_bias": Refused(remedy="adapters have no biases", takes=SWITCH),
    "specialize_active_lora": NoEffect(why=_OURS_ALONE, takes=SWITCH),
    "enable_prompt_adapter": Refused(
        remedy="--lora NAME=PATH names adapters of other matrices", takes=SWITCH
    ),
    "max_prompt_adapters": Refused(
        remedy="--lora NAME=PATH names adapters of other matrices",
        also=("--max-prompt-adapter-token",),
    ),
    "qlora_adapter_name_or_path": Refused(remedy="--lora NAME=PATH names adapters"),
    "default_mm_loras": Refused(remedy=NO_MEDIA),
    "enable_tower_connector_lora": Refused(remedy=NO_MEDIA, takes=SWITCH),
    # Images and audio.
    "mm_shm_cache_max_object_size_mb": NoEffect(why=NO_MEDIA),
    "mm_encoder_only": Refused(remedy=NO_MEDIA, takes=SWITCH),
    "video_pruning_rate": NoEffect(why=NO_MEDIA),
    "limit_mm_per_prompt": NoEffect(why=NO_MEDIA, takes=SEVERAL),
    "language_model_only": NoEffect(why=NO_MEDIA, takes=SWITCH),
    "mm_processor_kwargs": NoEffect(why=NO_MEDIA),
    "mm_processor_cache_gb": NoEffect(why=NO_MEDIA),
    "mm_processor_cache_type": NoEffect(why=NO_MEDIA),
    "mm_encoder_tp_mode": NoEffect(why=NO_MEDIA),
    "mm_encoder_attn_backend": NoEffect(why=NO_MEDIA),
    "media_io_kwargs": NoEffect(why=NO_MEDIA),
    "skip_mm_profiling": NoEffect(why=NO_MEDIA, takes=SWITCH),
    "interleave_mm_strings": NoEffect(why=NO_MEDIA, takes=SWITCH),
    "disable_mm_preprocessor_cache": NoEffect(why=NO_MEDIA, takes=SWITCH),
    "allowed_local_media_path": NoEffect(why=NO_MEDIA),
    "allowed_media_domains": NoEffect(why=NO_MEDIA, takes=SEVERAL),
    "enable_mm_embeds": Refused(remedy=NO_MEDIA, takes=SWITCH),
    "enable_prompt_embeds": Refused(remedy="send text or token ids", takes=SWITCH),
    # Logs, traces, metrics.
    "disable_log_requests": Alias(
        setting="log_requests",
        takes=SWITCH,
        values={"true": "none", "false": "ends"},
        meaning="none, which is the default",
    ),
    "enable_log_requests": Alias(
        setting="log_requests",
        takes=SWITCH,
        values={"true": "ends", "false": "none"},
        meaning="ends",
    ),
    "enable_log_outputs": Refused(
        remedy="--log-requests prompts logs prompts; outputs are never logged", takes=SWITCH
    ),
    "enable_log_deltas": NoEffect(why="outputs are never logged", takes=SWITCH),
    "enable_logging_iteration_details": NoEffect(
        why="`signalbox top` shows each step", takes=SWITCH
    ),
    "kv_cache_metrics": NoEffect(
        why="metrics are those of docs/reference/metrics.md",
        takes=SWITCH,
        also=("--cudagraph-metrics", "--enable-mfu-metrics"),
    ),
    "kv_cache_metrics_sample": NoEffect(why="metrics are those of docs/reference/metrics.md"),
    "custom_histogram_buckets": Refused(remedy="the buckets of histograms do not change"),
    "profiler_config": Refused(remedy="`signalbox profile` records a worker's steps"),
    "enable_layerwise_nvtx_tracing": Refused(
        remedy="`signalbox profile` records a worker's steps", takes=SWITCH
    ),
    "ray_workers_use_nsight": Refused(
        remedy="`signalbox profile` records a worker's steps", takes=SWITCH
    ),
    "max_log_len": NoEffect(why="logged prompts have a limit of their own"),
    "disable_log_stats": Alias(
        setting="log_stats_interval",
        takes=SWITCH,
        values={"true": 0, "false": 10},
        meaning="0",
    ),
    "uvicorn_log_level": NoEffect(why="--log-level is that of all log lines"),
    "disable_uvicorn_access_log": NoEffect(
        why="there is no access log; --log-requests logs requests", takes=SWITCH
    ),
    "disable_access_log_for_endpoints": NoEffect(
        why="there is no access log; --log-requests logs requests"
    ),
    "log_config_file": Refused(remedy="--log-level and --log-format say how logs look"),
    "log_error_stack": NoEffect(why="--debug shows tracebacks", takes=SWITCH),
    "otlp_traces_endpoint": Alias(
        setting="trace_exporter", convert="otlp={}".format, meaning="otlp=URL"
    ),
    "collect_detailed_traces": NoEffect(why="traces are always in detail"),
    "show_hidden_metrics_for_version": NoEffect(why="no metric is hidden"),
    "aggregate_engine_logging": NoEffect(why="each worker has a line of its own", takes=SWITCH),
}

SHORT_FLAGS: Mapping[str, str] = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-dpl": "data_parallel_size_local",
    "-dpn": "data_parallel_rank",
    "-dpa": "data_parallel_address",
    "-dcp": "decode_context_parallel_size",
    "-asc": "api_server_count",
    "-q": "quantization",
    "-cc": "compilation_config",
    "-O": "optimization_level",
    "-sc": "speculative_config",
}
"""vLLM's short forms, of its flags and of ours."""

VLLM_VARIABLES: Mapping[str, str] = {
    "allow_runtime_lora_updating": "allow_adapter_loading",
    "api_key": "api_key",
    "logging_level": "log_level",
}
"""Settings of VLLM_... variables that are read; others have no effect, which is logged."""
