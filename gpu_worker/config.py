"""Configuration of a worker: model, cache, parallelism, device. An invalid value raises an error
that names it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.sampling_defaults import check_override

DTYPES = ("auto", "float32", "bfloat16", "float16")
LOAD_FORMATS = ("auto", "dummy")
MODEL_IMPLS = ("auto", "signalbox", "transformers")
DEVICES = ("auto", "cpu", "cuda")
QUANTIZATIONS = ("auto", "none", "gguf", "int8", "int4")
CPU_BACKENDS = ("auto", "native", "torch")
SAMPLING_BACKENDS = ("auto", "native", "triton", "torch")
GIB = 1 << 30
AUTO_BLOCK_SIZE = 0
USUAL_BLOCK_SIZE = 16


class ModelError(ValueError):
    """The model cannot be served; the message is one line and names the remedy."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how its weights are held."""

    model: str
    """A directory in Hugging Face's layout, a .gguf file, or a hub id such as "org/name"."""
    served_name: str | None = None
    """Name that clients use; None takes it from `model`."""
    dtype: str = "auto"
    max_model_len: int | None = None
    """Longest sequence in tokens; None takes the model's own limit."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    model_impl: str = "auto"
    """"signalbox", "transformers", or "auto": ours where there is one, else transformers'."""
    trust_remote_code: bool = False
    """True allows Python code in the model's directory, for models that transformers lacks."""

    quantization: str = "none"
    """"none", "gguf" (the file's own types, run as they are), "int8", "int4" (made at load), or
    "auto": "gguf" where that is possible and no dtype is asked for."""
    load_format: str = "auto"
    """"auto", or "dummy": random weights of the model's config.json."""
    model_plugins: tuple[str, ...] = ()
    """Modules that are imported before the model is looked up, to register theirs."""
    generation_config: str = "auto"
    """Source of the default sampling parameters: "auto" (the model), "none", or a directory with a
    generation_config.json."""
    override_generation_config: Mapping[str, Any] = field(default_factory=dict)
    """Fields that go before those of generation_config.json."""

    def __post_init__(self) -> None:
        _require(bool(self.model), "model is empty; give a directory, a .gguf file or a hub id")
        _require(self.dtype in DTYPES, f"dtype is {self.dtype!r}; use one of {', '.join(DTYPES)}")
        _require(
            self.max_model_len is None or self.max_model_len >= 2,
            f"max_model_len is {self.max_model_len}; it must be at least 2",
        )
        _require(
            self.quantization in QUANTIZATIONS,
            f"quantization is {self.quantization!r}; use one of {', '.join(QUANTIZATIONS)}",
        )
        _require(
            self.load_format in LOAD_FORMATS,
            f"load_format is {self.load_format!r}; use one of {', '.join(LOAD_FORMATS)}",
        )
        try:
            check_override(self.override_generation_config)
        except ValueError as error:
            raise ValueError(f"override_generation_config: {error}") from None
        _require(
            self.model_impl in MODEL_IMPLS,
            f"model_impl is {self.model_impl!r}; use one of {', '.join(MODEL_IMPLS)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Size of the KV cache, and of the largest step."""

    block_size: int = AUTO_BLOCK_SIZE
    """Tokens in a block; AUTO_BLOCK_SIZE lets the attention backend choose."""
    swap_space_bytes: int | None = None
    """RAM for swapped-out blocks; 0 turns swapping off, None takes up to 4 GiB (on a CPU 1)."""
    gpu_memory_utilization: float = 0.9
    """Share of a CUDA device's memory for weights, activations and KV cache together."""
    kv_cache_bytes: int | None = None
    """Size of the KV cache; None measures what fits (on a CPU at most 2 GiB)."""
    max_num_seqs: int = 256
    """Most sequences in one step."""
    max_num_batched_tokens: int | None = None
    """Most tokens computed in one step; None takes 512 on a CPU and 8192 on CUDA."""

    def __post_init__(self) -> None:
        size = self.block_size
        _require(
            size == AUTO_BLOCK_SIZE or (1 <= size <= 256 and size & (size - 1) == 0),
            f"block_size is {size}; it must be a power of two up to 256",
        )
        _require(
            self.swap_space_bytes is None or self.swap_space_bytes >= 0,
            f"swap_space_bytes is {self.swap_space_bytes}; it must be at least 0",
        )
        _require(
            0.0 < self.gpu_memory_utilization <= 1.0,
            f"gpu_memory_utilization is {self.gpu_memory_utilization}; it must be in (0, 1]",
        )
        _require(
            self.kv_cache_bytes is None or self.kv_cache_bytes > 0,
            f"kv_cache_bytes is {self.kv_cache_bytes}; it must be positive",
        )
        _require(
            self.max_num_seqs >= 1, f"max_num_seqs is {self.max_num_seqs}; it must be at least 1"
        )
        tokens = self.max_num_batched_tokens
        _require(
            tokens is None or tokens >= self.max_num_seqs,
            f"max_num_batched_tokens is {tokens}; "
            f"it must be at least max_num_seqs ({self.max_num_seqs})",
        )

    def num_batched_tokens(self, device_type: str) -> int:
        """Returns max_num_batched_tokens or its default: on a CPU a longer step would delay
        decodes."""
        default = 8192 if device_type == "cuda" else 512
        return self.max_num_batched_tokens or max(default, self.max_num_seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Place of this process in its tensor-parallel group."""

    rank: int = 0
    tensor_parallel_size: int = 1
    rendezvous: str | None = None
    """A file, not there yet, where ranks find each other."""

    def __post_init__(self) -> None:
        size = self.tensor_parallel_size
        _require(size >= 1, f"tensor_parallel_size is {size}; it must be at least 1")
        _require(
            0 <= self.rank < self.tensor_parallel_size,
            f"rank is {self.rank}; it must be in [0, {self.tensor_parallel_size})",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Device and implementations that run the model."""

    device: str = "auto"
    """"cpu", "cuda", or "auto": CUDA where there is a device."""
    num_threads: int | None = None
    """CPU threads for tensor math; None leaves PyTorch's choice."""
    attention_backend: str = "auto"
    """A name of the registry in `gpu_worker.attention`, or "auto": the fastest that serves."""
    cpu_backend: str = "auto"
    """"native", "torch", or "auto": whole steps in C++ where the model has a program for it."""
    sampling_backend: str = "auto"
    """"native" (C++, on a CPU), "triton", "torch", or "auto": the fastest that works here."""
    enforce_eager: bool = False
    """True launches every kernel by itself on CUDA, without graphs."""

    def __post_init__(self) -> None:
        _require(
            self.cpu_backend in CPU_BACKENDS,
            f"cpu_backend is {self.cpu_backend!r}; use one of {', '.join(CPU_BACKENDS)}",
        )
        _require(
            self.sampling_backend in SAMPLING_BACKENDS,
            f"sampling_backend is {self.sampling_backend!r}; "
            f"use one of {', '.join(SAMPLING_BACKENDS)}",
        )
        _require(
            self.device in DEVICES, f"device is {self.device!r}; use one of {', '.join(DEVICES)}"
        )
        _require(
            self.num_threads is None or self.num_threads >= 1,
            f"num_threads is {self.num_threads}; it must be at least 1",
        )
