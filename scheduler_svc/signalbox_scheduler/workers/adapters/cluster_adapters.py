"""The LoRA adapters of the workers: all of them have the same, whatever is loaded, joins or leaves.

One load, unload or join happens at a time. The model of the cluster lists what all workers have;
an adapter is added to it once all have loaded it, and leaves it before any frees it.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from signalbox_contract.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RpcError,
    Unavailable,
)
from signalbox_contract.model import Adapter, ModelInfo, check_adapter_name
from signalbox_scheduler.insight.recorder import UNRECORDED, InputRecorder
from signalbox_scheduler.requests.failures import RETRY_AFTER_S
from signalbox_scheduler.workers.adapters.adapter_differences import GoneAdapters, find_differences
from signalbox_scheduler.workers.adapters.loading_calls import (
    files_differ,
    load_there,
    of_each,
    send_missing,
)
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.adapter_client import WorkerAdapterClient
from signalbox_scheduler.workers.engine.step_loop import StepLoop

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


class ClusterAdapters:
    """Loads and unloads on all workers of a cluster, or on none."""

    def __init__(self, cluster: Cluster, recorder: InputRecorder = UNRECORDED) -> None:
        self._cluster, self._recorder = cluster, recorder
        self._clients: dict[StepLoop, WorkerAdapterClient] = {}
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
        at, clients = time.time_ns(), dict(self._clients)  # workers may leave meanwhile
        found = await of_each(clients, lambda one: one.load(name, path, loaded_at_ns=at))
        found = await send_missing(self._of_present(found), clients)
        found = self._of_present(found)
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
                await self._unload(adapter, {loop: clients[loop]})
        raise fault or files_differ(name, loaded)

    def _of_present(
        self, found: dict[StepLoop, Adapter | RpcError]
    ) -> dict[StepLoop, Adapter | RpcError]:
        """Returns the answers without those of workers that have left."""
        return {loop: got for loop, got in found.items() if loop in self._clients}

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
        self, client: WorkerAdapterClient, loop: StepLoop, model: ModelInfo
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

    async def _make_equal(
        self, client: WorkerAdapterClient, model: ModelInfo
    ) -> tuple[Adapter, ...]:
        served = self._adapters if self._cluster.model == model else ()
        found = find_differences(
            model.adapters, served, gone=self._gone, is_first=not self._clients
        )
        for one in found.to_load:
            await load_there(client, one, sources=self._clients.values())
        for one in found.to_adopt:
            if not await self._adopt(one):
                found.to_unload.append(one)
        for one in found.to_unload:
            await client.unload(one)
        away = {*found.to_unload, *found.to_forget}
        return tuple(one for one in (*served, *found.to_adopt) if one not in away)

    async def _adopt(self, adapter: Adapter) -> bool:
        """Loads on the other workers what one has had since before this scheduler began."""
        others = self._clients.values()
        try:
            await asyncio.gather(*(load_there(one, adapter, sources=others) for one in others))
        except RpcError as error:
            self._gone.add(adapter)
            logger.warning("the adapter %s is unloaded: %s", adapter, error)
            await self._unload(adapter, self._clients)
            return False
        if self._clients:
            self._change([*self._adapters, adapter])
        return True

    async def _unload(self, adapter: Adapter, clients: dict[StepLoop, WorkerAdapterClient]) -> None:
        """Frees an adapter; a worker that does not answer is made equal when it joins again."""
        for got in (await of_each(clients, lambda one: one.unload(adapter))).values():
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
