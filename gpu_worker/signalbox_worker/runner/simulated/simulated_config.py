"""Properties of a simulated worker."""

import hashlib
from dataclasses import dataclass

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup, check_groups
from signalbox_contract.model import Adapter, Numerics
from signalbox_contract.pooling import PoolingModel
from signalbox_contract.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.runner.loading.byte_tokenizer import MIN_VOCAB_SIZE

SIMULATED = Numerics(factors="uint64", kernels="simulated", kv_cache_dtype="uint64")
SIMULATED_ARITHMETIC = hashlib.sha256(b"simulated").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedConfig:
    """Properties that the simulated worker announces."""

    name: str = "simulated"
    vocab_size: int = 512
    max_model_len: int = 4096
    block_size: int = 16
    groups: tuple[CacheGroup, ...] = (FULL_GROUP,)
    """Groups of layers; each has what a token writes in a block of its own, or its states."""
    num_gpu_blocks: int = 4096
    num_cpu_blocks: int = 512
    num_store_blocks: int = 0
    """Blocks of a store in memory that outlives leases; 0 is none."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    step_ns: int = 0
    """Least time of a forward pass."""
    token_ns: int = 0
    """Time of each token of a forward pass, on top of step_ns."""
    stages: tuple[int, ...] = (1,)
    """Shares of the pipeline stages in the time of a forward pass."""
    sampling_defaults: SamplingDefaults = NO_DEFAULTS
    numerics: Numerics = SIMULATED
    arithmetic: str = SIMULATED_ARITHMETIC
    adapters: tuple[Adapter, ...] = ()
    """Adapters, each of which changes what its requests write to their slots."""
    speculation: SpeculationConfig = SpeculationConfig()  # noqa: RUF009 (it is immutable)
    """Drafts of the sequences."""
    pooling: PoolingModel | None = None
    """None generates."""

    def __post_init__(self) -> None:
        if self.vocab_size < MIN_VOCAB_SIZE:
            raise ValueError(f"vocab_size must be at least {MIN_VOCAB_SIZE}")
        sizes = ("max_model_len", "block_size", "max_num_seqs", "max_num_batched_tokens")
        for name in (*sizes, "num_gpu_blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not self.stages or min(self.stages) < 1:
            raise ValueError("a stage has a share of at least 1")
        for name in ("num_cpu_blocks", "num_store_blocks", "step_ns", "token_ns"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        check_groups(self.groups)
        if self.num_store_blocks and not self.num_cpu_blocks:
            raise ValueError("a store needs CPU blocks, through which its blocks pass")
