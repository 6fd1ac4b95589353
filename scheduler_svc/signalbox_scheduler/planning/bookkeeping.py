"""Names the owners of what the scheduler keeps about one worker."""

from dataclasses import dataclass
from typing import Self

from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.cpu_tier import CopyCosts
from signalbox_scheduler.planning.decode_columns import DecodeColumns
from signalbox_scheduler.planning.sequence_release import SequenceRelease
from signalbox_scheduler.planning.worker_state import WorkerState
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.worker_queues import GroupQueues


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookkeeping:
    """The owners of one worker's state, for the parts that decide a step or process its result."""

    queues: GroupQueues
    blocks: BlockSpaceManager
    decode_columns: DecodeColumns
    """Counters of the sequences that only decode."""
    worker_state: WorkerState
    """State of each sequence that the worker has."""
    sequence_release: SequenceRelease
    """Sequences that have ended and still hold blocks."""

    @classmethod
    def make(cls, cache: CacheShape, *, admission: AdmissionQueue, costs: CopyCosts) -> Self:
        """Returns that of a worker which has just joined.

        Args:
            admission: the queue that all workers share.
            costs: decides which copies for the prefix cache are worth it.
        """
        blocks = BlockSpaceManager(
            block_size=cache.block_size,
            num_gpu_blocks=cache.num_gpu_blocks,
            num_cpu_blocks=cache.num_cpu_blocks,
            num_watermark_blocks=cache.num_watermark_blocks,
            max_model_len=cache.max_model_len,
            prefix_caching=cache.prefix_caching,
            cpu_prefix_cache=cache.cpu_prefix_cache,
            costs=costs,
        )
        queues, worker_state = GroupQueues(admission), WorkerState(blocks)
        return cls(
            queues=queues,
            blocks=blocks,
            decode_columns=DecodeColumns(blocks, admission),
            worker_state=worker_state,
            sequence_release=SequenceRelease(
                queues=queues, blocks=blocks, worker_state=worker_state
            ),
        )
