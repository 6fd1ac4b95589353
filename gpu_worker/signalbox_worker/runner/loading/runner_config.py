"""All settings of a runner, as its ranks get them."""

from dataclasses import dataclass, field

from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig, SpeculationConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.kv.store_config import DiskConfig, SharedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """Settings by group; `parallel` also says which rank it is."""

    model: ModelConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    shared: SharedConfig = field(default_factory=SharedConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
