"""Runs calls for vectors and scores: one request for each input, a bounded number at a time.

Servicers and the HTTP API use it as they use `Generator`, whose requests it makes.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from signalbox_contract.errors import Internal, InvalidArgument, ResourceExhausted
from signalbox_contract.pooling import PoolingModel, Vector
from signalbox_contract.updates import Usage
from signalbox_router.generation.call_context import CallContext
from signalbox_router.generation.generator import Generator
from signalbox_router.generation.pooling.calls import (
    ClassifyCall,
    EmbedCall,
    PoolingCall,
    ScoreCall,
    check_num_bytes,
    check_num_inputs,
    pooling_of,
)
from signalbox_router.generation.pooling.prompt_encoder import check_one_output, check_task
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.requests.api_request import ApiRequest
from signalbox_router.schedulers.launcher.launched_models import NotLoaded
from signalbox_router.schedulers.served_models import (
    CLASSIFYING,
    EMBEDDING,
    POOLING,
    TOKEN_EMBEDDING,
)

C = TypeVar("C", bound=PoolingCall)

MAX_OUTSTANDING = 128
"""Requests of one call at a time: two full batches of texts, so that a call of 2,048 inputs leaves
the queue to others."""
MAX_TOKEN_VECTOR_BYTES = 32 << 20
"""Most bytes of the vectors of tokens in one answer, in float32."""
STARTED_TOGETHER = 16
"""Requests that are started before the event loop gets a turn."""


class Vectors(NamedTuple):
    """Vectors of a call's inputs, in their order."""

    vectors: list[Vector]
    usage: Usage
    labels: tuple[str, ...] = ()
    """Names of a classifier's outputs; empty if they have none."""

    def label_of(self, vector: Vector) -> str | None:
        """Returns the name of the class with the highest value; None if classes have no names."""
        return self.labels[int(vector.argmax())] if self.labels else None


class Scores(NamedTuple):
    """Scores of a call's documents, in their order."""

    scores: list[float]
    usage: Usage


class PoolingService:
    """Answers calls for vectors and scores."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def embed(self, call: EmbedCall, call_context: CallContext) -> Vectors:
        with self._generator.reading(call_context):
            tasks = EMBEDDING if call.task == "embed" else TOKEN_EMBEDDING
            call, model, pooling = await self._routed(call, tasks, call_context)
            check_num_inputs(len(call.inputs))
            check_task(call.task, model)
            call.check(pooling)
            requests = call.requests(call.inputs, task=call.task, prefix=call.prefix(model))
            check_num_bytes(requests)
        vectors, usage = await self._run(requests, call_context)
        return Vectors([call.embedding(one, pooling) for one in vectors], usage)

    async def classify(self, call: ClassifyCall, call_context: CallContext) -> Vectors:
        """Returns the probabilities of each input's classes."""
        with self._generator.reading(call_context):
            call, model, pooling = await self._routed(call, CLASSIFYING, call_context)
            check_num_inputs(len(call.inputs))
            requests = call.requests(call.inputs, task="classify")
        vectors, usage = await self._run(requests, call_context)
        probs = [call.finished(one, pooling) for one in vectors]
        return Vectors(probs, usage, model.labels)

    async def score(self, call: ScoreCall, call_context: CallContext) -> Scores:
        with self._generator.reading(call_context):
            call, model, _ = await self._routed(call, POOLING, call_context)
            call.check()
            check_one_output(model)
            requests = call.prompts(model)
            check_num_bytes(requests, field=call.document_field)
        vectors, usage = await self._run(requests, call_context)
        return Scores(call.scores(vectors, model), usage)

    async def _routed(
        self, call: C, tasks: frozenset[str], call_context: CallContext
    ) -> tuple[C, ServedModel, PoolingModel]:
        """Returns the call with its model's name, so that all its requests go to that model."""
        resolve = partial(self._generator.models.of, call.model, tasks)
        try:
            model = resolve()
        except NotLoaded as absent:
            model = await self._generator.when_loaded(absent, resolve, call_context)
        return replace(call, model=call.model or model.name), model, pooling_of(model)

    async def _run(
        self, requests: Sequence[ApiRequest], call_context: CallContext
    ) -> tuple[list[Vector], Usage]:
        running = _Running(self._generator, call_context, requests)
        try:
            results = await running.results()
        finally:
            await running.stop()
        usages = [one.usage for one in results]
        total = Usage(*map(sum, zip(*usages, strict=True)))
        return [one.vector for one in results], total


class _Result(NamedTuple):
    vector: Vector
    usage: Usage


class _Running:
    """The requests of one call, of which a bounded number is outstanding."""

    def __init__(
        self, generator: Generator, call_context: CallContext, requests: Sequence[ApiRequest]
    ) -> None:
        self._generator = generator
        self._call_context = call_context
        self._requests = requests
        self._waiting = deque(range(len(requests)))
        self._tasks: dict[asyncio.Task[_Result], int] = {}
        self._limit = MAX_OUTSTANDING

    async def results(self) -> list[_Result]:
        """Returns the results in the order of the requests. Raises the first failure."""
        results: dict[int, _Result] = {}
        num_bytes = 0
        while self._waiting or self._tasks:
            await self._fill()
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                position = self._tasks.pop(task)
                if self._may_retry(task.exception()):
                    self._waiting.appendleft(position)
                else:
                    results[position] = task.result()
                    num_bytes += self._num_token_bytes(results[position])
            if num_bytes > MAX_TOKEN_VECTOR_BYTES:
                allowed = f"at most {MAX_TOKEN_VECTOR_BYTES} bytes of vectors of tokens in a call"
                raise InvalidArgument("inputs", f"{num_bytes} bytes so far", allowed)
        return [results[position] for position in range(len(self._requests))]

    def _num_token_bytes(self, result: _Result) -> int:
        pooled = self._requests[0].pooled
        is_per_token = pooled is not None and pooled.task == "token_embed"
        return result.vector.nbytes if is_per_token else 0

    async def _fill(self) -> None:
        """Starts requests. With a key, the first one has a turn alone: if the key has used up its
        tokens, the others, which do not look at that, must not begin."""
        while self._waiting and len(self._tasks) < self._limit:
            position = self._waiting.popleft()
            task = asyncio.create_task(self._vector(self._requests[position]))
            self._tasks[task] = position
            is_alone = position == 0 and self._call_context.key is not None
            if is_alone or len(self._tasks) % STARTED_TOGETHER == 0:
                await asyncio.sleep(0)
                if any(one.done() for one in self._tasks):
                    return

    def _may_retry(self, error: BaseException | None) -> bool:
        """Returns whether a request that found no room is sent again when another of the call has
        ended."""
        has_no_room = isinstance(error, ResourceExhausted) and error.retry_after_s is not None
        if not has_no_room or not self._tasks:
            return False
        self._limit = len(self._tasks)
        return True

    async def _vector(self, request: ApiRequest) -> _Result:
        result = None
        async with aclosing(self._generator.generate(request, self._call_context)) as updates:
            async for update in updates:  # to the end: one that is closed before is cancelled
                if update.end is not None and update.request.vector is not None:
                    result = _Result(update.request.vector, update.end.usage)
        if result is None:
            raise Internal("a request ended without its vector")
        return result

    async def stop(self) -> None:
        """Aborts the requests that have not ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
