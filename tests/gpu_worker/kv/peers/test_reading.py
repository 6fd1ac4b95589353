"""A worker reads what another exports, over gRPC: the right bytes or none, whatever goes wrong."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from signalbox_contract.sections.store_moves import (
    BlockSource,
    Export,
    Fetch,
    MoveResult,
    StoreMoves,
)
from signalbox_contract.step import Step, decode_step, encode_step
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc
from signalbox_rpc.metrics.registry import make_registry
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig
from signalbox_worker import main
from signalbox_worker.kv.peers import peer_client
from signalbox_worker.kv.peers.exported_parts import Part, digest_of
from signalbox_worker.kv.peers.peer_client import PeerClient
from signalbox_worker.kv.store.pool_transfers import CANCELLED, EXPIRED
from signalbox_worker.kv.store.transfer import ExportedBlocks, Transfer
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_executor import POISON
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service import worker as worker_module
from signalbox_worker.service.worker import NO_EPOCH, Worker
from tests.gpu_worker.served_worker import EPOCH, init_cache, make_worker
from tests.integration.insight.test_metrics import value
from tests.rpc.certificates import Authority
from tests.waiting import EVENT_S, eventually

CONFIG = SimulatedConfig(block_size=8, num_gpu_blocks=16, num_cpu_blocks=4)
TICKET = b"t" * 16
MOVES = "signalbox_worker_kv_peer_moves"
HASHES = [bytes([number]) * 16 for number in range(3)]
LAST_S = 600
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0)]
"""Otherwise gRPC takes megabytes that nothing reads."""


class Peer:
    """A worker behind a port, and its steps so far."""

    def __init__(self, worker: Worker, runner: SimulatedRunner, address: str) -> None:
        self.worker, self.kv = worker, runner.simulation
        self.address = address
        self.num_steps = 0
        self.ended: list[MoveResult] = []

    async def step(self, moves: StoreMoves | None = None) -> None:
        self.num_steps += 1
        step = Step(epoch=EPOCH, step_id=self.num_steps, store_moves=moves)
        result = await self.worker.submit(decode_step(encode_step(step)))
        self.ended += result.moves

    async def until_ended(self) -> MoveResult:
        """Returns the one move that ends; steps are what says so."""
        ends_at = time.monotonic() + EVENT_S
        while not self.ended:
            assert time.monotonic() < ends_at, "no move has ended"
            await self.step()
        (result,), self.ended = self.ended, []
        return result

    async def export(
        self, *, ticket: bytes = TICKET, reader: str = "", lasts_s: float = LAST_S
    ) -> None:
        export = Export(self.num_steps + 1, HASHES, [3, 0, 1], ticket, reader, int(lasts_s * 1e9))
        await self.step(StoreMoves(exports=[export]))

    async def fetch(self, source: BlockSource, *, num_blocks: int = 3) -> None:
        blocks = list(range(num_blocks))
        fetch = Fetch(self.num_steps + 1, HASHES[:num_blocks], blocks, source)
        await self.step(StoreMoves(fetches=[fetch]))

    def source(self, ticket: bytes = TICKET) -> BlockSource:
        return BlockSource(self.address, "", ticket)

    def stub(self, channel: grpc.aio.Channel) -> worker_pb2_grpc.WorkerServiceStub:
        return worker_pb2_grpc.WorkerServiceStub(channel)

    async def status(self, ticket: bytes, tls: TlsConfig = CLEAR) -> grpc.StatusCode:
        """Returns what ReadBlocks ends with."""
        async with open_channel(self.address, tls=tls) as channel:
            try:
                async for _ in self.stub(channel).ReadBlocks(pb.ReadBlocksRequest(ticket=ticket)):
                    pass
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK


@asynccontextmanager
async def peer(tls: TlsConfig = CLEAR, config: SimulatedConfig = CONFIG) -> AsyncIterator[Peer]:
    runner = SimulatedRunner(config)
    worker = await Worker.load(lambda: runner, tls=tls)
    worker.begin_epoch(EPOCH)
    await init_cache(worker)
    server = main.make_server(worker, host="127.0.0.1", port=0, tls=tls)
    port = await server.start()
    rng = np.random.default_rng(port)
    kv = runner.simulation.cpu_kv
    kv[:] = rng.integers(1 << 63, size=kv.shape, dtype=np.uint64)
    try:
        yield Peer(worker, runner, f"127.0.0.1:{port}")
    finally:
        await server.drain(grace_s=0)
        worker.close()


async def test_blocks_arrive_as_they_were_exported() -> None:
    async with peer() as owner, peer() as reader:
        await owner.export()
        await reader.fetch(owner.source())
        fetched, exported = await reader.until_ended(), await owner.until_ended()
        assert reader.kv.cpu_kv[:3].tolist() == owner.kv.cpu_kv[[3, 0, 1]].tolist()
    num_bytes = 3 * CONFIG.block_size * 8
    assert (fetched.num_blocks, fetched.num_bytes, fetched.failed) == (3, num_bytes, "")
    assert (exported.num_blocks, exported.num_bytes, exported.failed) == (3, num_bytes, "")
    assert fetched.duration_ns > 0


async def test_a_block_of_several_parts_arrives_whole() -> None:
    config = replace(CONFIG, block_size=150_000, max_model_len=150_000)  # 1.2 MB
    async with peer(config=config) as owner, peer(config=config) as reader:
        await owner.export()
        await reader.fetch(owner.source())
        assert (await reader.until_ended()).num_blocks == 3
        assert (reader.kv.cpu_kv[:3] == owner.kv.cpu_kv[[3, 0, 1]]).all()


async def test_several_blocks_are_copied_at_a_time_at_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def together(copy: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a copy that waits for that of another block."""
        both = threading.Barrier(2)

        def copying(move: ExportedBlocks | Transfer, index: int, *data: memoryview) -> Any:
            if index < 2:
                both.wait(EVENT_S)
            return copy(move, index, *data)

        return copying

    monkeypatch.setattr(ExportedBlocks, "copy_out", together(ExportedBlocks.copy_out))
    monkeypatch.setattr(Transfer, "copy_in", together(Transfer.copy_in))
    async with peer() as owner, peer() as reader:
        await owner.export()
        await reader.fetch(owner.source())
        assert (await reader.until_ended()).num_blocks == 3
        assert reader.kv.cpu_kv[:3].tolist() == owner.kv.cpu_kv[[3, 0, 1]].tolist()


