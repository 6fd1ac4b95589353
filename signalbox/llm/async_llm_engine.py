"""`AsyncLLMEngine`: streams of outputs for the tasks of an event loop.

One task drives the engine while requests are unfinished, and then ends; only the worker has a
thread. A stream reads the output so far when its task runs, so a slow reader skips outputs, which
are cumulative, and delays no other task.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Self

from signalbox.llm.controls import CoreControls
from signalbox.llm.engine_args import AsyncEngineArgs, EngineArgs
from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.in_process.in_process_request import InProcessRequest
from signalbox.llm.in_process.pooled_run import PooledRun, pooled_fields
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.llm.metrics import Metric
from signalbox.llm.requests import prompts
from signalbox.llm.requests.beam_search import BeamSearchParams
from signalbox.llm.requests.errors import EngineDeadError
from signalbox.llm.requests.lora_request import LoRARequest
from signalbox.llm.requests.outputs import RequestOutput
from signalbox.llm.requests.pooling_outputs import PoolingOutput, PoolingRequestOutput
from signalbox.llm.requests.pooling_params import PoolingParams
from signalbox.llm.requests.prompts import PromptInput
from signalbox.llm.requests.sampling_params import RequestOutputKind, SamplingParams, checked
from signalbox.llm.vllm_options import check_arguments
from signalbox_router.params.generation_params import POOLED, GenerationParams
from signalbox_worker.runner.runner import Runner

logger = logging.getLogger(__name__)


class AsyncLLMEngine:
    """Generates, or pools, for the tasks of one event loop at a time."""

    def __init__(self, core: EngineCore, *, logs_requests: bool = False) -> None:
        self._core = core
        self._controls = CoreControls(core)
        self._logs_requests = logs_requests
        self._requests: dict[str, InProcessRequest] = {}
        self._request_ids = map(str, itertools.count())
        self._driver: asyncio.Task[None] | None = None

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Loads the model, which blocks. Raises ValueError, FileNotFoundError or MemoryError."""
        core = EngineCore.load(engine_args.make_runner(), engine_args.core_config())
        logs = isinstance(engine_args, AsyncEngineArgs) and engine_args.logs_requests
        return cls(core, logs_requests=logs)

    @classmethod
    def _from_runner(
        cls, make_runner: Callable[[], Runner], config: CoreConfig | None = None
    ) -> Self:
        return cls(EngineCore.load(make_runner, config or CoreConfig()))

    async def generate(
        self,
        prompt: PromptInput | None,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        prompt_token_ids: list[int] | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **unserved: object,
    ) -> AsyncGenerator[RequestOutput]:
        """Yields the complete output so far whenever it grows; the last output is finished.

        Another `output_kind` changes what it yields. Closing the generator, or cancelling its task,
        aborts the request. Raises ValueError or TypeError if the request cannot be served,
        EngineDeadError if the device has failed.
        """
        check_arguments("generate", unserved)
        request = await self._add(
            prompt, sampling_params, request_id, prompt_token_ids, priority, lora_request
        )
        try:
            while True:
                await request.wait()
                if request.ended is None:
                    self._core.check_alive()
                if not request.is_due:
                    continue
                output = request.output()
                yield output
                if output.finished:
                    return
        finally:
            self._end(request)

    def beam_search(
        self, prompt: PromptInput, request_id: str | None, params: BeamSearchParams
    ) -> AsyncGenerator[RequestOutput]:
        """Returns a stream of the best hypothesis as far as it is settled, then all of them."""
        return self.generate(prompt, params.sampling_params(), request_id)

    async def encode(
        self,
        prompt: PromptInput,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
        *,
        priority: int = 0,
        **unserved: object,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput]]:
        """Yields what the model makes of a prompt once; `outputs.data` is an array of float32.

        Nothing comes of a request that `abort` ends. Raises what `generate` does, and RuntimeError
        if the request fails.
        """
        check_arguments("encode", unserved)
        run = PooledRun(self._core, "encode", pooling_params, None)
        given = prompts.given_prompts([prompt], None)
        (encoded,) = await run.encoded(run.requests(given))
        encoded = await self._of_adapter(encoded, lora_request)
        encoded = encoded._replace(cache_salt=given[0].cache_salt)
        request = self._start(request_id, encoded, POOLED, priority)
        request.output_kind = RequestOutputKind.FINAL_ONLY
        try:
            while not request.is_due:
                await request.wait()
                if request.ended is None:
                    self._core.check_alive()
            output = request.output()
            if output.error is not None:
                raise RuntimeError(f"request {request.request_id} failed: {output.error}")
            if request.vector is not None:
                vector = PoolingOutput(run.finished(request.vector))
                yield PoolingRequestOutput(**pooled_fields(output), outputs=vector)
        finally:
            self._end(request)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests; the last output of each stream has the finish reason "abort"."""
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            if (request := self._requests.get(one)) is not None:
                self._core.abort(request)

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter before a request names it. Raises ValueError."""
        return bool(await asyncio.to_thread(self._core.adapters.sha256, lora_request))

    async def list_loras(self) -> set[int]:
        """Returns the numbers of the adapters that requests have named."""
        return self._core.adapters.known_ids

    async def get_tokenizer(self) -> Any:
        """Returns the model's tokenizer as transformers has it, made at the first call."""
        return await asyncio.to_thread(lambda: self._core.transformers_tokenizer)

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine can generate no more."""
        self._core.check_alive()

    @property
    def errored(self) -> bool:
        """True if the engine has failed and cannot generate any more."""
        return self._core.is_dead

    @property
    def is_running(self) -> bool:
        return not self._core.is_dead

    async def do_log_stats(self) -> None:
        """Logs the statistics since the last call, unless `disable_log_stats` is set."""
        self._core.log_stats(time.monotonic())

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """See `Controls.reset_prefix_cache`."""
        await self._rest()
        return self._controls.reset_prefix_cache(reset_running_requests, reset_connector)

    async def sleep(self, level: int = 1) -> None:
        """See `Controls.sleep`."""
        await self._rest()
        self._controls.sleep(level)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """See `Controls.wake_up`."""
        self._controls.wake_up(tags)

    async def is_sleeping(self) -> bool:
        return self._controls.is_sleeping()

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        """See `Controls.start_profile`."""
        self._controls.start_profile(profile_prefix)

    async def stop_profile(self) -> None:
        """See `Controls.stop_profile`."""
        self._controls.stop_profile()

    def get_default_sampling_params(self) -> SamplingParams:
        """See `Controls.get_default_sampling_params`."""
        return self._controls.get_default_sampling_params()

    def get_metrics(self) -> list[Metric]:
        """See `Controls.get_metrics`."""
        return self._controls.get_metrics()

    def shutdown(self, timeout: float | None = None) -> None:
        """Ends the execution thread after the running step.

        Open streams raise EngineDeadError. A second call does nothing. `timeout` is vLLM's; a step
        is not interrupted.
        """
        with contextlib.suppress(RuntimeError):  # the event loop has closed
            if self._driver is not None:
                self._driver.cancel()
        self._core.close("it is shut down")

    async def _rest(self) -> None:
        """Waits for the steps that ended requests have left in flight."""
        if self._driver is not None and not self._core.num_unfinished:
            await asyncio.wait([self._driver])

    async def _add(
        self,
        prompt: PromptInput | None,
        sampling_params: SamplingParams | None,
        request_id: str | None,
        prompt_token_ids: list[int] | None,
        priority: int,
        lora_request: LoRARequest | None,
    ) -> InProcessRequest:
        given = prompts.given_prompts(
            None if prompt is None else [prompt],
            None if prompt_token_ids is None else [prompt_token_ids],
        )
        params = checked(sampling_params, self._core.default_params)
        encoded = await self._core.encoder.encode_async(
            given[0], truncate=params.truncate_prompt_tokens
        )
        encoded = await self._of_adapter(encoded, lora_request)
        resolved = self._core.params.resolve(params, num_prompt_tokens=len(encoded.token_ids))
        request = self._start(request_id, encoded, resolved, priority)
        if self._logs_requests:
            logger.info(
                "request added: %s, %d prompt tokens, %s",
                request.request_id,
                len(encoded.token_ids),
                params,
            )
        request.output_kind = params.output_kind
        return request

    async def _of_adapter(
        self, prompt: prompts.Prompt, lora_request: LoRARequest | None
    ) -> prompts.Prompt:
        if lora_request is None:
            return prompt
        sha256 = await asyncio.to_thread(self._core.adapters.sha256, lora_request)
        return prompt._replace(adapter=sha256)

    def _start(
        self,
        request_id: str | None,
        prompt: prompts.Prompt,
        params: GenerationParams,
        priority: int,
    ) -> InProcessRequest:
        """Queues a request, and drives the engine if no task does."""
        request = self._core.add(
            request_id or next(self._request_ids), prompt, params, priority=priority
        )
        self._requests[request.request_id] = request
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive(), name="engine")
        return request

    def _end(self, request: InProcessRequest) -> None:
        """Forgets a request whose reader has left; aborts it if it runs."""
        if self._requests.get(request.request_id) is request:
            del self._requests[request.request_id]
        self._core.abort(request)

    async def _drive(self) -> None:
        """Runs steps until no request and no step is left; new output wakes its reader."""
        core = self._core
        try:
            while core.is_busy:
                core.send_steps()
                await asyncio.sleep(0)  # woken tasks read their outputs while the worker computes
                if core.oldest is not None:
                    await _settled(core.oldest)
                core.complete_step()
        except EngineDeadError:
            pass  # each task that reads a request raises it
        except Exception as error:
            logger.exception("the engine failed")
            with contextlib.suppress(EngineDeadError):
                core.die(str(error))


AsyncLLM = AsyncLLMEngine
"""vLLM's other name of this class."""


async def _settled(future: Future[Any]) -> None:
    """Waits for a step without cancelling it, because the next driver waits for it again."""
    loop, settled = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(settled.set)

    future.add_done_callback(wake)
    await settled.wait()
