"""The worker: a runner on its execution thread, under the lease of one scheduler at a time.

The methods are for the event loop, and none of them blocks it. Whatever the runner does happens on
the execution thread, in the order in which it was asked for; a broken stream does not stop it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from signalbox_contract.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)
from signalbox_contract.model import Adapter, WorkerCapacity
from signalbox_contract.step import Step
from signalbox_contract.step_result import StepResult
from signalbox_contract.tokenizer_files import hash_files
from signalbox_rpc.metrics.sample import Sample, gauge, labelled
from signalbox_rpc.transport.tls import CLEAR, TlsConfig
from signalbox_worker.device.device_errors import DeviceLost, device_loss, exit_message
from signalbox_worker.device.inspection import MemoryReport, ProfileOptions
from signalbox_worker.kv.peers.exported_parts import Part, exported_parts
from signalbox_worker.kv.peers.peer_client import PeerClient
from signalbox_worker.kv.store.block_transfers import BlockReader
from signalbox_worker.lease.execution_thread import Call, ExecutionThread
from signalbox_worker.lease.lease import Lease
from signalbox_worker.lease.step_log import NUM_KEPT_ANSWERS, Answer
from signalbox_worker.runner.ranks import rank_samples
from signalbox_worker.runner.runner import Runner
from signalbox_worker.sampling.grammars import MEMORY_BYTES as GRAMMAR_BYTES
from signalbox_worker.sampling.grammars import Grammars
from signalbox_worker.service.metrics import StepCounts
from signalbox_worker.service.profiler import Profile, Profiler
from signalbox_worker.service.worker_adapters import WorkerAdapters

logger = logging.getLogger(__name__)

NO_EPOCH = 0
MAX_READS = 16
"""Calls of other workers that read exported blocks at once; each holds a block in memory."""


class Worker:
    """Serves one runner."""

    def __init__(
        self,
        *,
        runner: Runner,
        thread: ExecutionThread,
        capacity: WorkerCapacity,
        tokenizer_files: Mapping[str, bytes],
        grammar_bytes: int = GRAMMAR_BYTES,
        adapter_dir: Path | None = None,
        block_reader: BlockReader,
    ) -> None:
        """`adapter_dir` is the folder below which are the adapters that may be loaded."""
        self.capacity = replace(
            capacity,
            grammar_bytes=grammar_bytes,
            max_steps_in_flight=max(capacity.max_steps_in_flight, NUM_KEPT_ANSWERS),
        )
        self.tokenizer_files = {name: tokenizer_files[name] for name in sorted(tokenizer_files)}
        self.model = replace(runner.model, tokenizer_sha256=hash_files(self.tokenizer_files))
        self._grammars = Grammars(
            runner.model,
            tokenizer_json=self.tokenizer_files.get("tokenizer.json", b""),
            memory_bytes=grammar_bytes,
        )
        self._runner = runner
        self._thread = thread
        self._epoch = NO_EPOCH
        self._lease: Lease | None = None
        self._num_inits = 0
        self._block_reader = block_reader
        self._num_reads = 0
        self._device_lost = asyncio.Event()
        self._loss = ""
        """The error that has lost it, in a line."""
        self.steps = StepCounts()
        self.adapters = WorkerAdapters(
            runner,
            thread,
            adapter_dir,
            check_epoch=self._check_epoch,
            on_change=self._set_adapters,
        )
        self._profiler = Profiler(runner, thread, self.steps)

    @classmethod
    async def load(
        cls,
        make_runner: Callable[[], Runner],
        *,
        grammar_bytes: int = GRAMMAR_BYTES,
        adapter_dir: Path | None = None,
        tls: TlsConfig = CLEAR,
    ) -> "Worker":
        """Makes and profiles a runner on the execution thread. Raises their errors.

        Args:
            tls: certificates for other workers, of which this one reads blocks.
        """
        thread = ExecutionThread()
        try:
            runner = await thread.submit(make_runner)
            try:
                files = await thread.submit(runner.tokenizer_files)
                capacity = await thread.submit(runner.profile)
            except BaseException as error:
                runner.close(f"rank 0 ends: {error}")
                raise
        except BaseException:
            thread.close()
            raise
        worker = cls(
            runner=runner,
            thread=thread,
            capacity=capacity,
            tokenizer_files=files,
            grammar_bytes=grammar_bytes,
            adapter_dir=adapter_dir,
            block_reader=PeerClient(tls),
        )
        await worker._grammars.load()
        return worker

    @property
    def epoch(self) -> int:
        """The nonce of the current registration; 0 without one."""
        return self._epoch

    def begin_epoch(self, epoch: int) -> None:
        """Takes the nonce of a registration, or NO_EPOCH when it is lost; ends the lease."""
        self._epoch = epoch
        if self._lease is not None:
            self._end_lease()
            leaving = self._thread.submit(self._runner.transfers.leave_peers)
            leaving.add_done_callback(self._watch)

    async def init_cache_engine(
        self, *, epoch: int, num_gpu_blocks: int, num_cpu_blocks: int
    ) -> None:
        """Allocates both pools and opens a lease; see InitCacheEngine in worker.proto."""
        self._check_epoch(epoch)
        if self._device_lost.is_set():
            raise FailedPrecondition("the device has failed; this worker is ending")
        self._check_pools(num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks)
        self._end_lease()
        self._grammars.forget()  # the scheduler that opens a lease knows of none
        self._num_inits = this_init = self._num_inits + 1
        opening = self._thread.submit(
            lambda: self._open_lease(epoch, num_gpu_blocks, num_cpu_blocks)
        )
        opening.add_done_callback(self._watch)
        lease = await opening
        self._check_epoch(epoch)  # it may have changed meanwhile
        if self._num_inits != this_init:
            raise Aborted("the cache has been initialised again")
        self._lease = lease
        logger.debug("lease opened: %d KV blocks, %d swap blocks", num_gpu_blocks, num_cpu_blocks)

    def submit(self, step: Step) -> Answer:
        """Starts a step, or finds it if it was sent before; its future must not be cancelled.

        Raises Aborted or FailedPrecondition if it is no step of the current lease.
        """
        self._check_epoch(step.epoch)
        lease = self._lease
        if lease is None:
            raise FailedPrecondition("no cache: call InitCacheEngine first")
        arrived_ns = time.monotonic_ns()
        if step.new:
            self._grammars.prepare_new(step.new)
        start = partial(self._start, partial(lease.execute, step, arrived_ns=arrived_ns))
        return lease.log.get_or_start(step.step_id, start)

    async def read_blocks(
        self, ticket: bytes, names: Collection[str]
    ) -> AsyncGenerator[Part, None]:
        """Yields the blocks that a ticket is for; see ReadBlocks in worker.proto.

        Args:
            names: those in the caller's certificate.
        """
        lease = self._lease
        if self._num_reads >= MAX_READS:
            raise ResourceExhausted(f"{MAX_READS} workers read blocks", 1.0)
        exported = self._runner.transfers.redeem(ticket) if lease else None
        if exported is None:
            raise NotFound("no blocks are exported for this ticket, or no more")
        if exported.reader and exported.reader not in names:
            exported.transfer.end("its ticket was shown by another worker")
            raise PermissionDenied("these blocks are exported to another worker")
        self._num_reads += 1
        try:
            parts = exported_parts(exported, is_valid=lambda: self._lease is lease)
            async with aclosing(parts):
                async for part in parts:
                    yield part
        finally:
            self._num_reads -= 1

    def _set_adapters(self, adapters: tuple[Adapter, ...]) -> None:
        self.model = replace(self.model, adapters=adapters)

    def grammars(self, *, epoch: int) -> Grammars:
        """Returns the compiled structured outputs of a lease. Raises Aborted if it is another."""
        self._check_epoch(epoch)
        return self._grammars

    async def until_lost(self) -> None:
        """Waits until the device or a rank is lost; raises DeviceLost then."""
        await self._device_lost.wait()
        raise DeviceLost(f"{exit_message(self._loss)}; start it again")

    def close(self, failure: str | None = None) -> None:
        """Ends the lease and the thread; a step that runs is not waited for.

        Args:
            failure: why the worker ends before its time.
        """
        self._epoch = NO_EPOCH
        self._end_lease()
        self._runner.close(failure)
        self._thread.close()
        self._grammars.close()
        self.adapters.close()
        self._block_reader.close()

    @property
    def announced_capacity(self) -> WorkerCapacity:
        """The capacity, with the clears of its store that are known by now."""
        if (store := self.capacity.store) is None:
            return self.capacity
        store = replace(store, clears=self._runner.transfers.clears)
        return replace(self.capacity, store=store)

    def memory(self) -> MemoryReport | None:
        """Returns the use of memory; None if the runner does not report it."""
        return self._runner.memory()

    async def profile(self, options: ProfileOptions) -> Profile:
        """Records steps for the given time. Raises RpcError if the runner cannot be profiled."""
        return await self._profiler.record(options)

    def samples(self) -> Iterator[Sample]:
        """Yields this worker's counts and properties."""
        return labelled(self._samples(), model_name=self.model.name)

    def _samples(self) -> Iterator[Sample]:
        yield from self.steps.samples()
        yield from rank_samples.of_stages(self.steps.stages)
        yield from rank_samples.of_ranks(self.capacity.ranks)
        for one in self._runner.backends:
            yield one.sample()
        has_lease = self._lease is not None
        yield gauge("worker_lease", "1 while a scheduler holds this worker's lease.", has_lease)
        yield gauge("worker_gpu_blocks", "KV-cache blocks that fit.", self.capacity.num_gpu_blocks)
        yield gauge("worker_cpu_blocks", "Swap blocks that fit.", self.capacity.num_cpu_blocks)
        yield from self._runner.transfers.samples()

    def _start(self, execute: Call[StepResult]) -> Answer:
        answer = self._thread.submit(execute)
        answer.add_done_callback(self._on_answered)
        return answer

    def _on_answered(self, answer: Answer) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.steps.observe(answer.result())
        else:
            self._watch(answer)

    def _watch(self, called: "asyncio.Future[Any]") -> None:
        loss = None if called.cancelled() else device_loss(called.exception())
        if loss is not None:
            self._loss = self._loss or str(loss).partition("\n")[0]
            self._device_lost.set()

    def _open_lease(self, epoch: int, num_gpu_blocks: int, num_cpu_blocks: int) -> Lease:
        try:
            self._runner.init_cache_engine(
                num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks
            )
        except MemoryError as error:
            counts = f"{num_gpu_blocks} GPU and {num_cpu_blocks} CPU blocks"
            raise ResourceExhausted(str(error) or f"no memory for {counts}") from None
        self._runner.transfers.connect(self._block_reader)
        return Lease(
            epoch=epoch,
            runner=self._runner,
            capacity=self.capacity,
            num_gpu_blocks=num_gpu_blocks,
            num_cpu_blocks=num_cpu_blocks,
            grammars=self._grammars,
        )

    def _end_lease(self) -> None:
        if self._lease is not None:
            self._lease.revoke()
            self._lease = None

    def _check_epoch(self, epoch: int) -> None:
        if self._epoch == NO_EPOCH:
            raise Aborted("this worker is not registered")
        if epoch != self._epoch:
            raise Aborted(f"epoch {epoch:#x} is not that of the worker's registration")

    def _check_pools(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        if num_gpu_blocks < 1:
            raise InvalidArgument("num_gpu_blocks", num_gpu_blocks, "at least 1")
        for name, asked, announced in (
            ("num_gpu_blocks", num_gpu_blocks, self.capacity.num_gpu_blocks),
            ("num_cpu_blocks", num_cpu_blocks, self.capacity.num_cpu_blocks),
        ):
            if asked > announced:
                raise ResourceExhausted(f"{name}: {asked} asked for, {announced} announced")
