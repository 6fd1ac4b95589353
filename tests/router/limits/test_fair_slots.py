"""Costly work is shared between payers, whatever each of them asks for."""

import asyncio
from contextlib import suppress

import pytest

from signalbox_router.limits.fair_slots import FairSlots
from signalbox_router.limits.payers import Payer, grpc_address, payer_of

BOMBER, HONEST, OTHER = Payer("bomber"), Payer("honest"), Payer("other")


class Work:
    """Jobs that run until a test ends them, on slots."""

    def __init__(self, num_slots: int = 3) -> None:
        self.now = 0.0
        self.slots = FairSlots(num_slots, clock=lambda: self.now)
        self.running: list[tuple[Payer, asyncio.Event]] = []
        self.begun: list[Payer] = []

    async def _job(self, payer: Payer) -> None:
        over = asyncio.Event()
        async with self.slots.slot(payer):
            self.running.append((payer, over))
            self.begun.append(payer)
            await over.wait()

    async def ask(self, payer: Payer, count: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._job(payer)) for _ in range(count)]
        await run_ready_tasks()
        return tasks

    async def end_first(self, payer: Payer, *, after_s: float = 1.0) -> None:
        self.now += after_s
        index = next(i for i, (one, _) in enumerate(self.running) if one == payer)
        self.running.pop(index)[1].set()
        await run_ready_tasks()

    def payers(self) -> list[Payer]:
        return [payer for payer, _ in self.running]


async def run_ready_tasks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_payer_leaves_a_slot_for_the_next() -> None:
    work = Work()
    await work.ask(BOMBER, 40)
    assert work.payers() == [BOMBER, BOMBER]
    await work.ask(HONEST)
    assert work.payers() == [BOMBER, BOMBER, HONEST]


async def test_a_payer_with_few_jobs_waits_for_one_job_of_each_other() -> None:
    work = Work()
    await work.ask(BOMBER, 20)
    await work.ask(OTHER, 20)
    assert work.payers() == [BOMBER, BOMBER, OTHER]
    await work.ask(HONEST)
    await work.end_first(BOMBER)
    assert work.begun[-1] == HONEST


async def test_of_payers_that_hold_equally_many_the_one_that_used_least_is_next() -> None:
    work = Work(num_slots=2)
    for payer in (BOMBER, OTHER, HONEST):
        await work.ask(payer, 9)
    assert work.payers() == [BOMBER, OTHER]
    await work.end_first(OTHER, after_s=1)
    await work.end_first(BOMBER, after_s=99)
    assert work.begun == [BOMBER, OTHER, HONEST, OTHER]
    await work.end_first(OTHER, after_s=1)
    assert work.begun[4:] == [OTHER]


async def test_a_cancelled_wait_takes_no_slot() -> None:
    work = Work()
    await work.ask(BOMBER, 2)
    waiting = await work.ask(BOMBER, 5)
    for task in waiting:
        task.cancel()
    await run_ready_tasks()
    assert work.slots.num_waiting == 0
    await work.ask(HONEST)
    assert work.begun[-1] == HONEST
    for payer in (BOMBER, BOMBER, HONEST):
        await work.end_first(payer)
    await work.ask(OTHER, 3)
    assert work.payers() == [OTHER, OTHER]


async def test_a_slot_that_comes_with_the_cancellation_is_given_back() -> None:
    work = Work()
    await work.ask(BOMBER, 2)
    (waiting,) = await work.ask(BOMBER)
    work.running.pop(0)[1].set()
    await asyncio.sleep(0)  # the job has ended, and the next has not begun
    assert not work.slots.num_waiting
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    await work.ask(BOMBER)
    assert work.payers().count(BOMBER) == 2


async def test_a_heavy_job_waits_for_slots_enough_and_keeps_its_turn() -> None:
    slots = FairSlots(3)
    begun: list[str] = []
    over = {name: asyncio.Event() for name in ("light", "heavy", "late")}

    async def job(payer: Payer, name: str, weight: int) -> None:
        async with slots.slot(payer, weight=weight):
            begun.append(name)
            await over[name].wait()

    tasks = []
    for payer, name, weight in ((BOMBER, "light", 1), (BOMBER, "light", 1)):
        tasks.append(asyncio.create_task(job(payer, name, weight)))
        await run_ready_tasks()
    for payer, name, weight in ((HONEST, "heavy", 2), (OTHER, "late", 1)):
        tasks.append(asyncio.create_task(job(payer, name, weight)))
        await run_ready_tasks()
    assert begun == ["light", "light"]  # the late one fits, but it is not its turn
    tasks[2].cancel()
    await run_ready_tasks()
    assert begun == ["light", "light", "late"]
    for event in over.values():
        event.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with slots.slot(HONEST, weight=2):
        pass
    with pytest.raises(ValueError, match="more than a payer may hold"):
        async with slots.slot(HONEST, weight=3):
            pass


async def test_payers_that_are_gone_are_forgotten() -> None:
    work = Work()
    for i in range(100):
        await work.ask(Payer(address=f"10.0.0.{i}"))
        await work.end_first(Payer(address=f"10.0.0.{i}"))
    assert not work.slots._shares


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:51234", "10.0.0.7"),
        ("ipv6:%5B2001:db8::1%5D:51234", "2001:db8::1"),
        ("ipv6:[::1]:51234", "::1"),
        ("unix:", "unix"),
        ("unix:/run/router.sock", "unix"),
    ],
)
def test_the_address_of_a_grpc_peer(peer: str, address: str) -> None:
    assert grpc_address(peer) == address


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_an_unnamed_payer_is_a_client_address_or_its_network(address: str, client: str) -> None:
    assert payer_of(tenant="", is_named=False, address=address) == Payer(address=client)


def test_a_named_payer_is_the_same_from_all_addresses() -> None:
    payers = {payer_of(tenant="blue", is_named=True, address=one) for one in ("10.0.0.1", "::1")}
    assert payers == {Payer("blue")}
