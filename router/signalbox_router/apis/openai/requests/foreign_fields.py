"""The fields of other servers: what says nothing there, and what becomes of them here.

A field that has the same meaning here is served under our name. One that changes the answer
elsewhere is refused by name, one that does not is ignored and reported. Null, and a value that its
own server has by default, ask for nothing. Each row names the document that states its default.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

REFUSED, IGNORED = "refused", "ignored"

LLAMA_CPP = "llama.cpp: tools/server/README.md, server-task.cpp"
OLLAMA = "Ollama: docs/api.md, api/types.go"
TGI = "TGI: router/src/lib.rs"
SGLANG = "SGLang: srt/entrypoints/openai/protocol.py, docs/basic_usage/sampling_params.md"
VLLM = "vLLM: vllm/entrypoints/*/protocol.py, sampling_params.py"
TRANSFORMERS = "transformers: generation/configuration_utils.py"
WEBUI = "text-generation-webui: extensions/openai/typing.py"
MISTRAL = "Mistral: API reference"
OPENAI = "OpenAI: API reference"
COHERE = "Cohere: API reference"
JINA = "Jina: API reference"
VOYAGE = "Voyage: API reference"
TEI = "TEI: router/src/http/types.rs"
OPENROUTER = "OpenRouter: API reference"
DEEPSEEK = "DeepSeek: API reference"
QWEN = "Qwen: API reference of Model Studio"

_UNSET: tuple[object, ...] = (False, "", [], {})
"""Values by which clients leave a field unset, beside null, if its default is null."""


class Foreign(NamedTuple):
    """A field of another server."""

    server: str
    default: object = None
    does: str = REFUSED
    """REFUSED, IGNORED, or the name of our field with the same meaning."""
    nothing: tuple[object, ...] = ()
    """Values that ask for nothing, beside null and the default."""
    ours: tuple[tuple[object, object], ...] = ()
    """Values of a served field that are other values of ours."""

    @property
    def is_served(self) -> bool:
        return self.does not in (REFUSED, IGNORED)

    def asks_for_nothing(self, value: object) -> bool:
        return value is None or any(_same(value, one) for one in (self.default, *self.nothing))

    def as_ours(self, value: object) -> object:
        return next((ours for foreign, ours in self.ours if _same(value, foreign)), value)


Table = Mapping[str, Foreign]


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) is isinstance(other, bool)


def refused(server: str, *unset: str, **defaults: Any) -> dict[str, Foreign]:
    """Returns fields that change answers: those that are `unset` by default, and others."""
    rows = {name: Foreign(server, nothing=_UNSET) for name in unset}
    return rows | {name: Foreign(server, default) for name, default in defaults.items()}


def ignored(server: str, *unset: str, **defaults: Any) -> dict[str, Foreign]:
    """Returns fields that change no answer, or none without a field that is refused."""
    rows = {**dict.fromkeys(unset), **defaults}
    return {name: Foreign(server, default, IGNORED) for name, default in rows.items()}


_SAMPLERS = ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]

GENERATION: Table = {
    # llama.cpp
    "n_predict": Foreign(LLAMA_CPP, -1, "max_tokens", ours=((-1, None),)),
    "repeat_penalty": Foreign(LLAMA_CPP, 1.0, "repetition_penalty"),
    "n_cmpl": Foreign(LLAMA_CPP, 1, "n"),
    "json_schema": Foreign(LLAMA_CPP, None, "guided_json"),
    "grammar": Foreign(LLAMA_CPP, "", "guided_grammar", ours=(("", None),)),
    "repeat_last_n": Foreign(LLAMA_CPP, 64, nothing=(-1,)),
    "samplers": Foreign(LLAMA_CPP, _SAMPLERS, nothing=(["penalties", *_SAMPLERS],)),
    "dry_sequence_breakers": Foreign(LLAMA_CPP, ["\n", ":", '"', "*"], IGNORED),
    "t_max_predict_ms": Foreign(LLAMA_CPP, 0, nothing=(-1,)),
    "reasoning_format": Foreign(LLAMA_CPP, "auto", nothing=("deepseek",)),
    **refused(
        LLAMA_CPP, "grammar_triggers", "lora", "response_fields", "image_data", "system_prompt",
        "chat_format", "chat_parser",
        mirostat=0, dry_multiplier=0.0, xtc_probability=0.0, top_n_sigma=-1.0, dynatemp_range=0.0,
        adaptive_target=-1.0, min_keep=0, n_indent=0, n_keep=0, n_discard=0, n_probs=0,
        grammar_lazy=False, post_sampling_probs=False, return_tokens=False,
        reasoning_budget_tokens=-1, thinking_budget_tokens=-1, thinking_forced_open=False,
        tfs_z=1.0,
    ),
    # Without the fields that they belong to, these have no effect; those are refused.
    **ignored(
        LLAMA_CPP, "preserved_tokens", "reasoning_budget_start_tag", "reasoning_budget_end_tag",
        "reasoning_budget_message", reasoning_budget_arm_immediately=False, mirostat_tau=5.0,
        mirostat_eta=0.1, dry_base=1.75, dry_allowed_length=2, dry_penalty_last_n=64,
        xtc_threshold=0.1, dynatemp_exponent=1.0, adaptive_decay=0.9,
    ),
    **ignored(
        LLAMA_CPP, "sse_ping_interval", "parse_tool_calls", "t_max_prompt_ms",
        "speculative.n_min", "speculative.n_max", "speculative.p_min", "speculative.type",
        cache_prompt=True, n_cache_reuse=0, id_slot=-1,
        timings_per_token=False, return_progress=False, backend_sampling=False,
    ),
    # Ollama
    "num_predict": Foreign(OLLAMA, -1, "max_tokens", ours=((-1, None),)),
    "format": Foreign(
        OLLAMA, "", "guided_json", ours=(("", None), ("json", {"type": "object"}))
    ),
    **refused(
        OLLAMA, "options", "system", "template", "context", "images", raw=False,
        _debug_render_only=False,
    ),
    "think": Foreign(OLLAMA),  # false turns thinking off, which is on by default
    **ignored(
        OLLAMA, "keep_alive", "shift", "num_ctx", "use_mmap", "main_gpu", num_keep=4,
        num_batch=512, num_gpu=-1, num_thread=0, draft_num_predict=4,
    ),
    # TGI
    "max_new_tokens": Foreign(TGI, None, "max_tokens"),
    "do_sample": Foreign(TGI, True, "temperature", ours=((True, None), (False, 0.0))),
    "truncate": Foreign(TGI, None, "truncate_prompt_tokens"),
    **refused(
        TGI, "parameters", "inputs", "tool_prompt", "top_n_tokens", "adapter_id",
        return_full_text=False, watermark=False, decoder_input_details=False,
    ),
    **ignored(TGI, details=False),
    # SGLang
    "regex": Foreign(SGLANG, None, "guided_regex"),
    "ebnf": Foreign(SGLANG, None, "guided_grammar"),
    "min_new_tokens": Foreign(SGLANG, 0, "min_tokens"),
    "sampling_seed": Foreign(SGLANG, None, "seed"),
    **refused(
        SGLANG, "stop_regex", "lora_path", "session_params", "custom_params", "structural_tag",
        "custom_logit_processor", "images_config", "sampling_params", "input_ids", "task",
        "bootstrap_host", "bootstrap_port", "bootstrap_room", "max_dynamic_patch",
        "min_dynamic_patch", "text", "input_embeds", "audio_data", "return_logprob",
        "top_logprobs_num", "token_ids_logprob", no_stop_trim=False, return_hidden_states=False,
        return_routed_experts=False, return_cached_tokens_details=False,
        return_prompt_token_ids=False, return_meta_info=False, separate_reasoning=True,
        stream_reasoning=True, use_audio_in_video=False,
    ),
    **ignored(
        SGLANG, "rid", "extra_key", "routed_dp_rank", "disagg_prefill_dp_rank",
        "data_parallel_rank", "ngram_corpus_id", "custom_labels", routed_experts_start_len=0,
    ),
    # vLLM
    "guided_decoding_backend": Foreign(VLLM, nothing=(*_UNSET, "auto")),
    **refused(
        VLLM, "guided_whitespace_pattern", "kv_transfer_params", "ec_transfer_params",
        "logits_processors", "mm_processor_kwargs", "media_io_kwargs", "repetition_detection",
        "thinking_token_budget", "vllm_xargs", "watermarking", "return_prompt_text",
        include_reasoning=True, return_weight_versions=False,
    ),
    **ignored(
        VLLM, "session_id", "return_mm_kwargs", return_token_offsets=False, mm_payload="tensors",
        routed_experts_prompt_start=0,
    ),
    # transformers
    "num_return_sequences": Foreign(TRANSFORMERS, 1, "n"),
    "stop_strings": Foreign(TRANSFORMERS, None, "stop"),
    "guidance_scale": Foreign(TRANSFORMERS, None, nothing=(1.0, False)),
    "watermarking_config": Foreign(TRANSFORMERS, nothing=_UNSET),
    **refused(
        TRANSFORMERS, "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id",
        "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
        "sequence_bias", "max_time", "top_h", "decoder_start_token_id",
        "eos_token_id", "bos_token_id", "pad_token_id",
        "negative_prompt", "negative_prompt_ids", "constraints", "force_words_ids",
        max_length=20, min_length=0, num_beams=1, num_beam_groups=1, diversity_penalty=0.0,
        no_repeat_ngram_size=0, encoder_no_repeat_ngram_size=0, encoder_repetition_penalty=1.0,
        epsilon_cutoff=0.0, eta_cutoff=0.0, token_healing=False, remove_invalid_values=False,
        renormalize_logits=False, output_scores=False, output_logits=False,
        output_attentions=False, output_hidden_states=False, return_dict_in_generate=False,
    ),
    **ignored(
        TRANSFORMERS, "cache_implementation", "cache_config", "max_cache_len", "compile_config",
        "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
        "assistant_ensemble_weight", "speculation_type", use_cache=True, use_mtp=False,
        disable_compile=False, low_memory=False, is_assistant=False, num_assistant_tokens=20,
        num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.4,
        assistant_lookbehind=10, target_lookbehind=10,
    ),
    # text-generation-webui
    "grammar_string": Foreign(WEBUI, "", "guided_grammar", ours=(("", None),)),
    **refused(
        WEBUI, "preset", "sampler_priority", "custom_token_bans", dynamic_temperature=False,
        smoothing_factor=0, tfs=1, top_a=0, penalty_alpha=0, mirostat_mode=0,
        repetition_penalty_range=1024, temperature_last=False, truncation_length=0,
        max_tokens_second=0, auto_max_new_tokens=False, ban_eos_token=False, add_bos_token=True,
    ),
    **ignored(WEBUI, dynatemp_low=1, dynatemp_high=1, smoothing_curve=1),
    # Others
    "stop_sequences": Foreign(COHERE, None, "stop"),
    "max_output_tokens": Foreign(OPENAI, None, "max_tokens"),
    "random_seed": Foreign(MISTRAL, None, "seed"),
    **refused(MISTRAL, "prompt_mode", safe_prompt=False),
    **refused(OPENROUTER, "reasoning"),
    "thinking": Foreign(DEEPSEEK),
    **refused(QWEN, "thinking_budget", enable_search=False, enable_thinking=False),
    **ignored(OPENAI, "prediction"),
}  # fmt: skip

COMPLETION: Table = {
    **GENERATION,
    **refused(VLLM, "prompt_embeds", "chat_template", "chat_template_kwargs"),
    "return_full_text": Foreign(TGI, False, "echo"),
    "input_suffix": Foreign(LLAMA_CPP, nothing=_UNSET),
    "input_prefix": Foreign(LLAMA_CPP, nothing=_UNSET),
    "input_extra": Foreign(LLAMA_CPP, nothing=_UNSET),
    "logprob_start_len": Foreign(SGLANG, -1),
    "top_logprobs": Foreign(OLLAMA, 0),
    # Those of OpenAI's chats
    "max_completion_tokens": Foreign(OPENAI, None, "max_tokens"),
    "tool_choice": Foreign(OPENAI, "none", nothing=("auto",)),
    "modalities": Foreign(OPENAI, ["text"]),
    **refused(OPENAI, "messages", "tools", "reasoning_effort", parallel_tool_calls=True),
}

_OF_CHATS = (
    "include_reasoning", "enable_thinking", "reasoning", "thinking_token_budget", "prediction",
)  # fmt: skip
"""Fields that only chats have; a chat's body declares them."""
OLDER_NAMES = {"max_completion_tokens": "max_tokens"}
"""Fields of a chat, and the name of completions that each precedes."""
_OURS = {older: name for name, older in OLDER_NAMES.items()}

