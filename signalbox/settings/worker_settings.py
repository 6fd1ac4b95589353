"""Settings of a worker: its model or simulation, its device, and its scheduler."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rpc.settings.addresses import Address, Host, HostOrAddress
from rpc.settings.quantities import renamed, window
from rpc.settings.service_settings import (
    InnerSettings,
    LimitSettings,
    NameSettings,
    SettingsGroup,
    flag_name,
)
from signalbox.settings.values.generation_config import GenerationConfig

_VLLM_ATTENTION = {"FLASH_ATTN": "flash_attn", "TRITON_ATTN": "triton", "TORCH_SDPA": "torch"}


class ModelSettings(SettingsGroup):
    """Settings of a worker with a model; none apply to a simulated worker."""

    GROUP: ClassVar[str] = "model and device"

    model: str | None = Field(
        None, description="a GGUF file, a Hugging Face directory, or a hub id such as org/name"
    )
    revision: str | None = Field(None, description="branch, tag or commit of a hub id")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="device that runs the model")
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        BeforeValidator(renamed({"half": "float16", "float": "float32"})),
    ] = Field(
        "auto", description="type of weights, activations and KV cache; auto suits model and device"
    )
    quantization: Literal["auto", "none", "gguf", "int8", "int4"] = Field(
        "none",
        description="of weights, on a CPU: gguf runs a file's own types as they are, int8 and int4"
        " are made at load, none computes with --dtype; auto is gguf where that can be, unless a"
        " dtype is set",
    )
    tensor_parallel_size: int = Field(
        1,
        gt=0,
        description="ranks that a worker divides the model over: CUDA devices of this machine, or"
        " processes on its CPU",
    )
    num_threads: int | None = Field(
        None, gt=0, description="CPU threads of a worker (default: its share of the cores)"
    )
    cpu_backend: Literal["auto", "native", "torch"] = Field(
        "auto",
        description="what computes on a CPU; auto is native (C++) where it can run the model",
    )
    attention_backend: Annotated[str, BeforeValidator(renamed(_VLLM_ATTENTION))] = Field(
        "auto",
        description="flash_attn, triton, torch, an installed package's or module:factory; auto is"
        " the fastest that works here; on a CPU any other name turns --cpu-backend native off",
    )
    sampling_backend: Literal["auto", "native", "triton", "torch"] = Field(
        "auto",
        description="what samples tokens; auto is native (C++) on a CPU, and triton on CUDA where"
        " it works",
    )
    enforce_eager: bool = Field(
        False,
        description="on CUDA: whether decode steps are launched kernel by kernel, not as graphs,"
        " which start sooner and take some memory",
    )
    swap_space: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="GiB of CPU memory for swapped blocks (default: 4, at most a quarter of free"
        " RAM; on a CPU 1, at most a sixteenth)",
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="share of a CUDA device's memory that this worker may use"
    )
    kv_cache_memory: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="GiB of KV cache (default: on CUDA what --gpu-memory-utilization leaves; on a"
        " CPU 2, at most an eighth of free RAM)",
    )
    load_format: Annotated[
        Literal["auto", "dummy"],
        BeforeValidator(renamed({"safetensors": "auto", "gguf": "auto"})),
    ] = Field("auto", description="dummy makes weights up, for a MODEL that is config.json alone")
    model_plugin: str | None = Field(
        None, description="Python modules that register models, separated by commas"
    )
    model_impl: Annotated[
        Literal["auto", "signalbox", "transformers"],
        BeforeValidator(renamed({"vllm": "signalbox"})),
    ] = Field("auto", description="whose code runs the model; auto is ours where there is one")
    trust_remote_code: bool = Field(
        False, description="allow code in the model's repository to run on this machine"
    )
    generation_config: str = Field(
        "auto",
        description="where default sampling parameters come from: auto is the model's"
        " generation_config.json or GGUF metadata; none; or a directory with a"
        " generation_config.json",
    )


class SimulationSettings(SettingsGroup):
    """Settings of a simulated worker."""

    GROUP: ClassVar[str] = "simulation"

    simulate: bool = Field(False, description="no model: tokens that check the block tables")
    simulated_gpu_blocks: int = Field(4096, gt=0, description="KV-cache blocks it pretends to have")
    simulated_cpu_blocks: int = Field(512, ge=0, description="swap blocks it pretends to have")
    simulated_step_ms: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="least time of a step"
    )
    simulated_token_us: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="time of each token of a step, on top"
    )


class EngineSettings(ModelSettings, SimulationSettings, NameSettings):
    """Settings of a worker with a model or a simulated one."""

    GROUP: ClassVar[str] = "model and device"

    override_generation_config: GenerationConfig | None = Field(
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
    block_size: int | None = Field(
        None,
        gt=0,
        le=256,
        description="tokens in a KV-cache block (default: 16, or what the attention backend takes)",
    )
    grammar_memory: int = Field(
        1024,
        gt=0,
        description="MiB for compiled structured outputs; a request whose own does not fit waits"
        " until others have ended",
    )

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if self.simulate:
            useless = self.model_fields_set & ModelSettings.model_fields.keys()
        else:
            useless = self.model_fields_set & SimulationSettings.model_fields.keys()
        useless -= {"simulate"}
        if "model" in useless:
            raise ValueError("--simulate takes no MODEL; leave one of them out")
        if useless:
            state = "with" if self.simulate else "without"
            raise ValueError(f"{flag_name(min(useless))} has no effect {state} --simulate")
        if not self.simulate and self.model is None:
            raise ValueError("give a MODEL (a .gguf file, a directory, a hub id) or --simulate")
        return self


class WorkerSettings(EngineSettings, LimitSettings, InnerSettings):
    """`signalbox worker`."""

    GROUP: ClassVar[str] = "addresses"

    host: Host = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="port to listen on; 0 picks one")
    scheduler: Address = Field("127.0.0.1:50052", description="HOST:PORT of the scheduler to join")
    advertise: HostOrAddress | None = Field(
        None, description="HOST or HOST:PORT where the scheduler reaches this worker, if not --host"
    )
