"""Everything that can be set, from flags, environment and a YAML file alike.

A flag beats the environment (SIGNALBOX_PORT for --port), which beats the file (`port:`), which
beats the default. What vLLM calls EngineArgs; `signalbox.configs` makes the services' frozen
configuration objects of it.
"""

import os
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from signalbox.environment import ENV_PREFIX

CONFIG_FILE = "config"

S = TypeVar("S", bound="Settings")


class Settings(BaseSettings):
    """What every command takes."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe log lines on standard error"
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="of log lines; json is one object a line, for collectors of logs"
    )
    debug: bool = Field(False, description="show tracebacks instead of one-line errors")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(init_settings, InitSettingsSource)
        path = init_settings.init_kwargs.pop(CONFIG_FILE, None)
        file_values = _read_file(Path(path), settings_cls) if path else {}
        return init_settings, env_settings, InitSettingsSource(settings_cls, file_values)


class TlsSettings(Settings):
    """Of every service: how its ports and channels are protected."""

    tls_cert: str | None = Field(
        None, description="PEM file: this process's certificate and chain; its ports speak TLS"
    )
    tls_key: str | None = Field(None, description="PEM file: the certificate's private key")
    tls_ca: str | None = Field(
        None,
        description="PEM file: who vouches for the services that this one calls; its channels"
        " speak TLS",
    )
    tls_client_ca: str | None = Field(
        None,
        description="PEM file: who vouches for clients; each must then show a certificate (mTLS)",
    )
    insecure: bool = Field(
        False,
        description="whether ports that others reach may be in the clear, or open to anybody; only"
        " in a network that you trust",
    )
    allow_peer_names: str = Field(
        "",
        description="names in the certificates of peers, as ROLE=NAME,...; roles are router,"
        " scheduler, worker and operator, whose default is router or router.* and so on",
    )


class TelemetrySettings(TlsSettings):
    """Of every service."""

    trace_exporter: str = Field(
        "auto",
        description="where spans go: none, console, otlp or otlp=URL (gRPC), otlp-http or"
        " otlp-http=URL, file=PATH (OTLP as JSON, for `signalbox trace`); auto is what"
        " OTEL_TRACES_EXPORTER says",
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port where Prometheus reads /metrics, on --host; 0 picks one; with serve it is"
        " the router's, and scheduler and workers take the next ones (default: none)",
    )
    metrics_prefix: Literal["signalbox", "vllm"] = Field(
        "signalbox", description="what metrics begin with; vllm suits dashboards made for it"
    )
    metrics_exporter: str = Field(
        "auto",
        description="where the same metrics, and OpenTelemetry's gen_ai.server, are sent: none,"
        " otlp or otlp=URL (gRPC), otlp-http or otlp-http=URL; auto is what OTEL_METRICS_EXPORTER"
        " says",
    )
    drain_timeout: float = Field(
        30.0,
        ge=0,
        description="seconds that running requests are given after SIGTERM; then a worker hands"
        " them over to others, and the other services end them",
    )


class ModelSettings(TelemetrySettings):
    """Of a worker with a model: which, where, how much KV cache. None apply to a simulated one."""

    model: str | None = Field(
        None, description="a GGUF file, a Hugging Face directory, or a hub id such as org/name"
    )
    revision: str | None = Field(None, description="of a hub id: branch, tag or commit")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the model runs")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of weights, activations and KV cache; auto suits model and device"
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
        "auto", description="who computes on a CPU; auto is our C++ where it can run the model"
    )
    attention_backend: str = Field(
        "auto",
        description="triton, torch or one of a plugin; auto is triton on CUDA where it is"
        " installed, and a name but auto keeps a CPU's steps from our C++",
    )
    sampling_backend: Literal["auto", "native", "triton", "torch"] = Field(
        "auto",
        description="who draws tokens; auto is our C++ on a CPU and triton on CUDA where it works",
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
        description="GiB of CPU memory for swapped blocks (default: 4, less where RAM is short)",
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="share of a CUDA device's memory that this worker may use"
    )
    kv_cache_memory: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="GiB of KV cache (default: measured)"
    )
    load_format: Literal["auto", "dummy"] = Field(
        "auto", description="dummy makes weights up, for a MODEL that is config.json alone"
    )
    model_plugin: str | None = Field(
        None, description="Python modules that register models, separated by commas"
    )
    model_impl: Literal["auto", "signalbox", "transformers"] = Field(
        "auto", description="whose code runs the model; auto is ours where there is one"
    )
    trust_remote_code: bool = Field(
        False, description="whether code in the model's repository may run on this machine"
    )


class SimulationSettings(TelemetrySettings):
    """Of a simulated worker."""

    simulate: bool = Field(False, description="no model: tokens that check the block tables")
    simulated_gpu_blocks: int = Field(4096, gt=0, description="KV-cache blocks it pretends to have")
    simulated_cpu_blocks: int = Field(512, ge=0, description="swap blocks it pretends to have")
    simulated_step_ms: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="least time of a step"
    )
    simulated_token_us: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="time of each token of a step, on top"
    )


class EngineSettings(ModelSettings, SimulationSettings):
    """Of a worker of either kind."""

    served_model_name: str | None = Field(
        None, description="the name that requests use (default: made from MODEL)"
    )
    max_model_len: int | None = Field(
        None, gt=1, description="longest sequence in tokens (default: the model's window)"
    )
    block_size: int = Field(16, gt=0, le=256, description="tokens in a KV-cache block")

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if self.simulate:
            useless = self.model_fields_set & ModelSettings.model_fields.keys()
        else:
            useless = self.model_fields_set & SimulationSettings.model_fields.keys()
        useless -= TelemetrySettings.model_fields.keys() | {"simulate"}
        if "model" in useless:
            raise ValueError("--simulate takes no MODEL; leave one of them out")
        if useless:
            state = "with" if self.simulate else "without"
            raise ValueError(f"{flag_name(min(useless))} has no effect {state} --simulate")
        if not self.simulate and self.model is None:
            raise ValueError("give a MODEL (a .gguf file, a directory, a hub id) or --simulate")
        return self


class LimitSettings(TelemetrySettings):
    """Of a step; the scheduler keeps within its own and each worker's."""

    max_num_seqs: int = Field(256, gt=0, description="most sequences in a step")
    max_num_batched_tokens: int | None = Field(
        None,
        gt=0,
        description="most tokens in a step (default: what suits the device, 512 on a CPU)",
    )


