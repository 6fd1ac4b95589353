"""Settings of a worker that a runner needs: model, KV cache and device."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from signalbox_contract.sections.drafts import MAX_DRAFT_TOKENS, DraftSource
from signalbox_rpc.settings.quantities import renamed, texts, window
from signalbox_rpc.settings.service_settings import LimitSettings, NameSettings, SettingsGroup
from signalbox_worker.adapter_option import AdapterOption, name_and_path
from signalbox_worker.generation_fields import GenerationOverride

GIB = 1 << 30
INT16 = "int16"
"""Value of `--dtype`: float32, but blocks are multiplied with codes of 16 bits."""
MAX_GIB = 1 << 30  # an exbibyte
AUTO_BLOCK_SIZE = 0
USUAL_BLOCK_SIZE = 16
USUAL_LORA_RANK = 16
"""vLLM's max_lora_rank."""
NUM_LATER_ADAPTERS = 16
"""Adapters of run time for which memory is reserved, unless max_cpu_loras says for how many."""
_VLLM_ATTENTION = {
    "FLASH_ATTN": "flash_attn",
    "FLASHINFER": "flashinfer",
    "TRITON_ATTN": "triton",
    "TORCH_SDPA": "torch",
}


class ModelError(ValueError):
    """The model cannot be served; the message is one line and names the remedy."""


def _power_of_two(size: int | None) -> int | None:
    if size is not None and size & (size - 1):
        raise ValueError("it must be a power of two")
    return size


QuantizationName = Literal[
    "auto",
    "none",
    "gguf",
    "int8",
    "int4",
    "fp8",
    "awq",
    "gptq",
    "compressed-tensors",
    "bitsandbytes",
    "modelopt",
    "mxfp4",
]
"""Values of `--quantization`."""
_OTHER_NAMES_OF_FORMS = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "modelopt_fp4": "modelopt",
}
"""vLLM's."""


class ModelConfig(NameSettings):
    """The model, and the form of its weights."""

    GROUP: ClassVar[str] = "model and device"

    model: str = Field(
        "", description="a GGUF file, a Hugging Face directory, or a hub id such as org/name"
    )
    revision: str | None = Field(None, description="branch, tag or commit of a hub id")
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int16"],
        BeforeValidator(renamed({"half": "float16", "float": "float32"})),
    ] = Field(
        "auto",
        description="type of activations and all weights that are not quantised, and of the KV"
        " cache unless --kv-cache-dtype says otherwise; auto suits model and device. int16 is"
        " float32, but on a CPU activations are rounded to 16 bits where they multiply blocks and"
        " whole numbers, which gives nearly all tokens of float32 in less time",
    )
    quantization: Annotated[
        QuantizationName,
        BeforeValidator(renamed(_OTHER_NAMES_OF_FORMS)),
    ] = Field(
        "auto",
        description="form of the weights. auto is that of the model where it can be multiplied: on"
        " a CPU the blocks of a GGUF file, awq, gptq, mxfp4, NVFP4 and the whole numbers of"
        " compressed-tensors, in 8 bits unless --dtype is float32 or int16, and in floats fp8 and"
        " bitsandbytes; on CUDA 4 bits and fp8. Elsewhere it is decoded. gguf, awq, gptq, mxfp4,"
        " compressed-tensors, bitsandbytes and modelopt refuse a model where that is so, and"
        " another form; int8 and int4 are made at load on a CPU, fp8 on CUDA. none multiplies"
        " floats of --dtype",
    )
    load_format: Annotated[
        Literal["auto", "dummy"],
        BeforeValidator(renamed({"safetensors": "auto", "gguf": "auto"})),
    ] = Field("auto", description="dummy makes random weights, for a MODEL of config.json alone")
    packed_weights: str = Field(
        "auto",
        min_length=1,
        description="where a CPU's packed weights are kept, so that later starts neither read nor"
        " pack the model: auto is a folder of the user's cache, for weights of 1 GiB and more; off;"
        " or a folder. At most 20 GiB, the least recently used first removed",
    )
    model_plugin: str | None = Field(
        None, description="Python modules that register models, separated by commas"
    )
    model_impl: Annotated[
        Literal["auto", "signalbox", "transformers"],
        BeforeValidator(renamed({"vllm": "signalbox"})),
    ] = Field("auto", description="implementation of the model; auto is signalbox where it has one")
    runner: Literal["auto", "generate", "pooling"] = Field(
        "auto",
        description="what the worker makes of a prompt: generate continues it, pooling makes one"
        " vector of its hidden states, an embedding or scores; auto is pooling for directories of"
        " sentence-transformers, encoders and classifiers",
    )
    convert: Annotated[
        Literal["auto", "embed", "classify"], BeforeValidator(renamed({"none": "auto"}))
    ] = Field(
        "auto",
        description="with --runner pooling, what vectors are; auto is what the model's files say,"
        " which are embeddings unless it is a classifier. classify makes a decoder's answer yes or"
        " no, as Qwen3-Reranker's, a score",
    )
    trust_remote_code: bool = Field(
        False,
        description="allow code in the model's repository, and in others that its config.json"
        " names, to run on this machine",
    )
    generation_config: str = Field(
        "auto",
        min_length=1,
        description="where default sampling parameters come from: auto is the model's"
        " generation_config.json or GGUF metadata; none; or a directory with a"
        " generation_config.json",
    )
    override_generation_config: GenerationOverride | None = Field(
        None,
        description="JSON object whose temperature, top_p, top_k, min_p, repetition_penalty and"
        " max_new_tokens are defaults before the model's, as --generation-config would read them",
    )
    max_model_len: Annotated[int | None, BeforeValidator(window)] = Field(
        None,
        gt=1,
        description="longest sequence in tokens, such as 8192, 8k (8,000) or 8K (8,192) (default:"
        " the model's window)",
    )

    lora: AdapterOption = Field(
        (),
        description="LoRA adapters, NAME=PATH[,NAME=PATH...], in folders as PEFT saves them;"
        " requests name one as their model",
    )
    max_lora_rank: int | None = Field(
        None,
        gt=0,
        description="largest rank that an adapter may have; a larger one is refused (default: any;"
        " with --adapter-dir 16, or more if an adapter of --lora has more)",
    )
    max_cpu_loras: int | None = Field(
        None,
        gt=0,
        description="adapters of --max-lora-rank for which memory is reserved at the start; more"
        " smaller ones share it, and one that does not fit is refused (default: those of --lora,"
        " and with --adapter-dir 16 more)",
    )
    adapter_dir: Path | None = Field(
        None,
        description="folder below which are the adapters that may be loaded at run time (default:"
        " none may)",
    )

    @property
    def adapters(self) -> tuple[tuple[str, str], ...]:
        """Name and folder of each adapter."""
        return tuple(map(name_and_path, self.lora))

    @property
    def num_later_adapters(self) -> int:
        """Adapters of run time for which memory is reserved by default."""
        return 0 if self.adapter_dir is None else NUM_LATER_ADAPTERS

    @property
    def served_name(self) -> str | None:
        """Name of the model in answers; None makes one of `model`."""
        return next(iter(self.served_model_name), None)

    @property
    def plugins(self) -> tuple[str, ...]:
        """Modules that register models."""
        return tuple(texts(self.model_plugin or ""))

    @property
    def generation_override(self) -> dict[str, Any]:
        """Fields that take precedence over those of generation_config.json."""
        return dict(json.loads(self.override_generation_config or "{}"))