CHAT: Table = {
    **{
        name: row._replace(does=_OURS.get(row.does, row.does))
        for name, row in GENERATION.items()
        if name not in _OF_CHATS
    },
    "json_schema": Foreign(LLAMA_CPP, None, "guided_json", ours=(({}, {"type": "object"}),)),
    **refused(
        OPENAI, "audio", "functions", "moderation", function_call="none",
        verbosity="medium",
    ),
    "thinking_budget": Foreign(QWEN, None, "thinking_token_budget"),
    "continue_": Foreign(WEBUI, False, "continue_final_message"),
    "instruction_template_str": Foreign(WEBUI, None, "chat_template"),
    **refused(
        WEBUI, "instruction_template", "character", "chat_template_str", "greeting", "user_bio",
        mode="instruct", impersonate=False,
    ),
    "web_search_options": Foreign(OPENAI),  # an empty object searches with the defaults
    **refused(VLLM, "documents", add_special_tokens=False),
    **refused(OPENAI, "prompt", "suffix"),
}  # fmt: skip

PROMPT_CACHE_OPTIONS: Table = {
    **refused(OPENAI, prewarm=False),
    **ignored(OPENAI, "comparison_response_id"),
}
ADAPTER: Table = refused(VLLM, is_3d_lora_weight=False)
STRUCTURED_OUTPUTS: Table = refused(
    VLLM, "whitespace_pattern", "structural_tag", "_backend", disable_any_whitespace=False,
    disable_additional_properties=False, _backend_was_auto=False,
)  # fmt: skip