class PolicySettings(LimitSettings):
    """Of the scheduler."""

    scheduling_policy: str = Field(
        "fcfs",
        pattern=r"^(fcfs|priority|shortest-prompt|fair|[\w.]+:\w+)$",
        description="who comes first: fcfs, priority, shortest-prompt, fair (equal service to"
        " tenants), or your own class as package.module:Class",
    )
    ageing: float = Field(
        60.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds of waiting that make up for one step of priority, or for 1,000 tokens"
        " of prompt under shortest-prompt",
    )
    fair_input_weight: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="what a prompt token counts for under fair"
    )
    fair_output_weight: float = Field(
        2.0, ge=0, allow_inf_nan=False, description="what a generated token counts for under fair"
    )
    preemption_mode: Literal["auto", "swap", "recompute"] = Field(
        "auto",
        description="what happens to the blocks of a group that must yield; auto takes what costs"
        " less by the worker's measured rates",
    )
    watermark: float = Field(
        0.01, ge=0, lt=1, description="share of the blocks that admission leaves free"
    )
    prefix_caching: bool = Field(
        True, description="whether requests share the KV cache of prefixes they have in common"
    )
    cpu_prefix_cache: bool = Field(
        True, description="whether prefixes that no longer fit are kept in swap space, if that pays"
    )
    num_gpu_blocks_override: int | None = Field(
        None, gt=0, description="use so many of each worker's KV-cache blocks"
    )
    num_cpu_blocks_override: int | None = Field(
        None, ge=0, description="use so many of each worker's swap blocks"
    )
    max_steps_in_flight: int = Field(
        2, ge=1, le=2, description="2 plans the next step while one runs"
    )
    max_queued_requests: int = Field(
        4096, gt=0, description="requests that may wait; more are refused"
    )
    max_queued_tokens: int | None = Field(
        None, gt=0, description="prompt tokens that may wait; more are refused (default: unbounded)"
    )
    max_tenant_requests: int | None = Field(
        None,
        gt=0,
        description="requests of one tenant that may wait or run; more are refused (default:"
        " unbounded)",
    )
    worker_wait: float = Field(
        30.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds that accepted requests wait for a worker when none is left for them",
    )
    explain_history: int = Field(
        1024,
        ge=0,
        description="requests that `signalbox explain` can still explain after their end",
    )
    log_stats_interval: float = Field(
        10.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds between two log lines on what each worker does, while it does"
        " something; 0 writes none",
    )
    record: str | None = Field(
        None,
        description="file for the scheduler's decisions and all that they depend on, for `signalbox"
        " replay`; it holds the token ids of prompts and outputs, for its owner alone to read",
    )


