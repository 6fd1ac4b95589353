"""A worker in this process: a runner under one lease, on an execution thread.

The same classes as in a worker's service execute the steps. Steps are objects, and their answers
are futures, so that the planner can compute meanwhile.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from weakref import finalize

from signalbox_contract.errors import Unimplemented
from signalbox_contract.model import Adapter, ModelInfo, WorkerCapacity
from signalbox_contract.step import Step
from signalbox_contract.step_result import StepResult
from signalbox_scheduler.planning.worker_grammars import Preparation
from signalbox_worker.device.inspection import ProfileOptions, Recording
from signalbox_worker.lease.execution_thread import ExecutionThread
from signalbox_worker.lease.lease import Lease
from signalbox_worker.runner.runner import Runner
from signalbox_worker.sampling.compiled_grammar import CompiledGrammar
from signalbox_worker.sampling.grammars import MEMORY_BYTES, Constraint, Grammars

EPOCH = 1  # there is no other lease
STEPS_IN_FLIGHT = 2
"""One runs while the result of the other is read."""


class LocalWorker:
    """Owns the runner; any one thread may call its methods."""

    name = "this process"

    def __init__(
        self,
        make_runner: Callable[[], Runner],
        *,
        tokenizer_files: Mapping[str, bytes] | None = None,
        grammar_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Loads and profiles the model, and raises their exceptions.

        `tokenizer_files` are used instead of the model's own.
        """
        # The model is made on its thread, because PyTorch's number of threads is set for each
        # thread.
        self._thread = ExecutionThread()
        # A process does not exit within native code of a step, even if this is never closed.
        runners: list[Runner] = []  # the finalizer must not refer to this object
        self._closing = finalize(self, _end, self._thread, runners)
        self._runner: Runner | None = None
        try:
            runner = self._runner = self._thread.start(make_runner).result()
            runners.append(runner)
            self.model: ModelInfo = runner.model
            self.tokenizer_files = self._thread.start(runner.tokenizer_files).result()
            capacity = self._thread.start(runner.profile).result()
            self.capacity: WorkerCapacity = replace(
                capacity,
                grammar_bytes=grammar_bytes,
                max_steps_in_flight=max(capacity.max_steps_in_flight, STEPS_IN_FLIGHT),
            )
            files = tokenizer_files or self.tokenizer_files
            self._grammars = Grammars(
                self.model,
                tokenizer_json=files.get("tokenizer.json", b""),
                memory_bytes=grammar_bytes,
            )
            self.restore_cache()
            self._lease: Lease | None = Lease(
                epoch=EPOCH,
                runner=runner,
                capacity=self.capacity,
                num_gpu_blocks=self.capacity.num_gpu_blocks,
                num_cpu_blocks=self.capacity.num_cpu_blocks,
                grammars=self._grammars,
            )
        except BaseException:
            if runners:
                runners.pop().close()
            self._thread.close()
            raise

    @property
    def _running(self) -> Runner:
        assert self._runner is not None, "closed"
        return self._runner

    def submit(self, step: Step) -> Future[StepResult]:
        """Starts the next step; it is executed after those before it."""
        assert self._lease is not None, "closed"
        self._grammars.prepare_new(step.new)
        return self._thread.start(
            partial(self._lease.execute, step, arrived_ns=time.monotonic_ns())
        )

    def prepare(self, preparation: Preparation) -> Future[CompiledGrammar]:
        """Starts to compile a structured output beside the steps."""
        self.forget_grammars(preparation.forgotten)
        return self._grammars.prepare(preparation.constraint, preparation.cost)

    def forget_grammars(self, constraints: Iterable[Constraint]) -> None:
        """Frees compiled structured outputs."""
        self._grammars.forget(constraints)

    def load_adapter(self, name: str, folder: str) -> Adapter:
        """Loads an adapter beside the steps. Raises ValueError."""
        runner = self._running
        opened = runner.open_adapter(name, folder)
        self._thread.start(lambda: runner.add_adapter(opened)).result()
        return opened.info

    def drop_cache(self) -> None:
        """Frees the memory of both pools, except one block; no step may be in flight."""
        self._allocate(num_gpu_blocks=1, num_cpu_blocks=0)

    def restore_cache(self) -> None:
        """Allocates the pools, empty. Raises MemoryError."""
        self._allocate(
            num_gpu_blocks=self.capacity.num_gpu_blocks, num_cpu_blocks=self.capacity.num_cpu_blocks
        )

    def _allocate(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        allocate = partial(
            self._running.init_cache_engine,
            num_gpu_blocks=num_gpu_blocks,
            num_cpu_blocks=num_cpu_blocks,
        )
        self._thread.start(allocate).result()

    def begin_recording(self, options: ProfileOptions) -> Recording:
        """Begins a profile. Raises RuntimeError for a runner that computes nothing."""
        try:
            return self._thread.start(partial(self._running.begin_recording, options)).result()
        except Unimplemented as error:
            raise RuntimeError(str(error)) from None

    def end_recording(self, recording: Recording) -> bytes:
        """Ends a profile; returns it as a gzipped Chrome trace."""
        self._thread.start(recording.end).result()
        return recording.chrome_trace()

    def close(self) -> None:
        """Ends the thread after the running step, and frees the model."""
        if self._lease is not None:
            self._lease.revoke()
        self._closing()
        self._runner = self._lease = None
        self._grammars.close()


def _end(thread: ExecutionThread, runners: list[Runner]) -> None:
    """Ends the thread after the running step, and what the runner has started."""
    thread.close(wait=True)
    for runner in runners:
        runner.close()