async def test_a_reader_may_come_before_the_owner_has_been_told() -> None:
    async with peer() as owner, peer() as reader:
        await reader.fetch(owner.source())
        await reader.step()
        await owner.export()
        assert (await reader.until_ended()).num_blocks == 3


async def test_fewer_blocks_than_were_asked_for_are_no_failure() -> None:
    async with peer() as owner, peer() as reader:
        await owner.step(
            StoreMoves(exports=[Export(1, HASHES[:2], [3, 0], TICKET, "", LAST_S * 10**9)])
        )
        await reader.fetch(owner.source())
        fetched = await reader.until_ended()
    assert (fetched.num_blocks, fetched.failed) == (2, "")


async def test_a_ticket_is_good_once_and_no_other_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_client, "TOLD_S", 0.05)
    async with peer() as owner, peer() as reader:
        await owner.export()
        assert await owner.status(b"f" * 16) is grpc.StatusCode.NOT_FOUND
        assert await owner.status(b"") is grpc.StatusCode.NOT_FOUND
        assert await owner.status(TICKET) is grpc.StatusCode.OK
        assert await owner.status(TICKET) is grpc.StatusCode.NOT_FOUND
        await reader.fetch(owner.source())
        fetched = await reader.until_ended()
    assert fetched.num_blocks == 0
    assert "NOT_FOUND" in fetched.failed


async def test_an_expired_ticket_is_refused_and_its_blocks_are_free() -> None:
    async with peer() as owner:
        await owner.export(lasts_s=1e-9)
        assert await owner.status(TICKET) is grpc.StatusCode.NOT_FOUND
        assert (await owner.until_ended()).failed == EXPIRED


