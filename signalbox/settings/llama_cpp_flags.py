"""Maps the flags of `llama-server` and `ollama run`, as `vllm_flags` does those of vLLM.

A flag that vLLM has too is in vLLM's table alone.
"""

from collections.abc import Mapping

from signalbox.settings.flag_kinds import (
    OPTIONAL,
    SEVERAL,
    SWITCH,
    Alias,
    ForeignFlag,
    NoEffect,
    Refused,
)
from signalbox.settings.vllm_flags import (
    AS_THE_SERVED,
    CORS,
    DRAFTS_FOLLOW,
    NO_MEDIA,
    NO_RANKS,
    OWN_TEXT,
    POOLS_AS_SAVED,
)
from signalbox_contract.sampling_params import LIMITS

_AFFINITY = "start it under taskset, numactl or nice"
_WAITING = "how threads wait is not a choice"
_ROTATION = "the rotation is that of the model's files"
_ONE_DEVICE = "a model is on one device as a whole, which --device chooses"
_DIVIDED = "--tensor-parallel-size and --pipeline-parallel-size divide a model over GPUs"
_SHARED = "requests share the blocks of one KV cache"
_SNAPSHOTS = "snapshots of states are left as the KV cache has room"
_SAMPLERS = "sampling is defined by a request's parameters"
_NO_VECTORS = "control vectors are not applied; --lora NAME=PATH adds an adapter"
_NO_TOOLS = "tools are called by the client"
_NO_PAGES = "there are no pages of a user interface"
_MODELS = "name each MODEL, or give --models a file with the settings of each"
_MEASURED = "free memory is measured; --gpu-memory-utilization is the share of it that is used"
_STOPS = "--idle-timeout of serve says when a model without requests is ended"
_LEVELS = {"0": "error", "1": "error", "2": "warning", "3": "info", "4": "debug", "5": "debug"}
_CACHE_TYPES = {"f32": "float32", "f16": "auto", "bf16": "bfloat16", "q8_0": "int8"}
_TEXT_DRAFTS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
"""Kinds of drafts that come from a text."""


def _per_request(name: str, takes: str = "one", also: tuple[str, ...] = ()) -> Refused:
    """Returns the row of what is a request's own, and has no default that a server sets."""
    return Refused(remedy=f"send {name} with each request", takes=takes, also=also)


def _sampler(name: str, also: tuple[str, ...] = ()) -> Refused:
    """Returns the row of a sampler, which is asked for with a request if it is served at all."""
    return _per_request(name, also=also) if name in LIMITS else Refused(remedy=_SAMPLERS, also=also)


def _default(member: str, also: tuple[str, ...] = ()) -> Alias:
    """Returns the row of a default for requests."""
    return Alias(
        setting="override_generation_config",
        member=member,
        also=also,
        values={"-1": None} if member == "max_new_tokens" else {},
        meaning=f"its `{member}`, the default of requests without one",
    )


def _device(text: str) -> str:
    """Returns the device for a number of layers on the GPU, "all" or "auto"."""
    return "cpu" if text not in ("all", "auto") and int(text) == 0 else "auto"


def _gib(text: str) -> float:
    if (num_mib := int(text)) < 0:
        raise ValueError("there is no limit to give")
    return num_mib / 1024


