"""Reads blocks that other workers lend into the CPU pool, beside the steps.

A block is whole and has its digest before the pool sees it. What goes wrong ends the move: the
blocks before it have arrived, and the tokens of the others are computed.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import grpc

from signalbox_contract.sections.store_moves import BlockSource
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc
from signalbox_rpc.transport.tls import CLEAR, TlsConfig, TlsError
from signalbox_worker.kv_peers.lent_parts import blocks_at_once, digest_of
from signalbox_worker.kv_peers.peer_channels import PeerChannels
from signalbox_worker.kv_store.move import Move
from signalbox_worker.kv_store.pool_moves import CANCELLED

logger = logging.getLogger(__name__)

TOLD_S = 10.0
"""Longest that a ticket is shown again of which its owner has not been told; the scheduler, which
knows for how long the owner is busy, calls the move off before."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.002, 0.05
STALL_S = 5.0
"""Longest wait for the next part of a block."""


class BadBlock(Exception):
    """A worker has sent something else than it was asked for."""


class BlockReader:
    """Tasks that read; made on the event loop that they run on.

    Args:
        tls: certificates that this worker shows and accepts.
    """

    def __init__(self, tls: TlsConfig = CLEAR) -> None:
        self._channels = PeerChannels(tls)
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Move, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """Returns the number of moves that are read."""
        return len(self._tasks)

    def begin(self, move: Move, source: BlockSource, *, block_bytes: int) -> None:
        """Reads a move's blocks from another worker; on any thread."""
        self._loop.call_soon_threadsafe(self._start, move, source, block_bytes)

    def stop_ended(self) -> None:
        """Stops reading what moves are over, such as those that are called off; on any thread."""
        self._loop.call_soon_threadsafe(self._stop, lambda move: move.is_ended)

    def close(self) -> None:
        """Stops all; on the event loop."""
        self._stop(lambda move: True)
        self._channels.close()

    def _start(self, move: Move, source: BlockSource, block_bytes: int) -> None:
        task = self._loop.create_task(self._read(move, source, block_bytes))
        self._tasks[move] = task
        task.add_done_callback(lambda _: self._tasks.pop(move, None))

    def _stop(self, chosen: Callable[[Move], bool]) -> None:
        for move, task in list(self._tasks.items()):
            if chosen(move):
                task.cancel()

    async def _read(self, move: Move, source: BlockSource, block_bytes: int) -> None:
        failed = CANCELLED
        try:
            async with self._channels.to(source) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                await self._receive(move, stub, source.ticket, block_bytes)
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
            move.end(failed)

    async def _receive(
        self,
        move: Move,
        stub: worker_pb2_grpc.WorkerServiceStub,
        ticket: bytes,
        block_bytes: int,
    ) -> None:
        """Shows the ticket until its owner knows it, and takes what comes."""
        ends_at, pause_s = time.monotonic() + TOLD_S, MIN_PAUSE_S
        while move.restart():  # what the owner computes first is no time of the blocks
            try:
                await self._take(
                    move, stub.ReadBlocks(pb.ReadBlocksRequest(ticket=ticket)), block_bytes
                )
                return
            except grpc.aio.AioRpcError as error:
                is_untold = error.code() is grpc.StatusCode.NOT_FOUND
                if not is_untold or time.monotonic() >= ends_at:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _take(
        self,
        move: Move,
        call: "grpc.aio.UnaryStreamCall[pb.ReadBlocksRequest, pb.ReadBlocksResponse]",
        block_bytes: int,
    ) -> None:
        block, num_blocks = bytearray(), 0
        copying = deque[asyncio.Task[bool]]()
        try:
            while part := await self._next(call):
                if not part.chunk:
                    raise BadBlock("it sends a part without bytes")
                block += part.chunk
                if len(block) > block_bytes or num_blocks == len(move.keys):
                    raise BadBlock("it sends more than was asked for")
                if part.digest:
                    await asyncio.to_thread(
                        _check, block, block_bytes, move.keys[num_blocks], part.digest
                    )
                    if len(copying) == blocks_at_once(block_bytes):
                        await copying.popleft()
                    copy = asyncio.to_thread(move.copy_in, num_blocks, memoryview(block))
                    copying.append(asyncio.create_task(copy))
                    block, num_blocks = bytearray(), num_blocks + 1
            if block:
                raise BadBlock("it ends within a block")
            await asyncio.gather(*copying)
            if num_blocks < len(move.keys):
                move.miss(num_blocks)
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
