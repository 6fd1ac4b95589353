"""Reads blocks that other workers export into the CPU pool, beside the steps.

A block is whole and has its digest before the pool sees it. What goes wrong ends the transfer: the
blocks before it have arrived, and the tokens of the others are computed.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import grpc

from signalbox_contract.sections.store_moves import BlockSource
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig, TlsError
from signalbox_worker.kv.peers.exported_parts import blocks_at_once, digest_of
from signalbox_worker.kv.store.block_transfers import BlockReader
from signalbox_worker.kv.store.pool_transfers import CANCELLED
from signalbox_worker.kv.store.transfer import Transfer

IDLE_S = 60.0
"""Time for which a channel stays open that no fetch uses."""


@dataclass(slots=True, eq=False)
class _Shared:
    """A channel and its fetches."""

    channel: grpc.aio.Channel
    num_users: int = 0
    closing: asyncio.TimerHandle | None = None


class PeerChannels:
    """A channel to each worker, which stays open for a while between fetches.

    Used on one event loop.

    Args:
        tls: certificates that this worker shows and accepts.
    """

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._open: dict[tuple[str, str], _Shared] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Returns the number of workers to which a channel is open."""
        return len(self._open)

    @asynccontextmanager
    async def to(self, source: BlockSource) -> AsyncIterator[grpc.aio.Channel]:
        """Gives a channel to a worker; the next call opens another if this one raises, or is
        cancelled: that may be because the worker no longer answers.

        Raises TlsError.
        """
        key = source.address, source.server_name
        if (shared := self._open.get(key)) is None:
            name = source.server_name or None
            channel = open_channel(source.address, tls=self._tls, server_name=name)
            shared = self._open[key] = _Shared(channel)
        if shared.closing is not None:
            shared.closing.cancel()
        shared.num_users += 1
        try:
            yield shared.channel
        except (Exception, asyncio.CancelledError):
            if self._open.get(key) is shared:
                del self._open[key]
            raise
        finally:
            shared.num_users -= 1
            if not shared.num_users:
                idle_s = IDLE_S if self._open.get(key) is shared else 0.0
                loop = asyncio.get_running_loop()
                shared.closing = loop.call_later(idle_s, self._close, key, shared)

    def close(self) -> None:
        for key, shared in list(self._open.items()):
            self._close(key, shared)

    def _close(self, key: tuple[str, str], shared: _Shared) -> None:
        if self._open.get(key) is shared:
            del self._open[key]
        if shared.closing is not None:
            shared.closing.cancel()
        task = asyncio.ensure_future(shared.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


logger = logging.getLogger(__name__)

TOLD_S = 10.0
"""Longest that a ticket is shown again of which its owner has not been told; the scheduler, which
knows for how long the owner is busy, cancels the transfer before."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.002, 0.05
STALL_S = 5.0
"""Longest wait for the next part of a block."""


class BadBlock(Exception):
    """A worker has sent something else than it was asked for."""


class PeerClient(BlockReader):
    """Tasks that read; made on the event loop that they run on.

    Args:
        tls: certificates that this worker shows and accepts.
    """

    reaches_peers = True

    def __init__(self, tls: TlsConfig = CLEAR) -> None:
        self._channels = PeerChannels(tls)
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Transfer, asyncio.Task[None]] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, transfer: Transfer, source: BlockSource) -> None:
        self._loop.call_soon_threadsafe(self._start, transfer, source)

    def stop_ended(self) -> None:
        if self._is_closed:  # pools may outlive the event loop
            return
        self._loop.call_soon_threadsafe(self._stop, lambda transfer: transfer.is_ended)

    def close(self) -> None:
        self._is_closed = True
        self._stop(lambda transfer: True)
        self._channels.close()

    def _start(self, transfer: Transfer, source: BlockSource) -> None:
        task = self._loop.create_task(self._read(transfer, source))
        self._tasks[transfer] = task
        task.add_done_callback(lambda _: self._tasks.pop(transfer, None))

    def _stop(self, chosen: Callable[[Transfer], bool]) -> None:
        for transfer, task in list(self._tasks.items()):
            if chosen(transfer):
                task.cancel()

    async def _read(self, transfer: Transfer, source: BlockSource) -> None:
        failed = CANCELLED
        try:
            async with self._channels.to(source) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                await self._receive(transfer, stub, source.ticket)
            failed = ""
        except grpc.aio.AioRpcError as error:
            failed = f"{error.code().name}: {error.details()}"
        except (BadBlock, TlsError) as error:
            failed = str(error)
        except TimeoutError:
            failed = f"no part of a block within {STALL_S:g} s"
        finally:
            if failed not in ("", CANCELLED):
                failed = f"the worker at {source.address}: {failed}".partition("\n")[0]
                logger.warning("KV blocks are computed that were to come from %s", failed)
            transfer.end(failed)

    async def _receive(
        self,
        transfer: Transfer,
        stub: worker_pb2_grpc.WorkerServiceStub,
        ticket: bytes,
    ) -> None:
        """Shows the ticket until its owner knows it, and takes what comes."""
        ends_at, pause_s = time.monotonic() + TOLD_S, MIN_PAUSE_S
        while transfer.restart():  # what the owner computes first is no time of the blocks
            try:
                await self._take(transfer, stub.ReadBlocks(pb.ReadBlocksRequest(ticket=ticket)))
                return
            except grpc.aio.AioRpcError as error:
                is_untold = error.code() is grpc.StatusCode.NOT_FOUND
                if not is_untold or time.monotonic() >= ends_at:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _take(
        self,
        transfer: Transfer,
        call: "grpc.aio.UnaryStreamCall[pb.ReadBlocksRequest, pb.ReadBlocksResponse]",
    ) -> None:
        block, num_blocks, block_bytes = bytearray(), 0, transfer.block_bytes
        copying = deque[asyncio.Task[bool]]()
        try:
            while part := await self._next(call):
                if not part.chunk:
                    raise BadBlock("it sends a part without bytes")
                block += part.chunk
                if len(block) > block_bytes or num_blocks == len(transfer.keys):
                    raise BadBlock("it sends more than was asked for")
                if part.digest:
                    await asyncio.to_thread(
                        _check, block, block_bytes, transfer.keys[num_blocks], part.digest
                    )
                    if len(copying) == blocks_at_once(block_bytes):
                        await copying.popleft()
                    copy = asyncio.to_thread(transfer.copy_in, num_blocks, memoryview(block))
                    copying.append(asyncio.create_task(copy))
                    block, num_blocks = bytearray(), num_blocks + 1
            if block:
                raise BadBlock("it ends within a block")
            await asyncio.gather(*copying)
            if num_blocks < len(transfer.keys):
                transfer.miss(num_blocks)
        except Exception:
            await asyncio.gather(*copying, return_exceptions=True)  # what has come arrives
            raise
        finally:
            call.cancel()

    async def _next(
        self, call: "grpc.aio.UnaryStreamCall[pb.ReadBlocksRequest, pb.ReadBlocksResponse]"
    ) -> pb.ReadBlocksResponse | None:
        async with asyncio.timeout(STALL_S):
            part = await call.read()
        return None if part is grpc.aio.EOF else cast(pb.ReadBlocksResponse, part)


def _check(block: bytearray, block_bytes: int, key: bytes, digest: bytes) -> None:
    """Raises BadBlock unless a block is what its hash names."""
    if len(block) != block_bytes:
        raise BadBlock(f"a block has {len(block)} bytes")
    if digest_of(key, block) != digest:
        raise BadBlock("a block does not have its digest")