async def test_a_lease_that_has_ended_export_nothing() -> None:
    async with peer() as owner:
        await owner.export()
        owner.worker.begin_epoch(NO_EPOCH)
        assert await owner.status(TICKET) is grpc.StatusCode.NOT_FOUND


def num_moves(worker: Worker, direction: str) -> float:
    return value(make_registry(worker.samples), MOVES, direction=direction)


async def test_the_end_of_a_lease_ends_what_is_exported_and_read() -> None:
    """No other lease need come for that."""
    async with peer() as owner, peer() as reader:
        await owner.export()
        assert num_moves(owner.worker, "export") == 1
        await reader.fetch(owner.source(b"x" * 16))  # which is asked for again and again
        await eventually(lambda: num_moves(reader.worker, "read") == 1)
        for one in (owner, reader):
            one.worker.begin_epoch(NO_EPOCH)
        await eventually(lambda: not num_moves(owner.worker, "export"))
        await eventually(lambda: not num_moves(reader.worker, "read"))


async def test_pools_that_are_made_anew_export_nothing() -> None:
    async with peer() as owner:
        await owner.export()
        await init_cache(owner.worker)
        assert await owner.status(TICKET) is grpc.StatusCode.NOT_FOUND


Harm = Callable[[ExportedBlocks, int], bytearray | None]


def harmed(monkeypatch: pytest.MonkeyPatch, harm: Harm) -> None:
    """Lets something happen when the second block is copied out, after the first."""
    copy_out, is_first_out = ExportedBlocks.copy_out, threading.Event()

    def copy_or_harm(exported: ExportedBlocks, index: int) -> bytearray | None:
        if index == 1:
            assert is_first_out.wait(EVENT_S)
            return harm(exported, index)
        block = copy_out(exported, index)
        is_first_out.set()
        return block

    monkeypatch.setattr(ExportedBlocks, "copy_out", copy_or_harm)


async def test_a_lease_that_ends_while_it_is_read_ends_the_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with peer() as owner, peer() as reader:

        def end_lease(exported: ExportedBlocks, index: int) -> None:
            exported.transfer.end("the lease is over")

        harmed(monkeypatch, end_lease)
        await owner.export()
        await reader.fetch(owner.source())
        fetched = await reader.until_ended()
        assert reader.kv.cpu_kv[0].tolist() == owner.kv.cpu_kv[3].tolist()
    assert fetched.num_blocks == 1
    assert "ABORTED" in fetched.failed


async def test_a_block_that_came_before_a_failure_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    has_failed = threading.Event()
    copy_in, next_part = Transfer.copy_in, PeerClient._next

    def copy_late(move: Transfer, index: int, data: memoryview) -> bool:
        assert has_failed.wait(EVENT_S)
        return copy_in(move, index, data)

    async def next_or_fail(reader: PeerClient, call: Any) -> pb.ReadBlocksResponse | None:
        try:
            return await next_part(reader, call)
        except grpc.aio.AioRpcError:
            has_failed.set()
            raise

    monkeypatch.setattr(Transfer, "copy_in", copy_late)
    monkeypatch.setattr(PeerClient, "_next", next_or_fail)
    async with peer() as owner, peer() as reader:
        harmed(monkeypatch, lambda exported, index: None)
        await owner.export()
        await reader.fetch(owner.source())
        fetched = await reader.until_ended()
        assert reader.kv.cpu_kv[0].tolist() == owner.kv.cpu_kv[3].tolist()
    assert fetched.num_blocks == 1
    assert "ABORTED" in fetched.failed


