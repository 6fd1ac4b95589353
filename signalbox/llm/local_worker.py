"""A worker in this process: a runner under one lease, on an execution thread of its own.

The steps are those that a worker's service executes, by the same classes; they come as objects and
are answered through futures, so that who plans them may compute something else meanwhile.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from gpu_worker.execution import Unfinished
from gpu_worker.lease.lease import Lease
from gpu_worker.runner_protocols import (
    CacheCapacity,
    Inspectable,
    ModelInfo,
    ProfileOptions,
    Recording,
    Runner,
    close,
)
from gpu_worker.sampling.grammars import Grammars
from gpu_worker.step import Step, StepResult

EPOCH = 1  # there is no other lease

Execute = Callable[[], StepResult | Unfinished[StepResult]]


class LocalWorker:
    """Owns the runner; its methods may be called from any one thread."""

    address = "this process"

    def __init__(
        self,
        make_runner: Callable[[], Runner],
        *,
        tokenizer_files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Loads and profiles the model. Raises what that raises.

        `tokenizer_files` are used instead of the model's own.
        """
        # The model is made where it computes: PyTorch's number of threads is set for each thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="execution")
        self._waiting = ThreadPoolExecutor(1, thread_name_prefix="waiting")
        self._runner: Runner | None = None
        try:
            runner = self._runner = self._thread.submit(make_runner).result()
            self.model: ModelInfo = runner.model
            self.tokenizer_files = self._thread.submit(runner.tokenizer_files).result()
            self.capacity: CacheCapacity = self._thread.submit(runner.profile).result()
            files = tokenizer_files or self.tokenizer_files
            self._grammars = Grammars(self.model, tokenizer_json=files.get("tokenizer.json", b""))
            self._lease: Lease | None = self._thread.submit(self._open, runner).result()
        except BaseException:
            if self._runner is not None:
                close(self._runner)
            self._thread.shutdown(wait=False, cancel_futures=True)
            raise

    def _open(self, runner: Runner) -> Lease:
        pools = {
            "num_gpu_blocks": self.capacity.num_gpu_blocks,
            "num_cpu_blocks": self.capacity.num_cpu_blocks,
        }
        runner.init_cache_engine(**pools)
        return Lease(
            epoch=EPOCH, runner=runner, capacity=self.capacity, grammars=self._grammars, **pools
        )

    def submit(self, step: Step) -> Future[StepResult]:
        """Starts the next step; it is executed after those before it."""
        assert self._lease is not None, "closed"
        self._grammars.prepare(step.new)
        answer: Future[StepResult] = Future()
        self._run(answer, partial(self._lease.execute, step, arrived_ns=time.monotonic_ns()))
        return answer

    def drop_cache(self) -> None:
        """Gives the memory of both pools back, all but a block's; no step may be in flight."""
        self._allocate(num_gpu_blocks=1, num_cpu_blocks=0)

    def restore_cache(self) -> None:
        """Allocates the pools again; what they held is lost. Raises MemoryError."""
        self._allocate(
            num_gpu_blocks=self.capacity.num_gpu_blocks, num_cpu_blocks=self.capacity.num_cpu_blocks
        )

    def _allocate(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        assert self._runner is not None, "closed"
        self._thread.submit(
            self._runner.init_cache_engine,
            num_gpu_blocks=num_gpu_blocks,
            num_cpu_blocks=num_cpu_blocks,
        ).result()

    def begin_recording(self, options: ProfileOptions) -> Recording:
        """Begins a profile. Raises RuntimeError for a runner that computes nothing."""
        runner = self._runner
        if not isinstance(runner, Inspectable):
            raise RuntimeError("a simulated model computes nothing that could be profiled")
        return self._thread.submit(runner.begin_recording, options).result()

    def end_recording(self, recording: Recording) -> bytes:
        """Ends a profile; returns it as a gzipped Chrome trace."""
        self._thread.submit(recording.end).result()
        return recording.chrome_trace()

    def close(self) -> None:
        """Ends the thread, after the step that runs, and lets the model go."""
        if self._lease is not None:
            self._lease.close()
        self._waiting.shutdown(wait=False, cancel_futures=True)
        self._thread.shutdown(cancel_futures=True)
        if self._runner is not None:
            close(self._runner)
            self._runner = None
        self._grammars.close()
        self._lease = None

    def _run(self, answer: Future[StepResult], call: Execute) -> None:
        """Queues a call that settles the answer, unless it leaves work under way."""
        with contextlib.suppress(RuntimeError):  # closed: nobody waits
            queued = self._thread.submit(self._settle, answer, call)
            queued.add_done_callback(lambda call: call.cancelled() and answer.cancel())

    def _settle(self, answer: Future[StepResult], call: Execute) -> None:
        try:
            outcome = call()
        except BaseException as error:  # whoever asks for the answer decides
            answer.set_exception(error)
            return
        if isinstance(outcome, Unfinished):
            self._waiting.submit(self._wait, answer, outcome)
        else:
            answer.set_result(outcome)

    def _wait(self, answer: Future[StepResult], under_way: Unfinished[StepResult]) -> None:
        with contextlib.suppress(Exception):  # which finishing will meet again
            under_way.wait()
        self._run(answer, under_way.finish)
