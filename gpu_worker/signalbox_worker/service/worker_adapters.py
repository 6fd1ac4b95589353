"""The LoRA adapters of a worker at run time: from its own folder, or from what it is sent.

Files are read, checked and packed beside the steps; the runner then changes between two steps.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from signalbox_contract.errors import FailedPrecondition, NotFound
from signalbox_contract.model import Adapter
from signalbox_rpc.lifetime.private_folder import discard, remove_leftovers
from signalbox_worker.batch.adapter_slots import OpenedAdapter
from signalbox_worker.config import ModelError
from signalbox_worker.files.adapters.adapter_folder import NoSuchFolder, find_below
from signalbox_worker.files.adapters.peft_adapter import describe_adapter
from signalbox_worker.files.adapters.received_adapters import (
    FileChunk,
    ReceivedAdapters,
    read_chunks,
    write_chunk,
)
from signalbox_worker.lease.execution_thread import ExecutionThread
from signalbox_worker.runner.runner import Runner

logger = logging.getLogger(__name__)


class WorkerAdapters:
    """Changes the adapters of a runner, within one lease at a time."""

    def __init__(
        self,
        runner: Runner,
        thread: ExecutionThread,
        folder: Path | None,
        *,
        check_epoch: Callable[[int], None],
        on_change: Callable[[tuple[Adapter, ...]], None],
    ) -> None:
        """Args:
        folder: --adapter-dir; None takes no adapters at run time.
        check_epoch: raises Aborted unless an epoch is the lease's.
        """
        self._runner, self._thread, self._folder = runner, thread, folder
        self._check_epoch, self._on_change = check_epoch, on_change
        self._received = ReceivedAdapters()
        if folder is not None:
            remove_leftovers()

    async def load(self, *, epoch: int, name: str, path: str, loaded_at_ns: int) -> Adapter:
        """Loads an adapter beside the steps; see LoadAdapter in worker.proto."""
        self._check_epoch(epoch)
        try:
            opened = await asyncio.to_thread(self._open, name, path)
        except NoSuchFolder as error:
            raise NotFound(str(error)) from None
        except ModelError as error:
            raise FailedPrecondition(str(error)) from None
        info = replace(opened.info, path=path, loaded_at_ns=loaded_at_ns)
        await self._add(opened._replace(info=info), epoch)
        logger.info("adapter loaded: %s from %s", info, path)
        return info

    def _open(self, name: str, path: str) -> OpenedAdapter:
        return self._runner.open_adapter(name, str(find_below(self._folder, path)))

    async def receive(
        self, *, epoch: int, adapter: Adapter, chunks: AsyncIterator[FileChunk]
    ) -> None:
        """Loads an adapter from files that are sent; see SendAdapter in worker.proto."""
        self._check_epoch(epoch)
        if self._folder is None:
            raise FailedPrecondition(
                "this worker takes adapters at its start alone; set --adapter-dir"
            )
        try:
            folder = await asyncio.to_thread(self._received.begin)
        except ModelError as error:
            raise FailedPrecondition(str(error)) from None
        try:
            async for chunk in chunks:
                await asyncio.to_thread(write_chunk, folder, chunk)
            opened = await asyncio.to_thread(self._open_received, adapter, folder)
            await self._add(opened._replace(info=adapter), epoch)
        except BaseException as error:
            discard(folder)
            if isinstance(error, ModelError):
                raise FailedPrecondition(str(error)) from None
            raise
        self._received.keep(adapter.sha256, folder)
        logger.info("adapter loaded: %s, sent by another worker", adapter)

    def _open_received(self, adapter: Adapter, folder: Path) -> OpenedAdapter:
        found = describe_adapter(adapter.name, folder).sha256
        if found != adapter.sha256:
            raise ModelError(
                f"what was sent of the adapter {adapter} has the content {found[:12]}; its files"
                " have changed since it was loaded; load it again"
            )
        return self._runner.open_adapter(adapter.name, str(folder))

    async def read(self, *, epoch: int, adapter: Adapter) -> AsyncIterator[FileChunk]:
        """Yields the files of an adapter; see ReadAdapter in worker.proto."""
        self._check_epoch(epoch)
        try:
            chunks = read_chunks(self._folder_of(adapter))
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                yield chunk
        except ModelError as error:
            raise FailedPrecondition(str(error)) from None

    def _folder_of(self, adapter: Adapter) -> Path:
        loaded = next((one for one in self._runner.model.adapters if one == adapter), None)
        if loaded is None:
            raise NotFound(f"this worker has no adapter {adapter}")
        return self._received.find(adapter.sha256) or find_below(self._folder, loaded.path)

    async def unload(self, *, epoch: int, adapter: Adapter) -> None:
        """Frees an adapter that no step names; see UnloadAdapter in worker.proto."""
        self._check_epoch(epoch)
        await self._change(lambda: self._runner.remove_adapter(adapter))
        if adapter.sha256 not in self._runner.adapter_slots:
            await asyncio.to_thread(self._received.remove, adapter.sha256)
        logger.info("adapter unloaded: %s", adapter)

    async def _add(self, opened: OpenedAdapter, epoch: int) -> None:
        self._check_epoch(epoch)  # it may have changed meanwhile
        await self._change(lambda: self._runner.add_adapter(opened))

    async def _change(self, change: Callable[[], None]) -> None:
        """Changes what the runner has, between two steps."""
        await self._thread.submit(change)
        self._on_change(self._runner.model.adapters)

    def close(self) -> None:
        self._received.close()