@pytest.mark.parametrize("num_bytes", [63, 65, 200])
async def test_blocks_of_another_size_are_refused(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    async with peer() as owner, peer() as reader:
        harmed(monkeypatch, lambda exported, index: bytearray(num_bytes))
        await owner.export()
        before = reader.kv.cpu_kv[1:].copy()
        await reader.fetch(owner.source())
        fetched = await reader.until_ended()
        assert (reader.kv.cpu_kv[1:] == before).all()
    assert fetched.num_blocks == 1
    assert fetched.failed


@pytest.mark.parametrize("harm", ["flipped bit", "other block", "cut off", "no bytes", "too many"])
async def test_bytes_that_are_not_what_was_asked_for_never_reach_the_pool(
    monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    async def parts(exported: ExportedBlocks, **_: object) -> AsyncIterator[Part]:
        content = [exported.copy_out(index) for index in range(3)]
        for index, key in enumerate(exported.transfer.keys):
            block = content[index]
            assert block is not None
            digest = digest_of(key, block)
            if index == 1 and harm == "flipped bit":
                block[5] ^= 16
            if index == 1 and harm == "other block":
                digest = digest_of(HASHES[2], block)
            if index == 1 and harm == "cut off":
                yield Part(bytes(block[:10]))
                return
            while index == 1 and harm == "no bytes":
                yield Part(b"")
            yield Part(bytes(block), digest)
        if harm == "too many":
            yield Part(b"more")

    monkeypatch.setattr("signalbox_worker.service.worker.exported_parts", parts)
    async with peer() as owner, peer() as reader:
        before = reader.kv.cpu_kv[1:].copy()
        await owner.export()
        await reader.fetch(owner.source(), num_blocks=3)
        fetched = await reader.until_ended()
        if harm == "too many":
            assert fetched.num_blocks == 3  # they are what was asked for
        else:
            assert (reader.kv.cpu_kv[1:] == before).all()
            assert fetched.num_blocks == 1
            assert fetched.failed


async def test_a_fetch_that_is_called_off_ends_at_once_and_writes_nothing() -> None:
    async with peer() as owner, peer() as reader:
        before = reader.kv.cpu_kv.copy()
        await reader.fetch(owner.source())  # the ticket is never told
        await reader.step(StoreMoves(cancels=[1]))
        fetched = await reader.until_ended()
        assert fetched.failed == CANCELLED
        await owner.export()
        tasks = reader.worker._block_reader
        await eventually(lambda: not len(tasks))
        assert (reader.kv.cpu_kv == before).all()


async def test_a_fetch_that_is_called_off_by_the_step_that_begins_it_ends() -> None:
    async with peer() as owner, peer() as reader:
        fetch = Fetch(1, HASHES, [0, 1, 2], owner.source())  # of a ticket that is never told
        await reader.step(StoreMoves(fetches=[fetch], cancels=[1]))
        assert (await reader.until_ended()).failed == CANCELLED


async def test_an_owner_that_cannot_be_reached_fails_the_move() -> None:
    async with peer() as reader:
        async with peer() as owner:
            source = owner.source()
        await reader.fetch(source)
        fetched = await reader.until_ended()
    assert fetched.num_blocks == 0
    assert "UNAVAILABLE" in fetched.failed


async def test_fetches_from_one_worker_share_a_channel_until_it_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []

    def opening(address: str, **options: Any) -> grpc.aio.Channel:
        opened.append(address)
        return open_channel(address, **options)

    monkeypatch.setattr(peer_client, "open_channel", opening)
    async with peer() as owner, peer() as reader:
        tasks = reader.worker._block_reader
        for number in range(3):
            if number == 2:
                monkeypatch.setattr(peer_client, "IDLE_S", 0.0)
            ticket = bytes([number]) * 16
            await owner.export(ticket=ticket)
            await reader.fetch(owner.source(ticket))
            assert (await reader.until_ended()).num_blocks == 3
            await owner.until_ended()
            await eventually(lambda: not len(tasks))
        assert opened == [owner.address]
        await eventually(lambda: not len(tasks._channels))


async def test_a_channel_on_which_a_fetch_has_failed_is_not_used_again() -> None:
    async with peer() as reader:
        async with peer() as owner:
            source = owner.source()
        await reader.fetch(source)
        assert (await reader.until_ended()).failed
        tasks = reader.worker._block_reader
        await eventually(lambda: not len(tasks._channels))


async def test_a_channel_on_which_a_fetch_was_called_off_is_not_used_again() -> None:
    """Its worker may have been lost, which is what calls fetches off."""
    async with peer() as owner, peer() as reader:
        await reader.fetch(owner.source())  # the ticket is never told
        tasks = reader.worker._block_reader
        await eventually(lambda: len(tasks._channels) == 1)
        await reader.step(StoreMoves(cancels=[1]))
        assert (await reader.until_ended()).failed == CANCELLED
        await eventually(lambda: not len(tasks._channels))


async def test_a_reader_that_leaves_ends_the_export() -> None:
    config = replace(CONFIG, block_size=150_000, max_model_len=150_000)
    async with peer(config=config) as owner:
        await owner.export()
        async with grpc.aio.insecure_channel(owner.address, options=SMALL_WINDOW) as channel:
            call = owner.stub(channel).ReadBlocks(pb.ReadBlocksRequest(ticket=TICKET))
            await call.read()  # the others do not fit into the window
            call.cancel()
        exported = await owner.until_ended()
    assert exported.num_blocks < 3
    assert exported.failed


async def test_a_reader_that_stops_reading_leaves_its_call_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "READ_STALL_S", 0.5)
    monkeypatch.setattr(worker_module, "MAX_READS", 1)
    config = replace(CONFIG, block_size=150_000, max_model_len=150_000)
    async with peer(config=config) as owner, peer(config=config) as reader:
        await owner.export()
        channel = grpc.aio.insecure_channel(owner.address, options=SMALL_WINDOW)
        async with channel:
            stalled = owner.stub(channel).ReadBlocks(pb.ReadBlocksRequest(ticket=TICKET))
            await stalled.initial_metadata()  # and nothing more is read
            exported = await owner.until_ended()
            assert exported.num_blocks < 3
            assert exported.failed
            await owner.export()
            await reader.fetch(owner.source())
            assert (await reader.until_ended()).num_blocks == 3
            with pytest.raises(grpc.aio.AioRpcError, match="does not read: nothing"):
                async for _ in stalled:
                    pass


async def test_only_the_worker_that_blocks_are_exported_to_reads_them(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    owner_tls = authority.member("worker.owner", "127.0.0.1")
    reader_tls = authority.member("worker.reader", "127.0.0.1")
    denied = grpc.StatusCode.PERMISSION_DENIED
    async with peer(owner_tls) as owner, peer(reader_tls) as reader:
        for role in ("router", "scheduler", "operator"):
            await owner.export(reader="worker.reader")
            assert await owner.status(TICKET, authority.member(role)) is denied
            await reader.fetch(owner.source())
            assert (await reader.until_ended()).num_blocks == 3, "it has not cost the ticket"
            assert (await owner.until_ended()).failed == ""
        await owner.export(reader="worker.reader")
        assert await owner.status(TICKET, authority.member("worker.other")) is denied
        assert (await owner.until_ended()).num_blocks == 0
        async with open_channel(owner.address, tls=reader_tls) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="PERMISSION_DENIED"):
                await owner.stub(channel).GetWorkerInfo(pb.GetWorkerInfoRequest())


async def test_a_pool_without_blocks_takes_part_in_nothing() -> None:
    runner = SimulatedRunner(replace(CONFIG, num_cpu_blocks=0))
    assert runner.profile().block_format == ""
    assert SimulatedRunner(CONFIG).profile().block_format
    assert POISON not in runner.simulation.cpu_kv


def test_pools_may_be_made_anew_after_the_event_loop_has_closed() -> None:
    runner = SimulatedRunner(CONFIG)

    async def serve() -> None:
        worker = await make_worker(runner)
        await init_cache(worker)
        worker.close()

    asyncio.run(serve())
    runner.init_cache_engine(num_gpu_blocks=2, num_cpu_blocks=1)
    assert (runner.simulation.gpu_kv == POISON).all()
