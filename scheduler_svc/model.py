"""What workers serve and hold, in the scheduler's terms."""

from dataclasses import dataclass, fields

from rpc.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from scheduler_svc.config import StepLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The served model; see worker.proto."""

    name: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    tokenizer_sha256: str
    sampling_defaults: SamplingDefaults = NO_DEFAULTS

    def difference(self, other: "ModelInfo") -> str | None:
        """Names the first field in which another model differs, with both values."""
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if mine != theirs:
                return f"{entry.name} is {theirs!r}, but the scheduler serves {mine!r}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapacity:
    """How much a worker can hold; see worker.proto."""

    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    block_bytes: int
    limits: StepLimits
    copy_bytes_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.num_gpu_blocks < 1:
            raise ValueError(
                f"a worker with {self.num_gpu_blocks} blocks of {self.block_size} tokens"
                " cannot hold a sequence"
            )


TokenizerFiles = dict[str, bytes]
"""File name to content, in the order of names."""
