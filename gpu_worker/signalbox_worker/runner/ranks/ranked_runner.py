"""A runner over several ranks: rank 0's shard of a model, and what makes the others follow it.

Every call that touches weights or KV goes to the others first, as data, and then to this process's
shard. Sequences, grammars and the sampler are here alone: the others get the sections of a step
that touch KV, and the batch that was made of the rest. So nothing has to be decided twice alike,
and what fails for one sequence is run again in parts as on one rank (see `failure_isolation`).

With pipeline stages, this rank has the last one. Its shard then works on a thread of its own,
behind the stages before it, so that the next batches are sent to the first stage meanwhile.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from signalbox_contract.model import Adapter, ModelInfo, StoreCapacity, WorkerCapacity
from signalbox_contract.startup import ReportProgress, ignore_progress
from signalbox_contract.step import Step
from signalbox_worker.batch.adapter_slots import AdapterSlots, OpenedAdapter
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.state_runs import Settlement
from signalbox_worker.device.device_errors import DeviceLost, is_device_lost
from signalbox_worker.device.inspection import BackendInUse, MemoryReport, ProfileOptions, Recording
from signalbox_worker.drafts.proposer import Proposer
from signalbox_worker.runner.loading.block_content import format_of_ranks
from signalbox_worker.runner.ranks.launchers import RankLauncher
from signalbox_worker.runner.ranks.rank_pool import RankPool
from signalbox_worker.runner.ranks.rank_shard import describe_rank, load_shard
from signalbox_worker.runner.ranks.rank_starts import check_alike, check_told, placed
from signalbox_worker.runner.ranks.ranked_transfers import RankedTransfers
from signalbox_worker.runner.ranks.service.rank_client import NoNextRank
from signalbox_worker.runner.ranks.service.rank_messages import (
    AddAdapter,
    CacheReady,
    InitCacheEngine,
    Loaded,
    OpenStore,
    ProfileRun,
    RemoveAdapter,
    Start,
)
from signalbox_worker.runner.ranks.service.rank_servicer import RankLost
from signalbox_worker.runner.ranks.stage import NoStatesBefore, Stage, StatesBefore
from signalbox_worker.runner.runner import Runner

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LaunchedBatch:
    """A batch that the stages compute; satisfies `Launched`."""

    can_feed = False  # the first stage is another process than the one that draws

    def __init__(self, output: "Future[BatchOutput]") -> None:
        self._output = output

    def wait(self) -> None:
        self._output.exception()

    def samples(self) -> BatchOutput:
        return self._output.result()


class RankedRunner(Runner):
    """Owns the other ranks. Call from one thread."""

    transfers: RankedTransfers

    def __init__(
        self,
        start: Start,
        *,
        ranks: RankLauncher,
        progress: ReportProgress = ignore_progress,
        on_lost: Callable[[str], None],
    ) -> None:
        """Loads a shard on every rank.

        Args:
            start: that of rank 0.
            ranks: starts the others.
            on_lost: called on any thread when a rank is lost; every call raises DeviceLost then.
        """
        self._parallel = start.parallel
        self._share_bytes: tuple[int, ...] = ()
        """Bytes of a block on each rank; empty until they are measured."""
        self._has_failed = False
        self._thread: ThreadPoolExecutor | None = None
        if self.launches:
            self._thread = ThreadPoolExecutor(1, "last stage")
        self._swap_ns = 0
        self._closing = ExitStack()
        """Closes this rank's shard, once there is one."""
        self._others = RankPool(start.parallel.num_ranks, ranks)
        self._others.lost.add_done_callback(lambda lost: on_lost(lost.result()))
        try:
            self._load(start, progress)
        except BaseException as error:
            self.close(f"rank 0 ends: {error}")
            raise
        logger.info(
            "%d ranks are one worker: %d stages of %d tensor-parallel ranks",
            start.parallel.num_ranks,
            start.parallel.pipeline_parallel_size,
            start.parallel.tensor_parallel_size,
        )

    def _load(self, start: Start, progress: ReportProgress) -> None:
        others = self._others
        others.wait_until_joined()
        for hello in others.hellos:
            check_told(hello, start)
        own, *their = placed(start, others.addresses, others.tls, is_placed=others.are_placed)
        others.meet()
        others.send_each(their)
        self._own = shard = load_shard(own, others.meeting, progress)
        self._closing.callback(shard.close)
        others.lost.add_done_callback(lambda _: self._abort_collectives())
        incoming = others.servicer.incoming
        before = StatesBefore(incoming) if self.launches else NoStatesBefore()
        self._stage = Stage(shard, before, NoNextRank())
        self.transfers = RankedTransfers(shard.transfers, others, run=self._run_here)
        self._description = describe_rank(own, shard.executor.layers)
        self._slots = AdapterSlots(shard.model.adapters)  # as each rank has them
        loaded = Loaded.of(shard.model)
        for rank, theirs in enumerate(others.answers(Loaded), start=1):
            check_alike(rank, theirs, loaded)

    def _abort_collectives(self) -> None:
        with suppress(RuntimeError):  # gloo has no need of it: its connections break
            self._own.executor.abort_collectives()

    @property
    def model(self) -> ModelInfo:
        return replace(self._own.model, adapters=self._slots.loaded)

    @property
    def backends(self) -> tuple[BackendInUse, ...]:
        """Backends of rank 0."""
        return self._own.backends

    @property
    def follower_pids(self) -> list[int]:
        """The processes of ranks 1 and up."""
        return [hello.pid for hello in self._others.hellos]

    def tokenizer_files(self) -> dict[str, bytes]:
        return self._own.tokenizer_files()

    def profile(self) -> WorkerCapacity:
        """Measures all ranks at once; returns what fits on each of them."""
        self._others.send(ProfileRun())
        own = self._here(self._own.measure)
        everywhere = [own, *self._others.answers(WorkerCapacity)]
        if len({one.block_size for one in everywhere}) > 1:
            raise ValueError(
                "ranks took attention backends with blocks of different sizes; name one of them "
                "as attention_backend"
            )
        self._share_bytes = tuple(one.block_bytes for one in everywhere)
        arithmetic = _arithmetic([one.arithmetic for one in everywhere])
        self._others.send(OpenStore(arithmetic))
        self._here(partial(self._own.open_store, arithmetic))
        num_stages = self._parallel.pipeline_parallel_size
        return replace(
            own,
            num_gpu_blocks=min(one.num_gpu_blocks for one in everywhere),
            num_cpu_blocks=min(one.num_cpu_blocks for one in everywhere),
            max_num_seqs=min(one.max_num_seqs for one in everywhere),
            copy_bytes_per_s=min(one.copy_bytes_per_s for one in everywhere),
            prefill_tokens_per_s=min(one.prefill_tokens_per_s for one in everywhere),
            store=_slowest(everywhere),
            block_format=format_of_ranks([one.block_format for one in everywhere]),
            arithmetic=arithmetic,
            max_steps_in_flight=num_stages + 1 if num_stages > 1 else own.max_steps_in_flight,
            ranks=(self._description, *(rank for one in everywhere[1:] for rank in one.ranks)),
        )

    def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        if self._has_failed:  # in a batch that nothing waited for when it failed
            self._here(self._agree)
        self.transfers.unbind()
        self._others.send(InitCacheEngine(num_gpu_blocks, num_cpu_blocks))
        with self._agreeing():
            self._here(
                lambda: self._own.init_cache_engine(
                    num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks
                )
            )
        ready = self._others.answers(CacheReady)
        if {one.num_graphs for one in ready} != {self._own.executor.num_graphs}:
            # steps would meet in different collectives
            raise DeviceLost("graphs could be recorded on some ranks only; set enforce_eager")
        self.transfers.bind_shares(self._share_bytes)

    def apply(self, sections: Step) -> int:
        """Returns the time of the sections before these, where stages compute meanwhile."""
        self._others.send(sections)
        if self._thread is None:
            return self._own.apply(sections)
        self._thread.submit(self._apply, sections)
        return self._swap_ns

    def _apply(self, sections: Step) -> None:
        try:
            self._swap_ns = self._own.apply(sections)
        except Exception as error:
            logger.exception("a section failed")
            self._others.lose(f"a section failed on rank 0: {error}")

    @property
    def adapter_slots(self) -> Mapping[str, int]:
        return self._slots.of

    def open_adapter(self, name: str, folder: str) -> OpenedAdapter:
        return self._others.adapters.open(name, folder, self._own.open_adapter)

    def add_adapter(self, opened: OpenedAdapter) -> None:
        self._others.send(AddAdapter(opened.weights.number))
        self._slots.add(opened.info)
        own = opened.weights.own
        self._change_adapters(lambda: self._own.add_adapter(own))

    def remove_adapter(self, adapter: Adapter) -> None:
        self._others.send(RemoveAdapter(adapter.name, adapter.sha256))
        self._slots.remove(adapter)
        self._change_adapters(lambda: self._own.remove_adapter(adapter))

    def _change_adapters(self, change: Callable[[], None]) -> None:
        """Changes this rank's shard, behind the batches before and without waiting for them."""

        def change_or_lose() -> None:
            try:
                change()
            except Exception as error:
                logger.exception("an adapter could not be changed")
                self._others.lose(f"an adapter could not be changed on rank 0: {error}")

        if self._thread is None:
            change_or_lose()
        else:
            self._thread.submit(change_or_lose)

    def execute(self, batch: Batch) -> BatchOutput:
        """Raises MemoryError where a smaller batch may do."""
        self._others.send(batch)
        with self._agreeing():
            return self._here(self._executing(batch))

    def settle(self, settlement: Settlement) -> None:
        self._others.send(settlement)
        self._here(partial(self._own.settle, settlement))

    def make_proposer(self) -> Proposer:
        return self._own.make_proposer()

    @property
    def launches(self) -> bool:
        return self._parallel.pipeline_parallel_size > 1

    def launch(self, batch: Batch) -> LaunchedBatch:
        assert self._thread is not None, "asked of a runner that launches"
        self._others.send(batch)
        return LaunchedBatch(self._thread.submit(self._executing(batch)))

    def _executing(self, batch: Batch) -> Callable[[], BatchOutput]:
        """Returns what computes the batch that was sent last."""
        return partial(self._execute, batch, self._others.num_commands, time.monotonic_ns())

    def _execute(self, batch: Batch, command: int, sent_ns: int) -> BatchOutput:
        try:
            output = self._stage.execute(batch, command=command, arrived_ns=sent_ns)
            output.stages_ns = time.monotonic_ns() - sent_ns - output.sample_ns
            return output
        except RankLost as error:
            raise self._others.loss_behind(error) from error
        except Exception:
            self._has_failed = True
            self._others.expect_failure(command)
            raise

    def _here(self, call: Callable[[], T]) -> T:
        """Calls behind what this rank's shard still has to do."""
        return call() if self._thread is None else self._thread.submit(call).result()

    @contextmanager
    def _agreeing(self) -> Iterator[None]:
        """Raises an error of this rank if all ranks can go on after it, else DeviceLost."""
        try:
            yield
        except Exception as error:
            if not is_device_lost(error):
                self._agree()
            raise

    def _agree(self) -> None:
        self._others.agree_on_failure(
            self._own.executor.num_collectives, ranks_of_stage=self._parallel.tensor_parallel_size
        )
        self._has_failed = False

    def _run_here(self, call: Callable[[], None]) -> None:
        """Calls likewise, without waiting for it."""
        if self._thread is None:
            call()
        else:
            self._thread.submit(call)

    def memory(self) -> MemoryReport | None:
        return self._own.memory()

    def begin_recording(self, options: ProfileOptions) -> Recording:
        return self._own.begin_recording(options)

    def close(self, failure: str | None = None) -> None:
        self._others.close(failure)
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._closing.close()


def _slowest(everywhere: Sequence[WorkerCapacity]) -> StoreCapacity | None:
    """Returns the store of rank 0, with the rate of the rank that reads slowest."""
    stores = [one.store for one in everywhere if one.store is not None]
    if not stores:
        return None
    return replace(stores[0], read_bytes_per_s=min(one.read_bytes_per_s for one in stores))


def _arithmetic(digests: Sequence[str]) -> str:
    """Returns the digest of all ranks together; empty if the bits of one depend on the batch."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if all(digests) else ""