class DoorSettings(TelemetrySettings):
    """Of the router."""

    resume_wait: float = Field(
        30.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds that a request whose scheduler is lost waits for one to go on at",
    )
    client_stall_timeout: float = Field(
        60.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds after which a stream ends whose client reads nothing of it",
    )
    max_live_requests: int = Field(
        4096, gt=0, description="requests that may run or wait; more are refused"
    )
    api_keys: str | None = Field(
        None,
        description="YAML file of the API keys that clients must show; `signalbox keys create`"
        " makes its entries",
    )
    log_requests: Literal["none", "ends", "prompts"] = Field(
        "none",
        description="whether each request's end is logged, with its numbers; prompts logs their"
        " text as well",
    )
    trust_tenant_header: bool = Field(
        False,
        description="whether metadata x-signalbox-tenant says whose a request is; only behind a"
        " gateway that sets it",
    )
    reflection: bool | None = Field(
        None, description="whether gRPC reflection is served (default: on a loopback --host)"
    )
    http: bool = Field(True, description="whether OpenAI's HTTP API is served")
    http_port: int = Field(
        8000, ge=0, le=65535, description="port of the HTTP API, on --host; 0 picks one"
    )
    tool_call_parser: Literal["auto", "hermes", "llama3_json", "mistral", "json", "none"] = Field(
        "auto",
        description="how tool calls are found in the model's text; auto goes by its chat template,"
        " none leaves them there",
    )


class RouterSettings(DoorSettings):
    """`signalbox router`."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(50051, ge=0, le=65535, description="port to listen on; 0 picks one")
    scheduler: str = Field(
        "127.0.0.1:50052",
        description="HOST:PORT of the scheduler, or of several with commas between them",
    )


class SchedulerSettings(PolicySettings):
    """`signalbox scheduler`."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(50052, ge=0, le=65535, description="port to listen on; 0 picks one")


class WorkerSettings(EngineSettings, LimitSettings):
    """`signalbox worker`."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="port to listen on; 0 picks one")
    scheduler: str = Field("127.0.0.1:50052", description="HOST:PORT of the scheduler to join")
    advertise: str | None = Field(
        None, description="HOST or HOST:PORT where the scheduler reaches this worker, if not --host"
    )


class ServeSettings(EngineSettings, PolicySettings, DoorSettings):
    """`signalbox serve`: all three on this machine."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(50051, ge=0, le=65535, description="port to listen on; 0 picks one")
    workers: int = Field(1, gt=0, description="worker processes to start")

    @model_validator(mode="after")
    def _meets_on_the_loopback(self) -> Self:
        for name in ("tls_ca", "allow_peer_names"):
            if getattr(self, name):
                raise ValueError(
                    f"{flag_name(name)} has no effect on serve, whose services meet on this"
                    " machine's loopback interface; start them one by one"
                )
        return self


class DemoSettings(ServeSettings):
    """`signalbox demo`: as serve, where nothing else listens."""

    port: int = Field(0, ge=0, le=65535, description="port to listen on; 0 picks one")
    http: bool = Field(False, description="whether OpenAI's HTTP API is served")

    @model_validator(mode="after")
    def _is_in_the_clear(self) -> Self:
        for name in ("tls_cert", "tls_key", "tls_client_ca", "api_keys"):
            if getattr(self, name):
                raise ValueError(f"demo takes no {flag_name(name)}; use serve")
        return self


SERVICES: tuple[type[Settings], ...] = (
    ServeSettings,
    RouterSettings,
    SchedulerSettings,
    WorkerSettings,
)


class SettingsError(ValueError):
    """A setting is wrong; says which and why in one line."""


def load(settings_class: type[S], flags: dict[str, Any]) -> S:
    """Returns the settings of a command.

    Args:
        flags: those that were given on the command line; "config" is the YAML file.
    """
    config_file = flags.get(CONFIG_FILE) or os.environ.get(ENV_PREFIX + "CONFIG")
    values: dict[str, Any] = {**flags, CONFIG_FILE: config_file}
    try:
        return settings_class(**values)
    except ValidationError as error:
        raise SettingsError(_in_one_line(error)) from None


def flag_name(field: str) -> str:
    """Returns the flag of a field."""
    return "--" + field.replace("_", "-")


def _read_file(path: Path, settings_class: type[BaseSettings]) -> dict[str, Any]:
    """Returns the file's settings for this command; one file may serve several commands."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise SettingsError(f"cannot read --config {path}: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"--config {path}: expected `setting: value` lines")
    values = {str(name).replace("-", "_"): value for name, value in content.items()}
    known = {field for service in SERVICES for field in service.model_fields}
    if unknown := values.keys() - known:
        raise SettingsError(f"--config {path}: no setting is called {min(unknown)}")
    return {name: values[name] for name in values if name in settings_class.model_fields}


def _in_one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # several settings do not fit together
        return reason
    name = flag_name(str(first["loc"][0]))
    return f"{name} is {first['input']!r}: {reason[0].lower()}{reason[1:]}"
