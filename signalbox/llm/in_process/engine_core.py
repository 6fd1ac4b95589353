"""The engine of this process: scheduler, worker and text side, wired without a network.

Not tied to an event loop: `send_steps` plans and starts steps, `oldest` is the future of the one to
wait for, `complete_step` says what it means. Two steps are in flight, so that the worker computes
one while the other's answer is read, detokenised and followed by the next plan. All methods are for
one thread; the worker has its own.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

from signalbox.llm.in_process import wiring
from signalbox.llm.in_process.in_process_channel import InProcessChannel
from signalbox.llm.in_process.in_process_request import InProcessRequest
from signalbox.llm.in_process.interrupts import Interrupts
from signalbox.llm.in_process.local_adapters import LocalAdapters
from signalbox.llm.in_process.local_worker import EPOCH, LocalWorker
from signalbox.llm.in_process.params_resolver import ParamsResolver
from signalbox.llm.in_process.profiler import LocalProfiler
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.llm.requests.errors import EngineDeadError, refusing
from signalbox.llm.requests.prompts import Prompt, PromptEncoder
from signalbox.llm.requests.sampling_params import default_sampling_params
from signalbox_contract.step_result import StepResult
from signalbox_contract.tokenizer_files import hash_files
from signalbox_router.generation.pooling.prompt_encoder import check_kind
from signalbox_router.params.generation_params import GenerationParams
from signalbox_scheduler.config import AdmissionBounds, PeerIdentity
from signalbox_scheduler.planning.worker_grammars import Preparation
from signalbox_scheduler.queue.policies import make_policy
from signalbox_scheduler.service.reports.stats_log import StatsLog
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.factory import make_scheduler
from signalbox_worker.missing_packages import needing_pytorch
from signalbox_worker.runner.runner import Runner
from signalbox_worker.sampling.compiled_grammar import fault_of


class EngineCore:
    """Generates for requests. `close` ends the worker's thread."""

    def __init__(self, worker: LocalWorker, config: CoreConfig) -> None:
        files = config.tokenizer_files or worker.tokenizer_files
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="tokenizer")
        self.model = wiring.served_model(
            worker, files, self._pool, chat_template=config.chat_template
        )
        self.encoder = PromptEncoder(self.model)
        self.default_params = default_sampling_params(worker.model.sampling_defaults)
        """Sampling parameters of requests without their own."""
        self.cluster = Cluster(
            bounds=AdmissionBounds(max_queued_requests=1 << 62),  # prompts are in memory anyway
            policy=make_policy(config.scheduling),
        )
        self.cluster.serve(replace(worker.model, tokenizer_sha256=hash_files(files)))
        self.scheduler = make_scheduler(
            config.scheduling,
            model=worker.model,
            capacity=worker.capacity,
            admission=self.cluster.admission,
            identity=PeerIdentity(address=worker.name),
        )
        self._steps = StepLoop(
            self.scheduler,
            send_updates=self.cluster.requests.send_updates,
            prepare=self._begin_compiling,
        )
        self.cluster.join(self._steps)
        self.adapters = LocalAdapters(worker, self.cluster, is_enabled=config.enable_lora)
        self.interrupts = Interrupts()
        self.profiler = LocalProfiler(worker, config.profile_folder)
        self._worker = worker
        self._answers: deque[Future[StepResult]] = deque()
        self._preparation: Preparation | None = None
        self._compiling: Future[Any] | None = None
        self._channel = InProcessChannel(
            self.cluster.requests, self.model.tokenizer, stream_interval=config.stream_interval
        )
        self.params = ParamsResolver(self.model, config)
        self._config = config
        self._stats_log = StatsLog(self.cluster) if config.log_stats else None
        self._stats_due = time.monotonic() + config.scheduling.log_stats_interval
        self._death: str | None = None
        self.is_asleep = False

    @classmethod
    def load(cls, make_runner: Callable[[], Runner], config: CoreConfig) -> "EngineCore":
        """Loads a model. Raises what making its runner raises, or ValueError."""
        worker = LocalWorker(
            make_runner,
            tokenizer_files=config.tokenizer_files,
            grammar_bytes=config.grammar_bytes,
        )
        try:
            return cls(worker, config)
        except BaseException:
            worker.close()
            raise

    @cached_property
    def transformers_tokenizer(self) -> Any:
        """The tokenizer as a `PreTrainedTokenizerFast`, for callers; requests do not use it."""
        with needing_pytorch("get_tokenizer() returns a tokenizer of transformers"):
            from signalbox_worker.runner.loading.transformers_tokenizer import load

        tokenizer = load(self.model.tokenizer.files)
        if self._config.chat_template is not None:
            tokenizer.chat_template = self._config.chat_template
        return tokenizer

    # Requests

    def add(
        self, request_id: str, prompt: Prompt, params: GenerationParams, *, priority: int = 0
    ) -> InProcessRequest:
        """Queues a request. Raises ValueError if it can never run or its id is in use."""
        self.check_alive()
        if self.is_asleep:
            raise RuntimeError("the engine sleeps; call wake_up() first")
        if prompt.pooling is None:
            with refusing():
                check_kind(None, self.model)
        return self._channel.submit(request_id, prompt, params, priority=priority)

    def abort(self, request: InProcessRequest) -> None:
        """Ends a request; does nothing if it has ended."""
        self._channel.abort(request.handle)

    @property
    def arithmetic(self) -> str:
        """Digest of the bits that are computed; empty if they depend on the batch."""
        return self._worker.capacity.arithmetic

    @property
    def num_unfinished(self) -> int:
        return len(self._channel)

    # Steps

    @property
    def is_busy(self) -> bool:
        """True if a request is unfinished or a step in flight."""
        return bool(self._channel or self._answers)

    @property
    def oldest(self) -> Future[Any] | None:
        """Future to wait for before `complete_step`; None if no step is in flight and no grammar
        compiles."""
        return self._answers[0] if self._answers else self._compiling

    def send_steps(self) -> None:
        """Plans and starts steps, as many as may be in flight."""
        self.check_alive()
        self._end_compiling()
        self._start_steps()
        while self._channel and self.oldest is None and not self._channel.has_news:
            if self._steps.next_poll_at == math.inf:
                self.die("no step can be planned for the requests that are left")
            self._ask_for_moves()

    def _start_steps(self) -> None:
        while (plan := self._steps.fill(time.monotonic())) is not None:
            self._answers.append(self._worker.submit(plan.to_step(epoch=EPOCH)))

    def _ask_for_moves(self) -> None:
        """Waits until an empty step is due whose result brings the ends of moves, and starts it."""
        time.sleep(max(0.0, self._steps.next_poll_at - time.monotonic()))
        self._start_steps()

    def complete_step(self) -> list[InProcessRequest]:
        """Waits for the oldest answer; returns the requests with new output.

        Raises EngineDeadError if the step failed as a whole.
        """
        if self._answers:
            self._update(self._answers[0])
        else:
            wait([self._compiling] if self._compiling is not None else [])
        return self._channel.pop_touched()

    def _update(self, future: Future[StepResult]) -> None:
        try:
            result = future.result()
        except Exception as error:
            self.die(str(error))
        self._answers.popleft()
        now = time.monotonic()
        self._steps.complete(result, now)
        if now >= self._stats_due:
            self.log_stats(now)

    def _begin_compiling(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._compiling = self._worker.prepare(preparation)

    def _end_compiling(self) -> None:
        """Tells the scheduler of a structured output that has been compiled, or cannot be."""
        preparation, compiling = self._preparation, self._compiling
        if preparation is None or compiling is None or not compiling.done():
            return
        self._preparation = self._compiling = None
        fault = fault_of(compiling)
        if fault is not None:
            self._worker.forget_grammars([preparation.constraint])
        self._steps.prepared(preparation.constraint, fault=fault or "", now=time.monotonic())

    def log_stats(self, now: float) -> None:
        """Logs the statistics since the last line, unless that is disabled."""
        self._stats_due = now + self._config.scheduling.log_stats_interval
        if self._stats_log is not None:
            self._stats_log.write(now)

    # Between requests

    def reset_prefix_cache(self) -> bool:
        """Removes all cached prefixes; returns False without a change while a request is
        unfinished."""
        self.check_alive()
        if self._channel:
            return False
        while self._answers:  # steps of ended requests
            self.complete_step()
        is_reset = self.scheduler.reset_prefix_cache()
        while is_reset and self.scheduler.state.connector.next_poll_at < math.inf:
            self._ask_for_moves()  # until the store is empty
            self.complete_step()
        return is_reset

    def sleep(self) -> None:
        """Frees the KV cache's memory. Raises RuntimeError while a request is unfinished."""
        if self.is_asleep:
            return
        if not self.reset_prefix_cache():
            raise RuntimeError("requests are unfinished; finish or abort them before sleep")
        self._worker.drop_cache()
        self.is_asleep = True

    def wake_up(self) -> None:
        """Allocates the KV cache again. Raises MemoryError."""
        self.check_alive()
        if self.is_asleep:
            self._worker.restore_cache()
            self.is_asleep = False

    # Ending

    def close(self, why: str = "it is closed") -> None:
        """Ends the worker's thread after the running step; requests are dropped."""
        self._death = self._death or why
        self.profiler.close()
        self._worker.close()
        self._pool.shutdown(cancel_futures=True)
        self.model.tokenizer.close()
        self._answers.clear()
        self._channel.forget_all()

    @property
    def is_dead(self) -> bool:
        return self._death is not None

    def check_alive(self) -> None:
        """Raises EngineDeadError if the engine is closed or has failed."""
        if self._death is not None:
            raise EngineDeadError(f"the engine cannot go on: {self._death}")

    def die(self, reason: str) -> NoReturn:
        """Drops all requests, and raises EngineDeadError now and at each later call."""
        self._death = self._death or reason
        self._answers.clear()
        self._channel.forget_all()
        raise EngineDeadError(f"the engine cannot go on: {reason}")
