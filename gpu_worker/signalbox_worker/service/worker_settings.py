"""Settings of `signalbox worker`: a runner or a simulation, and the addresses of the service."""

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from signalbox_contract.worker_role import WorkerRole
from signalbox_rpc.settings.addresses import Address, Host, HostOrAddress, Port
from signalbox_rpc.settings.service_settings import (
    HostSettings,
    InnerSettings,
    LimitSettings,
    NameSettings,
    SettingsGroup,
    flag_name,
)
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.kv.store_config import DiskConfig, SharedConfig, check_stores
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.simulated.group_option import groups_as_text
from signalbox_worker.speculation_settings import SpeculationSettings


def _numbers(value: Any) -> Any:
    """Returns numbers of layers as text; a YAML file may give a list."""
    if value is None:
        return None
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if not re.fullmatch(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*", text):
        raise ValueError("it must be whole numbers of at least 1, with commas between them")
    return text


def _placement(text: str) -> str:
    if not re.fullmatch(r"local|environment|ray(=.+)?", text):
        raise ValueError("it must be local, environment, ray or ray=ADDRESS")
    return text


class SimulationSettings(SettingsGroup):
    """Settings of a simulated worker."""

    GROUP: ClassVar[str] = "simulation"

    simulate: bool = Field(False, description="compute no model; the tokens check the block tables")
    simulated_gpu_blocks: int = Field(4096, gt=0, description="simulated KV-cache blocks")
    simulated_cpu_blocks: int = Field(512, ge=0, description="simulated swap blocks")
    simulated_store_blocks: int = Field(
        0, ge=0, description="simulated blocks of a store behind the swap blocks"
    )
    simulated_groups: Annotated[str, BeforeValidator(groups_as_text)] = Field(
        "full",
        description="simulated groups of layers, with commas between them: full keeps the blocks of"
        " all tokens, window:512 those of the last 512, state:3 recurrent layers, whose states"
        " take 3 blocks",
    )
    simulated_step_ms: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="least time of a step"
    )
    simulated_token_us: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="additional time for each token of a step"
    )
    simulated_pooling: Literal["last", "mean", "bidirectional", "token_embed", "rerank"] | None = (
        Field(
            None,
            description="make a vector of each prompt instead of tokens: an embedding of the last"
            " token or the mean of a causal model, or the mean of one whose attention sees both"
            " ways; token_embed makes one of each token that way, and rerank a score (default:"
            " tokens)",
        )
    )


class EngineSettings(
    ModelConfig,
    CacheConfig,
    SharedConfig,
    DiskConfig,
    DeviceConfig,
    SpeculationSettings,
    SimulationSettings,
):
    """Settings of a worker with a model or a simulated one."""

    GROUP: ClassVar[str] = "model and device"
    OF_BOTH: ClassVar[frozenset[str]] = frozenset(
        (
            *NameSettings.model_fields,
            *LimitSettings.model_fields,
            *SpeculationSettings.model_fields,
            "override_generation_config",
            "max_model_len",
            "block_size",
            "grammar_memory",
            "pipeline_parallel_size",
            "pipeline_layer_partition",
            "lora",
            "adapter_dir",
        )
    )
    """Settings that a simulated worker has, too."""

    tensor_parallel_size: int = Field(
        1,
        gt=0,
        description="ranks that a worker divides each layer over: CUDA devices of this machine, or"
        " processes on its CPU",
    )
    pipeline_parallel_size: int = Field(
        1,
        gt=0,
        description="stages that a worker divides the layers into, each on tensor-parallel-size"
        " ranks; steps pass through them one after another",
    )
    pipeline_layer_partition: Annotated[str | None, BeforeValidator(_numbers)] = Field(
        None,
        description="layers of each stage, such as 10,12,8 (default: divided by bytes, the"
        " head included); with --simulate shares of the stages in a step's time",
    )
    grammar_memory: int = Field(
        1024,
        gt=0,
        description="MiB for compiled structured outputs; a request whose own does not fit waits"
        " until others have ended",
    )

    @property
    def lists_models(self) -> bool:
        """True if models are named elsewhere than in `model`."""
        return False

    @property
    def parallel(self) -> ParallelConfig:
        partition = self.pipeline_layer_partition or ""
        return ParallelConfig(
            tensor_parallel_size=self.tensor_parallel_size,
            pipeline_parallel_size=self.pipeline_parallel_size,
            layer_partition=tuple(map(int, filter(None, partition.split(",")))),
        )

    @model_validator(mode="after")
    def _is_of_as_many_stages(self) -> Self:
        counts, num_stages = self.parallel.layer_partition, self.pipeline_parallel_size
        if counts and len(counts) != num_stages:
            raise ValueError(
                f"pipeline_layer_partition has {len(counts)} numbers, and pipeline_parallel_size is"
                f" {num_stages}; give one for each stage"
            )
        return self

    @model_validator(mode="after")
    def _can_have_a_store(self) -> Self:
        insecure = getattr(self, "insecure", False)
        check_stores(self, self, swap_space=self.swap_space, is_trusted=insecure)
        return self

    @property
    def runner_config(self) -> RunnerConfig:
        return RunnerConfig(
            model=self.part(ModelConfig),
            cache=self.part(CacheConfig),
            device=self.part(DeviceConfig),
            parallel=self.parallel,
            disk=self.part(DiskConfig),
            shared=self.part(SharedConfig),
            speculation=self.speculation_config,
        )

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        simulation = SimulationSettings.model_fields.keys()
        others = EngineSettings.model_fields.keys() - simulation - self.OF_BOTH
        useless = self.model_fields_set & (others if self.simulate else simulation)
        useless -= {"simulate"}
        if "model" in useless:
            raise ValueError("--simulate takes no MODEL; leave one of them out")
        if self.simulate and self.speculation_config.model:
            raise ValueError("--simulate has no draft model; leave --draft-model out")
        if useless:
            state = "with" if self.simulate else "without"
            raise ValueError(f"{flag_name(min(useless))} has no effect {state} --simulate")
        if not self.simulate and not self.model and not self.lists_models:
            raise ValueError("give a MODEL (a .gguf file, a directory, a hub id) or --simulate")
        return self