class CacheConfig(LimitSettings):
    """Type and size of the KV cache, and size of the largest step."""

    GROUP: ClassVar[str] = "model and device"

    block_size: Annotated[int | None, AfterValidator(_power_of_two)] = Field(
        None,
        gt=0,
        le=256,
        description="tokens in a KV-cache block (default: 16, or what the attention backend takes)",
    )
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8", "fp8"],
        BeforeValidator(renamed({"fp8_e4m3": "fp8", "int8_per_token_head": "int8"})),
    ] = Field(
        "auto",
        description="type of K and V in the cache; auto is that of --dtype, or float32 on a CPU"
        " without instructions for bfloat16. bfloat16 takes half the memory of 32-bit K and V and"
        " rounds them; int8, with a scale for each token and head, and fp8 (E4M3), with the"
        " checkpoint's scales, take about half of that. PyTorch takes the type of --dtype and those"
        " of 8 bits",
    )
    swap_space: float | None = Field(
        None,
        ge=0,
        le=MAX_GIB,
        allow_inf_nan=False,
        description="GiB of RAM for KV blocks that are swapped or cached, through which those of"
        " --kv-disk, --kv-store and other workers pass (default: 4, at most a quarter of free RAM;"
        " on a CPU 1, at most a sixteenth)",
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="share of a CUDA device's memory that this worker may use"
    )
    kv_cache_memory: float | None = Field(
        None,
        gt=0,
        le=MAX_GIB,
        allow_inf_nan=False,
        description="GiB of KV cache (default: on CUDA what --gpu-memory-utilization leaves; on a"
        " CPU 2, at most an eighth of free RAM)",
    )

    @property
    def swap_space_bytes(self) -> int | None:
        return None if self.swap_space is None else int(self.swap_space * GIB)

    @property
    def kv_cache_bytes(self) -> int | None:
        return None if self.kv_cache_memory is None else int(self.kv_cache_memory * GIB)

    @model_validator(mode="after")
    def _has_a_token_for_each_sequence(self) -> Self:
        tokens, is_simulated = self.max_num_batched_tokens, getattr(self, "simulate", False)
        if tokens is not None and tokens < self.max_num_seqs and not is_simulated:
            raise ValueError(
                f"max_num_batched_tokens is {tokens}; "
                f"it must be at least max_num_seqs ({self.max_num_seqs})"
            )
        return self

    def num_batched_tokens(self, device_type: str) -> int:
        """Returns max_num_batched_tokens or its default: on a CPU a longer step would delay
        decodes."""
        default = 8192 if device_type == "cuda" else 512
        return self.max_num_batched_tokens or max(default, self.max_num_seqs)


