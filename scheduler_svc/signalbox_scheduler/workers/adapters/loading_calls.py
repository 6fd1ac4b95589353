"""Calls that make several workers load an adapter, or send its files from one to another."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from signalbox_contract.errors import FailedPrecondition, NotFound, RpcError, Unavailable
from signalbox_contract.model import Adapter
from signalbox_scheduler.requests.failures import RETRY_AFTER_S
from signalbox_scheduler.workers.engine.adapter_client import WorkerAdapterClient
from signalbox_scheduler.workers.engine.step_loop import StepLoop

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def of_each(
    clients: Mapping[StepLoop, WorkerAdapterClient],
    ask: Callable[[WorkerAdapterClient], Awaitable[T]],
) -> dict[StepLoop, T | RpcError]:
    """Asks all workers at once."""

    async def answer(client: WorkerAdapterClient) -> T | RpcError:
        try:
            return await ask(client)
        except RpcError as error:
            return error

    asked = dict(clients)
    return dict(zip(asked, await asyncio.gather(*map(answer, asked.values())), strict=True))


async def send_missing(
    found: dict[StepLoop, Adapter | RpcError], clients: Mapping[StepLoop, WorkerAdapterClient]
) -> dict[StepLoop, Adapter | RpcError]:
    """Sends an adapter to the workers without the folder, if all others have loaded it.

    Args:
        found: the answer of each worker.

    Returns the answers, with those of the workers that were sent files in place of the first ones.
    """
    missing = [loop for loop, got in found.items() if isinstance(got, NotFound)]
    others = {got for loop, got in found.items() if loop not in missing}
    adapter = next(iter(others), None)
    if len(others) != 1 or not isinstance(adapter, Adapter):
        return found
    sources = [clients[loop] for loop in found if loop not in missing]
    answers = dict(found)
    for loop in missing:
        try:
            await _send(adapter, to=clients[loop], sources=sources)
            answers[loop] = adapter
        except RpcError as error:
            answers[loop] = error
    return answers


async def load_there(
    client: WorkerAdapterClient, adapter: Adapter, *, sources: Iterable[WorkerAdapterClient]
) -> None:
    """Makes a worker have an adapter that is served, from its own files or those of others.

    Args:
        sources: workers that may have the files; this one may be among them.

    Raises Unavailable.
    """
    try:
        loaded = await client.load(adapter.name, adapter.path, loaded_at_ns=adapter.loaded_at_ns)
    except NotFound as error:
        try:
            others = [one for one in sources if one is not client]
            await _send(adapter, to=client, sources=others)
        except RpcError as fault:
            raise Unavailable(
                f"the adapter {adapter} is served: {error}; {fault}", RETRY_AFTER_S
            ) from None
        return
    except FailedPrecondition as error:  # its files may come
        raise Unavailable(f"the adapter {adapter} is served: {error}", RETRY_AFTER_S) from None
    if loaded != adapter:
        await client.unload(loaded)
        raise Unavailable(
            f"the adapter {adapter} is served, but the worker's files in {adapter.path} have"
            f" the content {loaded.sha256[:12]}",
            RETRY_AFTER_S,
        )


def files_differ(name: str, loaded: Mapping[StepLoop, Adapter]) -> RpcError:
    """Returns the error that counts the workers with each content; the log has their addresses."""
    if not loaded:
        return Unavailable("the workers have left", RETRY_AFTER_S)
    for loop, one in loaded.items():
        logger.warning("%s has the content %s at %s", name, one.sha256[:12], loop.worker_name)
    counts = Counter(one.sha256[:12] for one in loaded.values())
    found = (f"{sha256} at {count} of them" for sha256, count in counts.items())
    return FailedPrecondition(
        f"the workers have different files of {name}: {', '.join(found)}; copy the same to all"
    )


async def _send(
    adapter: Adapter, *, to: WorkerAdapterClient, sources: Iterable[WorkerAdapterClient]
) -> None:
    """Sends an adapter's files from the first worker that can. Raises RpcError."""
    fault: RpcError = FailedPrecondition("no other worker has its files")
    for source in sources:
        try:
            await source.copy(adapter, to)
            return
        except RpcError as error:
            fault = error
    raise fault
