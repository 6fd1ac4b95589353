"""Place of a rank among those of its worker."""

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Place of a rank in its worker: a tensor-parallel group for each pipeline stage.

    Rank 0 draws the tokens, so the last stage is that of the first ranks, and the stage before it
    that of the next ones. A rank passes its hidden states to the rank `tensor_parallel_size` below.
    """

    rank: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    layer_partition: tuple[int, ...] = ()
    """Layers of each stage; empty divides them by bytes."""
    local_rank: int = 0
    """Place of the rank among those of its host."""
    local_size: int = 1
    """Ranks on its host."""
    is_placed: bool = False
    """True if others have started the rank, and may show it its own device alone."""
    collective_host: str = LOOPBACK
    """Address on which the collectives of its stage listen."""

    @property
    def is_stage_on_one_host(self) -> bool:
        return self.collective_host == LOOPBACK

    @property
    def num_ranks(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def sizes(self) -> str:
        """Text for messages."""
        text = f"tensor_parallel_size is {self.tensor_parallel_size}"
        if self.pipeline_parallel_size > 1:
            text += f" and pipeline_parallel_size {self.pipeline_parallel_size}"
        return text

    @property
    def stage(self) -> int:
        return self.pipeline_parallel_size - 1 - self.rank // self.tensor_parallel_size

    @property
    def tensor_rank(self) -> int:
        """Index of the rank within its stage."""
        return self.rank % self.tensor_parallel_size