class PlacementSettings(SettingsGroup):
    """The launcher of a worker's ranks, and the addresses on which they listen."""

    GROUP: ClassVar[str] = "placement of ranks"

    placement: Annotated[str, AfterValidator(_placement)] = Field(
        "local",
        description="what starts the ranks of the worker: local is this command; environment is"
        " torchrun, Slurm or a LeaderWorkerSet, which starts it once for each rank; ray or"
        " ray=ADDRESS is a Ray cluster",
    )
    rank_host: Host | None = Field(
        None,
        description="without --placement local, name, address or interface (eth0) that a rank"
        " listens on (default: loopback if all ranks are on one host, else what leads to rank 0)",
    )
    rank_port: Port = Field(
        50100,
        gt=0,
        description="without --placement local, port of rank 0; rank R has the one R above it",
    )
    placement_strategy: Literal["PACK", "STRICT_PACK", "SPREAD"] = Field(
        "PACK",
        description="with --placement ray, nodes of the stages: as few as can be, one, or as many"
        " as can be; the tensor-parallel ranks of a stage are always on one",
    )
    placement_timeout: float = Field(
        60.0, gt=0, description="with --placement ray, seconds to wait for resources in use"
    )

    @property
    def is_on_ray(self) -> bool:
        return self.placement.startswith("ray")

    @model_validator(mode="after")
    def _has_ranks_to_place(self) -> Self:
        on_ray = {"placement_strategy", "placement_timeout"}
        useless, needed = self.model_fields_set & {"rank_host", "rank_port", *on_ray}, ""
        if self.placement == "local":
            needed = "--placement ray or environment"
        elif not self.is_on_ray:
            useless, needed = useless & on_ray, "--placement ray"
        if useless and needed:
            raise ValueError(f"{flag_name(min(useless))} has no effect without {needed}")
        if self.placement != "local" and getattr(self, "simulate", False):
            raise ValueError(f"--placement {self.placement} has no effect with --simulate")
        return self


class WorkerSettings(HostSettings, EngineSettings, PlacementSettings, InnerSettings):
    """`signalbox worker`."""

    GROUP: ClassVar[str] = "addresses"

    port: Port = Field(0, description="port to listen on; 0 picks one")
    scheduler: Address = Field("127.0.0.1:50052", description="HOST:PORT of the scheduler to join")
    role: WorkerRole = Field(
        WorkerRole.BOTH,
        description="what the worker computes in a pool whose scheduler divides the work: prompts"
        " (prefill), tokens after the first (decode), or both; a role that no worker has is taken"
        " by the others",
    )
    advertise: HostOrAddress | None = Field(
        None, description="HOST or HOST:PORT where the scheduler reaches this worker, if not --host"
    )

    @model_validator(mode="after")
    def _can_have_a_role(self) -> Self:
        if self.role is WorkerRole.BOTH:
            return self
        if self.runner == "pooling" or self.simulated_pooling is not None:
            raise ValueError("a model that pools has no tokens to decode; leave --role out")
        if self.swap_space == 0:
            raise ValueError(
                f"--role {self.role} takes swap space, through which requests are handed over;"
                " raise --swap-space"
            )
        return self
