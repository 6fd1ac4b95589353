"""A router for clients: it answers at once, or begins an answer and never ends it."""

import contextlib
from collections.abc import AsyncIterator, Iterable

from signalbox_protos.scheduler.v1 import scheduler_pb2
from tests.router.fakes import MAX_MODEL_LEN, finished, ids_of, step
from tests.router.stack import Stack, make_stack

ANSWER = "The capital of South Korea is Seoul."
QUESTION = "What is the capital of South Korea?"
MAX_TOKENS = 32
"""What asks for more gets its first words and then waits."""


def script(add: scheduler_pb2.Request) -> Iterable[scheduler_pb2.RequestUpdates]:
    first, *words = ANSWER.split(" ")
    yield step((add.handle, 0, ids_of(first)))
    if add.max_tokens > MAX_TOKENS:
        return
    for word in words:
        yield step((add.handle, 0, ids_of(f" {word}")))
    yield step(**finished(add.handle, scheduler_pb2.FINISH_REASON_STOP))


@contextlib.asynccontextmanager
async def running_router(**config: object) -> AsyncIterator[Stack]:
    async with make_stack(script, max_model_len=4 * MAX_MODEL_LEN, **config) as stack:
        yield stack
