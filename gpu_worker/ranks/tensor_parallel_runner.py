"""A runner over several ranks: rank 0 of a model, and what makes the others follow it.

Satisfies `Runner` of `batch`. Every call that touches weights or KV goes to the others first, as
data, and then to this process's share. Sequences, grammars and the sampler are here alone: the
others get the sections of a step that touch KV, and the batch that was made of the rest. So nothing
has to be decided twice alike, and what fails for one sequence is run again in parts as on one rank
(see `failure_isolation`).
"""

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from contract.model import ModelInfo, WorkerCapacity
from contract.startup import ReportProgress
from contract.step import Step
from gpu_worker.batch.batch import Batch, BatchOutput
from gpu_worker.batch.runner_protocol import BackendInUse, MemoryReport, ProfileOptions
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig
from gpu_worker.device.device_errors import DeviceLost, is_device_lost
from gpu_worker.device.process_group import call_off
from gpu_worker.device.torch_profiler import TorchRecording
from gpu_worker.ranks.follower_handles import Followers
from gpu_worker.ranks.rank_messages import (
    Ask,
    CacheReady,
    Done,
    InitCacheEngine,
    Start,
)
from gpu_worker.runner.model_runner import ModelRunner

logger = logging.getLogger(__name__)


class TensorParallelRunner:
    """Owns the processes of the other ranks. Call from one thread."""

    def __init__(
        self,
        model_config: ModelConfig,
        cache_config: CacheConfig,
        *,
        tensor_parallel_size: int,
        device_config: DeviceConfig,
        progress: ReportProgress,
        on_lost: Callable[[str], None],
    ) -> None:
        """Loads a share on every rank.

        Args:
            on_lost: called on any thread when a rank is lost; every call raises DeviceLost then.
        """
        self._on_lost = on_lost
        self._own: ModelRunner | None = None
        device_config = _shared(device_config, tensor_parallel_size)
        with tempfile.TemporaryDirectory(prefix="signalbox-") as folder:
            self._rendezvous = str(Path(folder, "ranks"))
            starts = [
                Start(
                    model=model_config,
                    cache=cache_config,
                    parallel=ParallelConfig(
                        rank=rank,
                        tensor_parallel_size=tensor_parallel_size,
                        rendezvous=self._rendezvous,
                    ),
                    device=device_config,
                )
                for rank in range(tensor_parallel_size)
            ]
            self._others = Followers(starts[1:], self._lose)
            try:
                self._load(starts[0], progress)
            except BaseException:
                self._others.close()
                raise
        logger.info("%d tensor-parallel ranks are one worker", tensor_parallel_size)

    def _load(self, start: Start, progress: ReportProgress) -> None:
        self._others.answers(Done)  # the others join next
        self._own = ModelRunner(
            start.model,
            start.cache,
            parallel_config=start.parallel,
            device_config=start.device,
            progress=progress,
        )
        self._others.answers(Done)

    def _lose(self, reason: str) -> None:
        self._on_lost(reason)
        if self._own is None:
            call_off(self._rendezvous, reason)
        else:
            with suppress(RuntimeError):  # gloo has no need of it: its connections break
                self._own.abort_collectives()

    @property
    def _rank(self) -> ModelRunner:
        assert self._own is not None, "loaded"
        return self._own

    @property
    def model(self) -> ModelInfo:
        return self._rank.model

    @property
    def backends(self) -> tuple[BackendInUse, ...]:
        """Those of rank 0."""
        return self._rank.backends

    @property
    def follower_pids(self) -> list[int]:
        """The processes of ranks 1 and up."""
        return self._others.pids

    def tokenizer_files(self) -> dict[str, bytes]:
        return self._rank.tokenizer_files()

    def profile(self) -> WorkerCapacity:
        """Measures all ranks at once; returns what fits on each of them."""
        self._others.send(Ask.PROFILE)
        own = self._rank.profile()
        others = self._others.answers(WorkerCapacity)
        if {one.block_size for one in others} - {own.block_size}:
            raise ValueError(
                "ranks took attention backends with blocks of different sizes; name one of them "
                "as attention_backend"
            )
        return replace(
            own,
            num_gpu_blocks=min(one.num_gpu_blocks for one in (own, *others)),
            num_cpu_blocks=min(one.num_cpu_blocks for one in (own, *others)),
            copy_bytes_per_s=min(one.copy_bytes_per_s for one in (own, *others)),
        )

    def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self._others.send(InitCacheEngine(num_gpu_blocks, num_cpu_blocks))
        with self._agreeing():
            self._rank.init_cache_engine(
                num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks
            )
        counts = {one.num_graphs for one in self._others.answers(CacheReady)}
        if counts != {self._rank.num_graphs}:  # steps would meet in different collectives
            raise DeviceLost("graphs could be recorded on some ranks only; set enforce_eager")

    def apply(self, sections: Step) -> int:
        self._others.send(sections)
        return self._rank.apply(sections)

    def execute(self, batch: Batch) -> BatchOutput:
        """Raises MemoryError where a smaller batch may do."""
        self._others.send(batch)
        with self._agreeing():
            return self._rank.execute(batch)

    @contextmanager
    def _agreeing(self) -> Iterator[None]:
        """Raises an error of this rank if all ranks can go on after it, else DeviceLost."""
        try:
            yield
        except Exception as error:
            if not is_device_lost(error):
                self._others.agree_on_failure(self._rank.num_collectives)
            raise

    def memory(self) -> MemoryReport:
        return self._rank.memory()

    def begin_recording(self, options: ProfileOptions) -> TorchRecording:
        return self._rank.begin_recording(options)

    def close(self) -> None:
        self._others.close()


def _shared(config: DeviceConfig, num_ranks: int) -> DeviceConfig:
    """Returns each rank's share of the worker's threads."""
    num_threads = config.num_threads or torch.get_num_threads()
    return config.model_copy(update={"num_threads": max(1, num_threads // num_ranks)})
