"""`EngineArgs`: the options of an engine, under vLLM's names. What is not served is refused."""

import argparse
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from gpu_worker.config import AUTO_BLOCK_SIZE, GIB, CacheConfig, DeviceConfig, ModelConfig
from gpu_worker.runner_protocols import Runner
from router.known_templates import load_chat_template
from scheduler_svc.config import PolicyConfig, PreemptionMode
from scheduler_svc.policy import make_policy
from signalbox.llm import cli_args
from signalbox.llm.sampling_params import ALL_TOKENS
from signalbox.llm.vllm_options import VllmOptions
from signalbox.llm.wiring import CoreConfig
from signalbox.startup_display import log_progress

logger = logging.getLogger(__name__)
P = TypeVar("P", bound=cli_args.Flags)

_PROFILER_OPTIONS = {"profiler", "torch_profiler_dir"}

_DTYPES = {"half": "float16", "float": "float32"}
_SAME_AS_AUTO = ("hf", "safetensors", "gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs(VllmOptions):
    """The options; raises ValueError that names the one that is wrong and, if any, the remedy.

    Options of vLLM's without a counterpart here are taken at a neutral value; see `VllmOptions`.

    Args:
        model: a directory in Hugging Face's layout, a .gguf file, or a hub id (org/name).
        tokenizer: a directory or .gguf file to take the tokenizer from; None is the model's own.
        tokenizer_mode: "auto"; there is one kind of tokenizer.
        dtype: of weights and computation: "auto", "float32", "bfloat16", "float16".
        quantization: of weights, on a CPU: "gguf" (the file's own types, run as they are), "int8",
            "int4" (made at load), "none", also None (computes with dtype), or "auto": "gguf" where
            that can be, unless a dtype is set.
        tensor_parallel_size: ranks that the model is divided over: CUDA devices of this machine, or
            processes on its CPU.
        revision: of a hub id: branch, tag or commit.
        seed: of the seeds that requests without one get, so that a script draws the same each
            time; None differs from run to run.
        gpu_memory_utilization: share of a CUDA device's memory that may be used.
        swap_space: GiB of CPU memory for swapped blocks; None is 4, at most a quarter of free
            memory; on a CPU 1, at most a sixteenth.
        max_model_len: longest sequence in tokens; None is the model's window.
        max_num_seqs: most sequences in a step.
        max_num_batched_tokens: most tokens in a step; None suits the device.
        block_size: tokens in a KV-cache block; None takes 16, or what the attention backend takes.
        device: "cpu", "cuda", or "auto": CUDA where there is a device.
        kv_cache_memory: GiB of KV cache; None measures what fits.
        kv_cache_memory_bytes: the same in bytes.
        num_threads: CPU threads of the model; None leaves PyTorch's choice.
        preemption_mode: "swap", "recompute" or "auto", whichever costs less: what happens to the
            blocks of a request that must yield.
        enable_prefix_caching: whether requests share the K and V of prefixes that they have in
            common.
        scheduling_policy: who comes first: "fcfs", "priority", "shortest-prompt", "fair", or your
            own class as "package.module:Class".
        cpu_prefix_cache: whether prefixes that no longer fit are kept in swap space, if that pays.
        load_format: "auto", also as "hf"; "safetensors" or "gguf" if the model must be that;
            "dummy" for random weights of a config.
        model_impl: "auto", "signalbox" or "transformers": whose code computes the model.
        trust_remote_code: whether code that comes with a model may run.
        cpu_backend: "auto", "native" or "torch".
        attention_backend: "auto", "flash_attn", "triton", "torch", or a backend outside the tree.
        enforce_eager: on CUDA, whether decode steps are launched kernel by kernel, not as graphs.
        stream_interval: least tokens of a sequence between two outputs of an engine, the first and
            the last aside.
        disable_additional_properties: whether objects of a JSON schema take only the keys that it
            declares, unless it sets additionalProperties.
        max_logprobs: most log probabilities that a request may ask for at a position; -1 is no
            bound.
        chat_template: a file, or the name of a well-known format, such as "chatml", instead of the
            template that comes with the tokenizer.
        profiler_config: {"torch_profiler_dir": folder} says where `start_profile` leaves traces.
        disable_log_stats: False has an engine log what it does, at most every 10 s of work; `LLM`
            does not unless asked to.
        generation_config: where the parameters of a request without any come from: "auto" (the
            model's generation_config.json, a GGUF file's metadata), "none", or a directory that has
            a generation_config.json.
        override_generation_config: fields that go before those of generation_config.json.
    """

    model: str = field(kw_only=False)
    tokenizer: str | None = None
    tokenizer_mode: str = "auto"
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    dtype: object = "auto"
    quantization: str | None = None
    revision: str | None = None
    seed: int | None = 0
    gpu_memory_utilization: float = 0.9
    swap_space: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    device: str = "auto"
    kv_cache_memory: float | None = None
    num_threads: int | None = None
    preemption_mode: str = "auto"
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    cpu_prefix_cache: bool = True
    load_format: str = "auto"
    model_impl: str = "auto"
    cpu_backend: str = "auto"
    attention_backend: str = "auto"
    enforce_eager: bool = False
    stream_interval: int = 1
    disable_additional_properties: bool = True
    kv_cache_memory_bytes: int | None = None
    max_logprobs: int = 20
    chat_template: str | None = None
    profiler_config: Mapping[str, Any] | None = None
    disable_log_stats: bool = False
    generation_config: str = "auto"
    override_generation_config: Mapping[str, Any] | None = None

    @classmethod
    def add_cli_args(cls, parser: P) -> P:
        """Adds a flag for each option to a parser or a group of one; returns it."""
        return cli_args.add_flags(cls, parser)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Returns the options among what was parsed; others of the program are passed over."""
        return cls(**cli_args.options_of(cls, args))

    def __post_init__(self) -> None:
        if not self.model or not isinstance(self.model, str | Path):
            raise ValueError(f"model is {self.model!r}; give a directory, a .gguf file or a hub id")
        self.check_neutral()
        if self.tokenizer_mode != "auto":
            raise ValueError(
                f"tokenizer_mode={self.tokenizer_mode!r} is not served; leave it 'auto': there is"
                " one kind of tokenizer"
            )
        modes = [mode.value for mode in PreemptionMode]
        if self.preemption_mode not in modes:
            allowed = " or ".join(modes)
            raise ValueError(f"preemption_mode is {self.preemption_mode!r}; it is {allowed}")
        if self.tensor_parallel_size < 1:
            raise ValueError(
                f"tensor_parallel_size is {self.tensor_parallel_size}; it must be at least 1"
            )
        if self.stream_interval < 1:
            raise ValueError(f"stream_interval is {self.stream_interval}; it must be at least 1")
        swap = self.swap_space
        if swap is not None and not 0 <= swap < float("inf"):
            raise ValueError(f"swap_space is {swap} GiB; it must be at least 0")
        memory = self.kv_cache_memory
        if memory is not None and not 0 < memory < float("inf"):
            raise ValueError(f"kv_cache_memory is {memory} GiB; it must be positive")
        if memory is not None and self.kv_cache_memory_bytes is not None:
            raise ValueError("give kv_cache_memory or kv_cache_memory_bytes, not both")
        if self.max_logprobs < ALL_TOKENS:
            raise ValueError(f"max_logprobs is {self.max_logprobs}; it must be at least -1")
        if unknown := sorted(set(self.profiler_config or {}) - _PROFILER_OPTIONS):
            raise ValueError(f"profiler_config: {unknown[0]!r} is not served")

    def make_runner(self) -> Callable[[], Runner]:
        """Returns what loads the model; bad values are refused before."""
        dtype = str(self.dtype).removeprefix("torch.")
        swap = self.swap_space
        model_config = ModelConfig(
            model=str(self.model),
            dtype=_DTYPES.get(dtype, dtype),
            quantization=self.quantization or "none",
            max_model_len=self.max_model_len,
            revision=self.revision,
            load_format=self._load_format(),
            model_impl=self.model_impl,
            trust_remote_code=self.trust_remote_code,
            generation_config=self.generation_config,
            override_generation_config=self.override_generation_config or {},
        )
        cache_config = CacheConfig(
            block_size=self.block_size or AUTO_BLOCK_SIZE,
            swap_space_bytes=None if swap is None else int(swap * GIB),
            gpu_memory_utilization=self.gpu_memory_utilization,
            kv_cache_bytes=self._kv_cache_bytes(),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
        device_config = DeviceConfig(
            device=self.device,
            num_threads=self.num_threads,
            cpu_backend=self.cpu_backend,
            attention_backend=self.attention_backend,
            enforce_eager=self.enforce_eager,
        )

        def make() -> Runner:
            from gpu_worker.ranks.runner import make_runner  # imports torch: seconds

            return make_runner(
                model_config,
                cache_config,
                tensor_parallel_size=self.tensor_parallel_size,
                device_config=device_config,
                progress=log_progress(),
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

    def _kv_cache_bytes(self) -> int | None:
        if self.kv_cache_memory is not None:
            return int(self.kv_cache_memory * GIB)
        return self.kv_cache_memory_bytes

    def core_config(self) -> CoreConfig:
        """Reads the tokenizer, if it is not the model's own."""
        own = self.tokenizer is None or str(self.tokenizer) == str(self.model)
        return CoreConfig(
            preemption_mode=PreemptionMode(self.preemption_mode),
            prefix_caching=self.enable_prefix_caching,
            policy=make_policy(PolicyConfig(name=self.scheduling_policy)),
            cpu_prefix_cache=self.cpu_prefix_cache,
            seed=self.seed,
            stream_interval=self.stream_interval,
            disable_additional_properties=self.disable_additional_properties,
            chat_template=(
                None if self.chat_template is None else load_chat_template(self.chat_template)
            ),
            tokenizer_files=None if own else _tokenizer_files(str(self.tokenizer)),
            max_logprobs=None if self.max_logprobs == ALL_TOKENS else self.max_logprobs,
            profile_folder=(self.profiler_config or {}).get("torch_profiler_dir"),
            log_stats=not self.disable_log_stats,
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
        from gpu_worker.loading.tokenizer import directory_tokenizer_files

        return directory_tokenizer_files(path)
    if path.is_file():
        from gpu_worker.loading.gguf_file import GGUFSource

        return GGUFSource(path).tokenizer_files()
    raise ValueError(
        f"tokenizer is {tokenizer!r}; give a directory or a .gguf file on this machine"
    )
