"""`EngineArgs`: the options of an engine, under vLLM's names; unsupported ones raise ValueError."""

import argparse
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, TypeVar

from signalbox.llm import options_flags
from signalbox.llm.engine_options import InProcessSettings, checked, description_of, earlier, option
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.llm.requests.field_checks import ALL_TOKENS
from signalbox.llm.vllm_options import VllmOptions
from signalbox.settings.vllm_flags import POOLING_TASKS
from signalbox.stack.processes.startup_display import own_progress
from signalbox_router.prompt.chat.known_templates import load_chat_template
from signalbox_scheduler.queue.policies import make_policy
from signalbox_worker.config import (
    GIB,
    NUM_LATER_ADAPTERS,
    USUAL_LORA_RANK,
)
from signalbox_worker.runner.runner import Runner

logger = logging.getLogger(__name__)
P = TypeVar("P", bound=options_flags.Flags)

_SAME_AS_AUTO = ("hf", "safetensors", "gguf")


class ProfilerConfig(TypedDict, total=False):
    """`profiler_config` of an engine."""

    profiler: Literal["torch"]
    torch_profiler_dir: str
    """Folder in which `start_profile` leaves traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs(VllmOptions):
    """The options; raises ValueError that names the one that is wrong and, if any, the remedy.

    Options of vLLM's without a counterpart here are taken at a neutral value; see `VllmOptions`.

    Those that are settings of a service have their default, range and meaning, which
    docs/reference/configuration.md lists; `dtype` may be PyTorch's too, and None as `quantization`
    is "auto". The others are:

    Args:
        tokenizer: a directory or .gguf file to take the tokenizer from; None is the model's own.
        tokenizer_mode: "auto"; there is one kind of tokenizer.
        seed: of the seeds that requests without one get, so that a script draws the same each
            time; None differs from run to run.
        kv_cache_memory_bytes: as kv_cache_memory, in bytes.
        load_format: "auto", also as "hf"; "safetensors" or "gguf" if the model must be that;
            "dummy" for random weights of a config.
        enable_lora: whether requests may name LoRA adapters, which are loaded when the first does;
            their largest rank is max_lora_rank, by default 16. Memory is reserved for
            max_cpu_loras of them, by default 16.
        stream_interval: least tokens of a sequence between two outputs of an engine, the first and
            the last aside.
        max_logprobs: most log probabilities that a request may ask for at a position; -1 is no
            bound.
        profiler_config: see `ProfilerConfig`.
        disable_log_stats: False has an engine log what it does, at most every log_stats_interval
            seconds of work; `LLM` does not unless asked to.
    """

    model: str = field(
        kw_only=False, metadata={"setting": "model", "help": description_of("model")}
    )
    tokenizer: str | None = None
    tokenizer_mode: str = "auto"
    trust_remote_code: bool = option("trust_remote_code")
    tensor_parallel_size: int = option("tensor_parallel_size")
    pipeline_parallel_size: int = option("pipeline_parallel_size")
    pipeline_layer_partition: str | None = option("pipeline_layer_partition")
    runner: str = option("runner")
    convert: str = option("convert")
    dtype: object = option("dtype")
    quantization: str | None = option("quantization", default=None)
    revision: str | None = option("revision")
    seed: int | None = 0
    gpu_memory_utilization: float = option("gpu_memory_utilization")
    kv_cache_dtype: str = option("kv_cache_dtype")
    swap_space: float | None = option("swap_space")
    kv_disk: str | None = option("kv_disk")
    kv_disk_space: float | None = option("kv_disk_space")
    kv_disk_daily_writes: float | None = option("kv_disk_daily_writes")
    kv_store: str | None = option("kv_store")
    kv_store_key: str | None = option("kv_store_key")
    kv_store_password: str | None = option("kv_store_password")
    max_model_len: int | None = option("max_model_len")
    max_num_seqs: int = option("max_num_seqs")
    max_num_batched_tokens: int | None = option("max_num_batched_tokens")
    block_size: int | None = option("block_size")
    device: str = option("device")
    kv_cache_memory: float | None = option("kv_cache_memory")
    num_threads: int | None = option("num_threads")
    preemption_mode: str = option("preemption_mode")
    enable_prefix_caching: bool = option("prefix_caching")
    scheduling_policy: str = option("scheduling_policy")
    priority_aging_s: float = option("priority_aging_s")
    prefill_spread_steps: int = option("prefill_spread_steps", default=1)  # as in `SCHEDULING`
    watermark: float = option("watermark")
    cpu_prefix_cache: bool = option("cpu_prefix_cache")
    num_gpu_blocks_override: int | None = option("num_gpu_blocks_override")
    max_steps_in_flight: int | None = option("max_steps_in_flight")
    log_stats_interval: float = option("log_stats_interval")
    load_format: str = "auto"
    packed_weights: str = option("packed_weights")
    model_plugin: str | None = option("model_plugin")
    model_impl: str = option("model_impl")
    cpu_backend: str = option("cpu_backend")
    attention_backend: str = option("attention_backend")
    sampling_backend: str = option("sampling_backend")
    linear_backend: str = option("linear_backend")
    enforce_eager: bool = option("enforce_eager")
    max_cudagraph_capture_size: int = option("max_cudagraph_capture_size")
    kernel_cache: str | None = option("kernel_cache")
    enable_lora: bool = False
    max_loras: int | None = option("max_loras")
    max_lora_rank: int | None = option("max_lora_rank")
    max_cpu_loras: int | None = option("max_cpu_loras")
    grammar_memory: int = option("grammar_memory")
    speculation: bool | None = option("speculation")
    speculative_config: Mapping[str, Any] | None = option("speculative_config")
    draft_model: str | None = option("draft_model")
    recent_outputs: int = option("recent_outputs")
    stream_interval: int = 1
    disable_additional_properties: bool = option("disable_additional_properties")
    kv_cache_memory_bytes: int | None = None
    max_logprobs: int = 20
    chat_template: str | None = option("chat_template")
    profiler_config: Mapping[str, Any] | None = None
    disable_log_stats: bool = False
    generation_config: str = option("generation_config")
    override_generation_config: Mapping[str, Any] | None = option("override_generation_config")
    ageing: float | None = earlier("priority_aging_s")
    prefill_spread: int | None = earlier("prefill_spread_steps")

    @classmethod
    def add_cli_args(cls, parser: P) -> P:
        """Adds a flag for each option to a parser or a group of one; returns it."""
        return options_flags.add_flags(cls, parser)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Returns the options of a parsed namespace; other arguments of the program are ignored."""
        return cls(**options_flags.options_of(cls, args))

    def __post_init__(self) -> None:
        if not self.model or not isinstance(self.model, str | Path):
            raise ValueError(f"model is {self.model!r}; give a directory, a .gguf file or a hub id")
        self.check_neutral()
        if self.tokenizer_mode != "auto":
            raise ValueError(
                f"tokenizer_mode={self.tokenizer_mode!r} is not served; leave it 'auto': there is"
                " one kind of tokenizer"
            )
        if self.stream_interval < 1:
            raise ValueError(f"stream_interval is {self.stream_interval}; it must be at least 1")
        if self.kv_cache_memory is not None and self.kv_cache_memory_bytes is not None:
            raise ValueError("give kv_cache_memory or kv_cache_memory_bytes, not both")
        if self.max_logprobs < ALL_TOKENS:
            raise ValueError(f"max_logprobs is {self.max_logprobs}; it must be at least -1")
        for name, value in (self.profiler_config or {}).items():
            is_known = name in ProfilerConfig.__annotations__
            if value and (not is_known or (name == "profiler" and value != "torch")):
                raise ValueError(f"profiler_config: {name!r} = {value!r} is not served")
        self.settings()

    def settings(self) -> InProcessSettings:
        """Returns the options that are settings. Raises ValueError for one out of range."""
        replaced: dict[str, Any] = {"load_format": self._load_format()}
        if self.task in POOLING_TASKS:
            replaced["runner"] = "pooling"
        if self.enable_lora and self.max_lora_rank is None:
            replaced["max_lora_rank"] = USUAL_LORA_RANK
        if self.enable_lora and self.max_cpu_loras is None:
            replaced["max_cpu_loras"] = NUM_LATER_ADAPTERS
        if self.kv_cache_memory_bytes is not None:
            replaced["kv_cache_memory"] = self.kv_cache_memory_bytes / GIB
        return checked(self, **replaced)

    def make_runner(self) -> Callable[[], Runner]:
        """Returns a function that loads the model; invalid values are refused before."""
        settings = self.settings()
        config = settings.runner_config
        for notice in settings.speculation_notices:
            logger.info("%s", notice)

        def make() -> Runner:
            from signalbox_worker.service.runner_factory import (
                make_runner,  # may import torch: seconds
            )

            with own_progress() as progress:
                return make_runner(
                    config,
                    progress=progress,
                    on_lost=partial(logger.error, "%s; the engine is dead"),  # this process goes on
                )

        return make

    def _load_format(self) -> str:
        if self.load_format not in _SAME_AS_AUTO:
            return self.load_format
        is_gguf = str(self.model).endswith(".gguf")
        if is_gguf is (self.load_format == "gguf") or self.load_format == "hf":
            return "auto"
        raise ValueError(f"load_format is {self.load_format!r}, and {self.model} is not that")

    def core_config(self) -> CoreConfig:
        """Returns the core's options; reads the tokenizer if it is not the model's own."""
        own = self.tokenizer is None or str(self.tokenizer) == str(self.model)
        settings = self.settings()
        make_policy(settings)  # refuses one that cannot be used before the model is loaded
        return CoreConfig(
            scheduling=settings,
            grammar_bytes=settings.grammar_memory << 20,
            seed=self.seed,
            stream_interval=self.stream_interval,
            disable_additional_properties=settings.disable_additional_properties,
            chat_template=load_chat_template(settings.chat_template),
            tokenizer_files=None if own else _tokenizer_files(str(self.tokenizer)),
            max_logprobs=None if self.max_logprobs == ALL_TOKENS else self.max_logprobs,
            profile_folder=(self.profiler_config or {}).get("torch_profiler_dir"),
            enable_lora=self.enable_lora,
            log_stats=not self.disable_log_stats and settings.log_stats_interval > 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncEngineArgs(EngineArgs):
    """`EngineArgs` of an `AsyncLLMEngine`.

    Args:
        enable_log_requests: whether each request is logged when it comes.
        disable_log_requests: the same the other way round, as older programs write it; None leaves
            it to the other.
    """

    enable_log_requests: bool = False
    disable_log_requests: bool | None = None

    @property
    def logs_requests(self) -> bool:
        if self.disable_log_requests is None:
            return self.enable_log_requests
        return not self.disable_log_requests


def _tokenizer_files(tokenizer: str) -> dict[str, bytes]:
    path = Path(tokenizer).expanduser()
    if path.is_dir():
        from signalbox_worker.runner.loading.tokenizer_files import directory_tokenizer_files

        return directory_tokenizer_files(path)
    if path.is_file():
        from signalbox_worker.runner.loading.gguf_model import GGUFSource

        return GGUFSource(path).tokenizer_files()
    raise ValueError(
        f"tokenizer is {tokenizer!r}; give a directory or a .gguf file on this machine"
    )
