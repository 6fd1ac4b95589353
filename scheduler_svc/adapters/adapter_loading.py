"""The LoRA adapters of the workers: all of them have the same, whatever is loaded, joins or leaves.

One load, unload or join happens at a time. The model of the cluster lists what all workers have;
an adapter is added to it once all have loaded it, and leaves it before any frees it.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from contract.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RpcError,
    Unavailable,
)
from contract.model import Adapter, ModelInfo, check_adapter_name
from scheduler_svc.adapters.worker_adapters import GoneAdapters, find_differences
from scheduler_svc.cluster import Cluster
from scheduler_svc.recorder import UNRECORDED, Recorder
from scheduler_svc.requests.failures import RETRY_AFTER_S
from scheduler_svc.workers.adapter_client import AdapterClient
from scheduler_svc.workers.step_loop import StepLoop

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ADAPTERS = 1024
"""Adapters that workers have, those that leave included."""
IN_USE_TICK_S = 0.05
"""Interval at which the requests of an adapter that leaves are looked for."""


class AdapterUse(NamedTuple):
    """An adapter that the workers have, and the live requests that it computes."""

    adapter: Adapter
    num_requests: int


class AdapterLoading:
    """Loads and unloads on all workers of a cluster, or on none."""

    def __init__(self, cluster: Cluster, recorder: Recorder = UNRECORDED) -> None:
        self._cluster, self._recorder = cluster, recorder
        self._clients: dict[StepLoop, AdapterClient] = {}
        self._lock = asyncio.Lock()
        self._gone = GoneAdapters()
        self._unloaded: set[str] = set()
        """Names of adapters that operators have unloaded, which no request loads again."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._freeing: asyncio.Task[None] | None = None

    @property
    def in_use(self) -> list[AdapterUse]:
        """All adapters that the workers have."""
        counts = self._cluster.num_requests_by_adapter()
        return [AdapterUse(one, counts[one.sha256]) for one in self._adapters]

    @property
    def _adapters(self) -> tuple[Adapter, ...]:
        model = self._cluster.model
        return () if model is None else model.adapters

    def _find(self, name: str) -> Adapter | None:
        model = self._cluster.model
        offered = () if model is None else model.offered
        return next((one for one in offered if one.name == name), None)

    # What operators ask for

    async def load(
        self, name: str, path: str, *, is_replacing: bool = False, is_first_use: bool = False
    ) -> Adapter:
        """Loads an adapter on all workers; see LoadAdapter in scheduler.proto.

        Goes on when it is cancelled.
        """
        try:
            check_adapter_name(name)
        except ValueError as error:
            raise InvalidArgument("name", name, str(error)) from None
        if not path:
            raise InvalidArgument("path", path, "a folder below the workers' --adapter-dir")
        loading = self._load(name, path, is_replacing=is_replacing, is_first_use=is_first_use)
        return await asyncio.shield(self._start(loading))

    async def _load(
        self, name: str, path: str, *, is_replacing: bool, is_first_use: bool
    ) -> Adapter:
        async with self._lock:
            model = self._cluster.model
            if model is None or not self._clients:
                raise Unavailable("no worker serves", RETRY_AFTER_S)
            if name == model.name:
                raise InvalidArgument("name", name, "a name that is not the model's")
            before = self._find(name)
            if is_first_use and before is not None:
                return before
            if is_first_use and name in self._unloaded:
                raise NotFound(f"the adapter {name} has been unloaded")
            if before is not None and not is_replacing:
                raise AlreadyExists(f"the adapter {before} is loaded; unload or replace it")
            if len(self._adapters) >= MAX_ADAPTERS:
                raise ResourceExhausted(f"{MAX_ADAPTERS} adapters are loaded; unload one of them")
            adapter = await self._load_everywhere(name, path)
            if before is not None and before != adapter:
                self._retire(before)
            self._change([*(one for one in self._adapters if one != adapter), adapter])
            self._unloaded.discard(name)
            logger.info("adapter loaded: %s from %s", adapter, path)
            return adapter

    async def _load_everywhere(self, name: str, path: str) -> Adapter:
        at = time.time_ns()
        found = await _of_each(self._clients, lambda one: one.load(name, path, loaded_at_ns=at))
        found = {loop: got for loop, got in found.items() if loop in self._clients}
        found = await self._send_missing(found)
        loaded = {loop: got for loop, got in found.items() if isinstance(got, Adapter)}
        faults = [got for got in found.values() if not isinstance(got, Adapter)]
        fault = min(faults, key=lambda one: isinstance(one, NotFound), default=None)
        if loaded and isinstance(fault, NotFound):  # what the others have loaded differs
            fault = None
        if not faults and len(set(loaded.values())) == 1:
            return next(iter(loaded.values()))
        self._gone.add_load(at)
        for loop, adapter in loaded.items():
            if adapter not in self._adapters:
                await self._unload(adapter, {loop: self._clients[loop]})
        raise fault or _files_differ(name, loaded)

    async def _send_missing(
        self, found: dict[StepLoop, Adapter | RpcError]
    ) -> dict[StepLoop, Adapter | RpcError]:
        """Sends an adapter to the workers without the folder, if all others have loaded it."""
        missing = [loop for loop, got in found.items() if isinstance(got, NotFound)]
        others = {got for loop, got in found.items() if loop not in missing}
        adapter = next(iter(others), None)
        if len(others) != 1 or not isinstance(adapter, Adapter):
            return found
        sources = [self._clients[loop] for loop in found if loop not in missing]
        for loop in missing:
            try:
                await _send(adapter, to=self._clients[loop], sources=sources)
                found[loop] = adapter
            except RpcError as error:
                found[loop] = error
        return found

    async def unload(self, name: str) -> int:
        """Takes an adapter away; returns how many live requests finish with it.

        Raises NotFound.
        """
        async with self._lock:
            adapter = self._find(name)
            if adapter is None:
                raise NotFound(f"no adapter is named {name!r}")
            self._retire(adapter)
            self._unloaded.add(name)
            return self._cluster.num_requests_by_adapter()[adapter.sha256]

    def _retire(self, adapter: Adapter) -> None:
        """Lets no new request name an adapter, and frees it when none needs it."""
        self._gone.add(adapter)
        others = (one for one in self._adapters if one != adapter)
        self._change([*others, replace(adapter, is_leaving=True)])
        if self._freeing is None or self._freeing.done():
            self._freeing = self._start(self._free_leaving())

    async def _free_leaving(self) -> None:
        while any(one.is_leaving for one in self._adapters):
            async with self._lock:
                if gone := self._unneeded():
                    self._change(one for one in self._adapters if one not in gone)
                for adapter in gone:
                    await self._unload(adapter, self._clients)
                    logger.info("adapter unloaded: %s", adapter)
            await asyncio.sleep(IN_USE_TICK_S)

    def _unneeded(self) -> set[Adapter]:
        """Returns the adapters that leave and that nothing needs any more."""
        needed = self._cluster.needed_adapters()
        num_names = Counter(one.sha256 for one in self._adapters)
        gone: set[Adapter] = set()
        for one in self._adapters:
            # While another name has the same content, that is freed with the other one.
            if one.is_leaving and (one.sha256 not in needed or num_names[one.sha256] > 1):
                num_names[one.sha256] -= 1
                gone.add(one)
        return gone

    # Workers that join and leave

    @contextlib.asynccontextmanager
    async def joining(
        self, client: AdapterClient, loop: StepLoop, model: ModelInfo
    ) -> AsyncIterator[ModelInfo]:
        """Makes a worker have the adapters of the others; nothing changes until it has joined.

        Yields its model with the adapters that are served from now on. Raises FailedPrecondition or
        Unavailable.
        """
        async with self._lock:
            adapters = await self._make_equal(client, model)
            self._clients[loop] = client
            try:
                yield replace(model, adapters=adapters)
            except BaseException:
                self.leave(loop)
                raise

    def leave(self, loop: StepLoop) -> None:
        self._clients.pop(loop, None)

    async def _make_equal(self, client: AdapterClient, model: ModelInfo) -> tuple[Adapter, ...]:
        served = self._adapters if self._cluster.model == model else ()
        found = find_differences(
            model.adapters, served, gone=self._gone, is_first=not self._clients
        )
        for one in found.to_load:
            await self._load_there(client, one)
        for one in found.to_adopt:
            if not await self._adopt(one):
                found.to_unload.append(one)
        for one in found.to_unload:
            await client.unload(one)
        away = {*found.to_unload, *found.to_forget}
        return tuple(one for one in (*served, *found.to_adopt) if one not in away)

    async def _load_there(self, client: AdapterClient, adapter: Adapter) -> None:
        try:
            loaded = await client.load(
                adapter.name, adapter.path, loaded_at_ns=adapter.loaded_at_ns
            )
        except NotFound as error:
            sources = [one for one in self._clients.values() if one is not client]
            try:
                await _send(adapter, to=client, sources=sources)
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

    async def _adopt(self, adapter: Adapter) -> bool:
        """Loads on the other workers what one has had since before this scheduler began."""
        try:
            await asyncio.gather(
                *(self._load_there(one, adapter) for one in self._clients.values())
            )
        except RpcError as error:
            self._gone.add(adapter)
            logger.warning("the adapter %s is unloaded: %s", adapter, error)
            await self._unload(adapter, self._clients)
            return False
        if self._clients:
            self._change([*self._adapters, adapter])
        return True

    async def _unload(self, adapter: Adapter, clients: dict[StepLoop, AdapterClient]) -> None:
        """Frees an adapter; a worker that does not answer is made equal when it joins again."""
        for got in (await _of_each(clients, lambda one: one.unload(adapter))).values():
            if isinstance(got, RpcError):
                logger.warning("%s", got)

    def _change(self, adapters: Iterable[Adapter]) -> None:
        adapters = list(adapters)
        self._recorder.adapters_changed(adapters, time.monotonic())
        self._cluster.change_adapters(adapters)

    def _start(self, doing: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Ends what still waits for requests to end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _of_each(
    clients: Mapping[StepLoop, AdapterClient],
    ask: Callable[[AdapterClient], Awaitable[T]],
) -> dict[StepLoop, T | RpcError]:
    """Asks all workers at once."""

    async def answer(client: AdapterClient) -> T | RpcError:
        try:
            return await ask(client)
        except RpcError as error:
            return error

    asked = dict(clients)
    return dict(zip(asked, await asyncio.gather(*map(answer, asked.values())), strict=True))


async def _send(adapter: Adapter, *, to: AdapterClient, sources: Iterable[AdapterClient]) -> None:
    """Sends an adapter's files from the first worker that can. Raises RpcError."""
    fault: RpcError = FailedPrecondition("no other worker has its files")
    for source in sources:
        try:
            await source.copy(adapter, to)
            return
        except RpcError as error:
            fault = error
    raise fault


def _files_differ(name: str, loaded: Mapping[StepLoop, Adapter]) -> RpcError:
    if not loaded:
        return Unavailable("the workers have left", RETRY_AFTER_S)
    found = (f"{one.sha256[:12]} at {loop.worker_name}" for loop, one in loaded.items())
    return FailedPrecondition(
        f"the workers have different files of {name}: {', '.join(found)}; copy the same to all"
    )