class DeviceConfig(SettingsGroup):
    """Device and implementations that run the model."""

    GROUP: ClassVar[str] = "model and device"

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="device that runs the model")
    num_threads: int | None = Field(
        None, gt=0, description="CPU threads of a worker (default: its share of the cores)"
    )
    cpu_backend: Literal["auto", "native", "torch"] = Field(
        "auto",
        description="implementation on a CPU; auto is native (C++) where it can run the model",
    )
    attention_backend: Annotated[str, BeforeValidator(renamed(_VLLM_ATTENTION))] = Field(
        "auto",
        description="flash_attn, flashinfer, triton, triton_pdl, triton_plain, torch, an installed"
        " package's or module:factory; auto is the fastest that works here; on a CPU any other name"
        " turns --cpu-backend native off",
    )
    sampling_backend: Literal["auto", "native", "triton", "torch"] = Field(
        "auto",
        description="implementation of sampling; auto is native (C++) on a CPU, and triton on CUDA"
        " where it works; on a CPU any other name turns --cpu-backend native off",
    )
    linear_backend: Literal["auto", "triton", "torch"] = Field(
        "auto",
        description="on CUDA, implementation of products of up to 16 rows in bfloat16 for the Llama"
        " family; triton fuses them with norms, activation and sums; auto is the faster that works;"
        " on a CPU any other name turns --cpu-backend native off",
    )
    enforce_eager: bool = Field(
        False,
        description="on CUDA, launch steps kernel by kernel; graphs start sooner and take some"
        " memory",
    )
    max_cudagraph_capture_size: int = Field(
        2048,
        ge=0,
        description="on CUDA, tokens of the largest step with prompts that is recorded as a graph;"
        " 0 records steps of decodes alone",
    )
    kernel_cache: Path | None = Field(
        None,
        description="folder for kernels that are compiled for a GPU, which only this user may write"
        " (default: TRITON_CACHE_DIR, or signalbox in the user's cache)",
    )


_USUAL_SOURCES = (DraftSource.GRAMMAR, DraftSource.PREDICTION, DraftSource.TEXT)
_DRAFT_SOURCES = (*_USUAL_SOURCES, DraftSource.RECENT, DraftSource.PACKAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Number and sources of the drafts that a worker computes."""

    num_tokens: int = 0
    """Most drafts of a sequence in one step; 0 computes none."""
    is_default: bool = False
    """True if nobody asked for drafts, so that there are none where rows computed together may
    differ from rows computed alone in their last bits."""
    sources: tuple[DraftSource, ...] = _USUAL_SOURCES
    """Sources of drafts; the first is preferred among equally long matches."""
    min_match: int = 2
    """Least number of newest tokens that must occur in a text, for what follows them to be
    drafted."""
    max_match: int = 64
    """Most tokens that are compared; the longest match is taken."""
    matcher_bytes: int = 64 << 20
    """Memory of the indices of all texts; a token takes 16 to 40 bytes."""
    model: str = ""
    """Model that drafts: a directory, a .gguf file or a hub id; empty is none."""
    revision: str | None = None
    """Branch, tag or commit of it, if it is a hub id."""
    mtp: bool = False
    """Lets the MTP layer of the served model draft."""
    recent_bytes: int = 0
    """Memory of recent outputs and their indices, of the source RECENT; a token takes some 25
    bytes."""
    method: str = ""
    """Method of the package that brings the source PACKAGE."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_tokens <= MAX_DRAFT_TOKENS:
            most = MAX_DRAFT_TOKENS
            raise ValueError(f"{self.num_tokens} drafts in a step; there are from 0 to {most}")
        if not 1 <= self.min_match <= self.max_match:
            raise ValueError(
                f"a match has from {self.min_match} to {self.max_match} tokens; the least must be"
                " from 1 to the most"
            )
        if other := [source.name for source in self.sources if source not in _DRAFT_SOURCES]:
            raise ValueError(f"drafts do not come from {other[0]} yet")