LLAMA_CPP_FLAGS: Mapping[str, ForeignFlag] = {
    # The model and its name.
    "hf_repo": Alias(setting="model", also=("-hf", "-hfr")),
    "hf_file": Refused(remedy="give org/name:TAG, such as org/name:Q4_K_M", also=("-hff",)),
    "model_url": Refused(remedy="fetch the file, and give its path", also=("-mu",)),
    "docker_repo": Refused(remedy="give a model of the Hugging Face hub", also=("-dr",)),
    "alias": Alias(setting="served_model_name", also=("-a",)),
    "tags": NoEffect(why="tags are not shown"),
    "offline": Refused(remedy="set HF_HUB_OFFLINE=1 in the environment", takes=SWITCH),
    "override_kv": Refused(remedy="the fields of the file are used"),
    "check_tensors": Refused(remedy="`signalbox pull` fetches a file again", takes=SWITCH),
    "lora_scaled": Refused(remedy="--lora NAME=PATH applies an adapter at its own scale"),
    "lora_init_without_apply": NoEffect(
        why="an adapter is applied to the requests that name it", takes=SWITCH
    ),
    "control_vector": Refused(remedy=_NO_VECTORS),
    "control_vector_scaled": Refused(remedy=_NO_VECTORS),
    "control_vector_layer_range": Refused(remedy=_NO_VECTORS, takes=SEVERAL),
    "rope_scale": Refused(remedy=_ROTATION),
    "rope_freq_base": Refused(remedy=_ROTATION),
    "rope_freq_scale": Refused(remedy=_ROTATION),
    "yarn_orig_ctx": Refused(remedy=_ROTATION),
    "yarn_ext_factor": Refused(remedy=_ROTATION),
    "yarn_attn_factor": Refused(remedy=_ROTATION),
    "yarn_beta_slow": Refused(remedy=_ROTATION),
    "yarn_beta_fast": Refused(remedy=_ROTATION),
    "embedding": Alias(
        setting="runner",
        takes=SWITCH,
        also=("--embeddings",),
        values={"true": "pooling", "false": "auto"},
        meaning="`pooling`",
    ),
    "reranking": Alias(
        setting="runner",
        takes=SWITCH,
        also=("--rerank",),
        values={"true": "pooling", "false": "auto"},
        meaning="`pooling`",
    ),
    "pooling": Refused(remedy=POOLS_AS_SAVED),
    "embd_normalize": Refused(remedy=POOLS_AS_SAVED),
    # Memory and cache.
    "ctx_size": Alias(
        setting="max_model_len",
        also=("-c",),
        values={"0": "auto"},
        meaning="tokens of one request, not of all slots together",
    ),
    "cache_type_k": Alias(
        setting="kv_cache_dtype",
        also=("-ctk",),
        values=_CACHE_TYPES,
        meaning="of K and V together: "
        + ", ".join(f"`{v}` for `{k}`" for k, v in _CACHE_TYPES.items()),
    ),
    "cache_type_v": Alias(
        setting="kv_cache_dtype", also=("-ctv",), values=_CACHE_TYPES, meaning="as `--cache-type-k`"
    ),
    "cache_ram": Alias(
        setting="swap_space", also=("-cram",), convert=_gib, meaning="in MiB instead of GiB"
    ),
    "cache_prompt": Alias(setting="prefix_caching", takes=SWITCH),
    "cache_reuse": NoEffect(
        why="blocks of equal prefixes are reused",
        values=("0",),
        otherwise="blocks behind a difference are computed again",
    ),
    "cache_idle_slots": NoEffect(why=_SHARED, takes=SWITCH),
    "kv_unified": NoEffect(
        why=_SHARED,
        takes=SWITCH,
        also=("-kvu",),
        off=("-no-kvu",),
        values=("true",),
        otherwise=_SHARED,
    ),
    "kv_unified_per_slot": NoEffect(why=_SHARED),
    "ctx_checkpoints": NoEffect(why=_SNAPSHOTS, also=("-ctxcp", "--swa-checkpoints")),
    "checkpoint_min_step": NoEffect(why=_SNAPSHOTS, also=("-cms",)),
    "slot_prompt_similarity": NoEffect(why=_SHARED, also=("-sps",)),
    "slot_save_path": Refused(remedy="--kv-disk keeps KV blocks on a disk"),
    "defrag_thold": NoEffect(why=_SHARED, also=("-dt",)),
    "swa_full": NoEffect(why="blocks behind a window are kept as the cache has room", takes=SWITCH),
    "keep": Refused(remedy="a prompt is never cut in its middle"),
    "context_shift": NoEffect(
        why="a request ends at --max-model-len",
        takes=SWITCH,
        values=("false",),
        otherwise="a request ends at --max-model-len; raise it",
    ),
    "mmap": NoEffect(why="files are mapped into memory", takes=SWITCH),
    "mlock": Refused(
        remedy="turn swap off, or run it under systemd with MemorySwapMax=0", takes=SWITCH
    ),
    "direct_io": NoEffect(why="files are mapped into memory", takes=SWITCH, also=("-dio",)),
    "load_mode": NoEffect(
        why="files are mapped into memory",
        also=("-lm",),
        values=("auto", "none", "mmap", "dio"),
        otherwise="turn swap off, or run it under systemd with MemorySwapMax=0",
    ),
    "lazy_mode": NoEffect(why="files are mapped into memory", also=("-lzm",)),
    "fit": NoEffect(why=_MEASURED, takes=OPTIONAL, also=("-fit",)),
    "fit_target": Refused(remedy=_MEASURED, also=("-fitt",)),
    "fit_ctx": Refused(remedy=_MEASURED, also=("-fitc",)),
    "repack": NoEffect(
        why="weights are packed for the processor as they are loaded",
        takes=SWITCH,
        off=("-nr",),
        values=("true",),
        otherwise="weights are packed for the processor as they are loaded",
    ),
    # Devices and threads.
    "threads": Alias(setting="num_threads", also=("-t",), values={"-1": None}),
    "threads_batch": NoEffect(why="prompts and tokens have the same threads", also=("-tb",)),
    "threads_http": NoEffect(why="one event loop serves the HTTP API"),
    "cpu_mask": Refused(remedy=_AFFINITY, also=("-C",)),
    "cpu_range": Refused(remedy=_AFFINITY, also=("-Cr",)),
    "cpu_strict": Refused(remedy=_AFFINITY),
    "cpu_mask_batch": Refused(remedy=_AFFINITY, also=("-Cb",)),
    "cpu_range_batch": Refused(remedy=_AFFINITY, also=("-Crb",)),
    "cpu_strict_batch": Refused(remedy=_AFFINITY),
    "numa": Refused(remedy=_AFFINITY),
    "prio": Refused(remedy=_AFFINITY),
    "prio_batch": Refused(remedy=_AFFINITY),
    "poll": NoEffect(why=_WAITING),
    "poll_batch": NoEffect(why=_WAITING),
    "n_gpu_layers": Alias(
        setting="device",
        also=("-ngl", "--gpu-layers"),
        convert=_device,
        meaning="`cpu` for 0, else `auto`: a model is on one device as a whole",
    ),
    "list_devices": Refused(remedy="`signalbox doctor` lists them", takes=SWITCH),
    "split_mode": Refused(remedy=_DIVIDED, also=("-sm",)),
    "tensor_split": Refused(remedy=_DIVIDED, also=("-ts",)),
    "main_gpu": Refused(remedy="set CUDA_VISIBLE_DEVICES in the environment", also=("-mg",)),
    "override_tensor": Refused(remedy=_ONE_DEVICE, also=("-ot",)),
    "cpu_moe": Refused(remedy=_ONE_DEVICE, takes=SWITCH, also=("-cmoe",)),
    "n_cpu_moe": Refused(remedy=_ONE_DEVICE, also=("-ncmoe",)),
    "n_cpu_ffn": Refused(remedy=_ONE_DEVICE, also=("-ncffn",)),
    "moe_cache_mib": Refused(remedy=_ONE_DEVICE),
    "no_host": Refused(remedy=_ONE_DEVICE),
    "kv_offload": NoEffect(
        why="K and V are where the model is",
        takes=SWITCH,
        also=("-kvo",),
        off=("-nkvo",),
        values=("true",),
        otherwise=_ONE_DEVICE,
    ),
    "op_offload": NoEffect(why="what is computed is where the model is", takes=SWITCH),
    "rpc": Refused(remedy=NO_RANKS),
    "flash_attn": NoEffect(
        why="--attention-backend chooses the implementation", takes=OPTIONAL, also=("-fa",)
    ),
    "backend_sampling": NoEffect(
        why="--sampling-backend chooses the implementation", takes=SWITCH, also=("-bs",)
    ),
    # Scheduling and steps.
    "parallel": Alias(setting="max_num_seqs", also=("-np",)),
    "cont_batching": NoEffect(
        why="requests always share steps",
        takes=SWITCH,
        also=("-cb",),
        off=("-nocb",),
        values=("true",),
        otherwise="--max-num-seqs 1 computes one request at a time",
    ),
    "batch_size": Alias(setting="max_num_batched_tokens", also=("-b",)),
    "ubatch_size": NoEffect(
        why="a step of --max-num-batched-tokens is computed whole", also=("-ub",)
    ),
    "warmup": NoEffect(why="the model is profiled as it is loaded", takes=SWITCH),
    "sleep_idle_seconds": Alias(setting="idle_timeout"),
    "spec_default": Alias(setting="speculation", takes=SWITCH),
    "spec_type": Alias(
        setting="speculative_config",
        member="method",
        is_text=True,
        values={
            "draft-simple": "draft_model",
            "draft-mtp": "mtp",
            **dict.fromkeys(_TEXT_DRAFTS, "ngram"),
        },
        meaning="its `method`: `draft_model` for `draft-simple`, `mtp` for `draft-mtp`,"
        " `ngram` for " + ", ".join(f"`{one}`" for one in _TEXT_DRAFTS),
    ),
    "spec_draft_n_max": Alias(
        setting="speculative_config",
        member="num_speculative_tokens",
        also=("--draft", "--draft-n", "--draft-max", "--spec-ngram-mod-n-max"),
        meaning="its `num_speculative_tokens`",
    ),
    "spec_ngram_size_n": Alias(
        setting="speculative_config",
        member="prompt_lookup_min",
        also=(
            "--spec-ngram-simple-size-n",
            "--spec-ngram-map-k-size-n",
            "--spec-ngram-map-k4v-size-n",
            "--spec-ngram-mod-n-match",
        ),
        meaning="its `prompt_lookup_min`",
    ),
    "spec_draft_n_min": NoEffect(
        why=DRAFTS_FOLLOW,
        also=(
            "--draft-min",
            "--draft-n-min",
            "--spec-draft-p-min",
            "--draft-p-min",
            "--spec-draft-p-split",
            "--draft-p-split",
            "--spec-ngram-mod-n-min",
            "--spec-ngram-size-m",
            "--spec-ngram-simple-size-m",
            "--spec-ngram-map-k-size-m",
            "--spec-ngram-map-k4v-size-m",
            "--spec-ngram-min-hits",
            "--spec-ngram-simple-min-hits",
            "--spec-ngram-map-k-min-hits",
            "--spec-ngram-map-k4v-min-hits",
        ),
    ),
    "lookup_cache_static": Refused(remedy=OWN_TEXT, also=("-lcs",)),
    "lookup_cache_dynamic": Refused(
        remedy="--recent-outputs keeps recent outputs, in memory alone", also=("-lcd",)
    ),
    "spec_draft_model": Alias(
        setting="draft_model",
        also=("-md", "--model-draft", "--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft"),
    ),
    "spec_draft_ngl": Refused(
        remedy=AS_THE_SERVED, also=("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft")
    ),
    "ctx_size_draft": Refused(remedy=AS_THE_SERVED, also=("-cd",)),
    "spec_draft_device": Refused(remedy=AS_THE_SERVED, also=("-devd", "--device-draft")),
    "spec_draft_threads": Refused(
        remedy=AS_THE_SERVED,
        also=(
            "-td",
            "--threads-draft",
            "--spec-draft-threads-batch",
            "-tbd",
            "--threads-batch-draft",
        ),
    ),
    "spec_draft_type_k": Refused(
        remedy=AS_THE_SERVED,
        also=(
            "-ctkd",
            "--cache-type-k-draft",
            "--spec-draft-type-v",
            "-ctvd",
            "--cache-type-v-draft",
        ),
    ),
    # Defaults of requests.
    "temp": _default("temperature", also=("--temperature",)),
    "top_k": _default("top_k"),
    "top_p": _default("top_p"),
    "min_p": _default("min_p"),
    "repeat_penalty": _default("repetition_penalty"),
    "n_predict": _default("max_new_tokens", also=("-n", "--predict")),
    "presence_penalty": _sampler("presence_penalty"),
    "frequency_penalty": _sampler("frequency_penalty"),
    "typical_p": _sampler("typical_p", also=("--typical",)),
    "repeat_last_n": Refused(remedy="penalties count all of a text"),
    "ignore_eos": _per_request("ignore_eos", takes=SWITCH),
    "logit_bias": _per_request("logit_bias", also=("-l",)),
    "grammar": _per_request("grammar", also=("--grammar-file",)),
    "json_schema": _per_request("response_format", also=("-j", "-jf", "--json-schema-file")),
    "reverse_prompt": _per_request("stop", also=("-r",)),
    "special": _per_request("skip_special_tokens", takes=SWITCH, also=("-sp",)),
    "samplers": Refused(remedy=_SAMPLERS, also=("--sampler-seq", "--sampling-seq")),
    "mirostat": _sampler("mirostat", also=("--mirostat-lr", "--mirostat-ent")),
    "xtc_probability": _sampler("xtc_probability", also=("--xtc-threshold",)),
    "dry_multiplier": _sampler(
        "dry_multiplier",
        also=(
            "--dry-base",
            "--dry-allowed-length",
            "--dry-penalty-last-n",
            "--dry-sequence-breaker",
        ),
    ),
    "dynatemp_range": _sampler("dynatemp_range", also=("--dynatemp-exp",)),
    "top_n_sigma": _sampler("top_n_sigma", also=("--top-nsigma",)),
    "adaptive_target": _sampler("adaptive_target", also=("--adaptive-decay",)),
    # Chat, tools, reasoning.
    "jinja": NoEffect(
        why="chat templates are always rendered as Jinja",
        takes=SWITCH,
        values=("true",),
        otherwise="--chat-template names another template",
    ),
    "chat_template_file": Alias(setting="chat_template"),
    "chat_template_kwargs": _per_request("chat_template_kwargs"),
    "skip_chat_parsing": Alias(
        setting="tool_call_parser",
        takes=SWITCH,
        values={"true": "none", "false": "auto"},
        meaning="`none`, or `auto` for the --no- form",
    ),
    "prefill_assistant": _per_request("continue_final_message", takes=SWITCH),
    "reasoning_format": Refused(remedy="--reasoning-parser is what divides answers"),
    "reasoning": _per_request("enable_thinking", also=("-rea",)),
    "reasoning_effort": _per_request("reasoning_effort"),
    "reasoning_budget": _per_request("enable_thinking", also=("--reasoning-budget-message",)),
    "reasoning_preserve": NoEffect(
        why="the chat template decides what it keeps of earlier reasoning", takes=SWITCH
    ),
    "spm_infill": Refused(remedy="write the prompt in the model's own form", takes=SWITCH),
    "escape": Refused(remedy="write the characters themselves", takes=SWITCH, also=("-e",)),
    "tools": Refused(remedy=_NO_TOOLS, also=("--tools-runtime",)),
    "mcp_servers_config": Refused(remedy=_NO_TOOLS, also=("--mcp-servers-json",)),
    "agent": Refused(remedy=_NO_TOOLS, takes=SWITCH, also=("-ag",), off=("-no-ag",)),
    # The HTTP API.
    "cors_origins": Alias(setting="allowed_origins"),
    "cors_methods": Refused(remedy=CORS),
    "cors_headers": Refused(remedy=CORS),
    "cors_credentials": Refused(remedy=CORS, takes=SWITCH),
    "api_prefix": Refused(remedy="let the proxy strip the path"),
    "path": Refused(remedy=_NO_PAGES),
    "webui": NoEffect(
        why=_NO_PAGES,
        takes=SWITCH,
        also=("--ui",),
        values=("false",),
        otherwise=_NO_PAGES,
    ),
    "webui_config": Refused(
        remedy=_NO_PAGES,
        also=("--ui-config", "--webui-config-file", "--ui-config-file", "--ui-mcp-proxy"),
    ),
    "reuse_port": Refused(remedy="each server has a port of its own", takes=SWITCH),
    "api_key_file": Refused(remedy="--api-keys FILE takes what `signalbox keys create` makes"),
    "ssl_key_file": Alias(setting="tls_key"),
    "ssl_cert_file": Alias(setting="tls_cert"),
    "timeout": Refused(remedy="a client's own timeout bounds its request", also=("-to",)),
    "sse_ping_interval": NoEffect(why="a stream carries tokens alone"),
    "metrics": NoEffect(
        why="/metrics is always served",
        takes=SWITCH,
        values=("true",),
        otherwise="hide it in a proxy",
    ),
    "props": Refused(remedy="properties do not change while it serves", takes=SWITCH),
    "slots": NoEffect(
        why="there are no slots",
        takes=SWITCH,
        values=("false",),
        otherwise="`signalbox top` shows what runs",
    ),
    "models_dir": Refused(remedy=_MODELS),
    "models_preset": Refused(remedy=_MODELS),
    "models_max": Refused(remedy="--models-memory bounds what is loaded at a time"),
    "models_autoload": NoEffect(
        why="a model is loaded when it is asked for",
        takes=SWITCH,
        values=("true",),
        otherwise="load and unload models by their names",
    ),
    # Images and audio.
    "mmproj": Refused(remedy=NO_MEDIA, also=("-mm", "--mmproj-url", "-mmu")),
    "mmproj_auto": NoEffect(
        why=NO_MEDIA, takes=SWITCH, off=("--no-mmproj",), values=("false",), otherwise=NO_MEDIA
    ),
    "mmproj_offload": NoEffect(why=NO_MEDIA, takes=SWITCH),
    "mmproj_device": Refused(remedy=NO_MEDIA, also=("-mmdev",)),
    "image_min_tokens": NoEffect(why=NO_MEDIA),
    "image_max_tokens": NoEffect(why=NO_MEDIA),
    "media_path": Refused(remedy=NO_MEDIA),
    # Logs.
    "log_disable": Alias(
        setting="log_level",
        takes=SWITCH,
        values={"true": "error", "false": "info"},
        meaning="`error`",
    ),
    "log_verbosity": Alias(
        setting="log_level",
        also=("-lv", "--verbosity"),
        values=_LEVELS,
        meaning="`error` for 0 and 1, `warning`, `info` and `debug` for 2, 3 and 4",
    ),
    "verbose": Refused(
        remedy="--log-level debug logs more; times are always shown",
        takes=SWITCH,
        also=("-v", "--log-verbose"),
    ),
    "log_jsonl": Alias(
        setting="log_format",
        takes=SWITCH,
        values={"true": "json", "false": "text"},
        meaning="`json`",
    ),
    "log_file": Refused(remedy="send standard error to a file: 2> FILE"),
    "log_prompts_dir": Refused(remedy="--log-requests prompts logs prompts"),
    "log_colors": NoEffect(why="log lines have no colours", takes=OPTIONAL),
    "log_prefix": NoEffect(why="each line names its process", takes=SWITCH),
    "log_timestamps": NoEffect(why="each line has its time", takes=SWITCH),
    "perf": NoEffect(why="times are always measured", takes=SWITCH),
    # `ollama run`.
    "keepalive": Refused(remedy=_STOPS),
    "format": Refused(remedy="--json-schema FILE gives the form; send response_format over HTTP"),
    "think": _per_request("enable_thinking", takes=SWITCH, also=("--hidethinking",)),
    "nowordwrap": NoEffect(why="lines are not broken", takes=SWITCH),
}

SHORT_NAMES: Mapping[str, str] = {"-s": "seed"}
"""llama.cpp's short forms of flags of ours."""