REASONING: Table = {
    **refused(OPENROUTER, "max_tokens", "summary", "generate_summary"),
    "enabled": Foreign(OPENROUTER),
}
MESSAGE: Table = {
    **refused(OLLAMA, "images"),
    **refused(SGLANG, "tools"),
    **refused(DEEPSEEK, prefix=False),
    **refused(QWEN, partial=False),
    "thinking": Foreign(OLLAMA, "", "reasoning"),
    "tool_name": Foreign(OLLAMA, "", "name"),
}
TOOL: Table = refused(SGLANG, "defer_loading")
FUNCTION: Table = {**TOOL, "arguments": Foreign(TGI, None, "parameters")}

TOKENIZE: Table = {
    "content": Foreign(LLAMA_CPP, None, "prompt"),
    "add_special": Foreign(LLAMA_CPP, None, "add_special_tokens"),
    "with_pieces": Foreign(LLAMA_CPP, False),
    "parse_special": Foreign(LLAMA_CPP, True),
    "tool_choice": Foreign(SGLANG, None, nothing=("auto",)),
    **refused(VLLM, "media_io_kwargs", "mm_processor_kwargs"),
}

POOLING: Table = {
    **refused(VLLM, "mm_processor_kwargs", "media_io_kwargs", padding="do_not_pad"),
    **ignored(OLLAMA, "keep_alive"),
    **refused(OLLAMA, "options"),
    **refused(SGLANG, "lora_path", "embed_override_token_id"),
    **ignored(SGLANG, "rid"),
    "truncate": Foreign(TEI, False, "truncate_prompt_tokens", ours=((True, -1), (False, None))),
    "truncation": Foreign(VOYAGE, True, "truncate_prompt_tokens", ours=((True, -1), (False, None))),
    "truncation_direction": Foreign(
        TEI, "right", "truncation_side", ours=(("Right", "right"), ("Left", "left"))
    ),
}
INPUT: Table = {
    **POOLING,
    **refused(VLLM, "chat_template", "chat_template_kwargs"),
    **refused(COHERE, "input_type"),
    "messages": Foreign(VLLM),
}
ENCODED: Table = {
    **INPUT,
    **refused(LLAMA_CPP, embd_normalize=2),
    **refused(JINA, late_chunking=False),
    "embedding_type": Foreign(JINA, "float", "encoding_format"),
    "normalized": Foreign(JINA, True, "normalize"),
    "output_dimension": Foreign(VOYAGE, None, "dimensions"),
    "output_dtype": Foreign(VOYAGE, "float", "embed_dtype", ours=(("float", "float32"),)),
    **refused(SGLANG, "embed_overrides"),
}
EMBEDDING: Table = {**ENCODED, **refused(JINA, "task")}
SCORE: Table = {
    **POOLING,
    **refused(VLLM, "chat_template_kwargs", max_tokens_per_query=0, max_tokens_per_doc=0),
    **refused(
        SGLANG, "label_token_ids", "query_embed_overrides", "item_embed_overrides",
        apply_softmax=False, item_first=False, return_pooled_hidden_states=False,
    ),
}  # fmt: skip
RERANK: Table = {
    **SCORE,
    "max_tokens_per_doc": Foreign(COHERE, 4096, nothing=(0,)),
    "max_chunks_per_doc": Foreign(COHERE, 10, nothing=(1,)),
    "rank_fields": Foreign(COHERE, nothing=(*_UNSET, ["text"])),
    "instruct": Foreign(SGLANG, None, "instruction"),
    "top_k": Foreign(VOYAGE, None, "top_n"),
    "raw_scores": Foreign(TEI, False, "use_activation", ours=((True, False), (False, None))),
    "return_text": Foreign(TEI, False, "return_documents", ours=((False, None),)),
}
COHERE_EMBED: Table = refused(COHERE, "images")
