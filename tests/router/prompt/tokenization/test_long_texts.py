"""Long texts are tokenised within bounds, in turn, and given up when no request waits for them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_router.limits.payers import Payer
from signalbox_router.prompt.tokenization import long_texts
from signalbox_router.prompt.tokenization.long_texts import LongTexts, TextProcess
from tests.router.fakes import make_files
from tests.waiting import eventually

TEXT = "The capital of France is Paris. " * (1 << 15)
BUSY, OTHER = Payer("busy"), Payer("other")


@pytest.fixture
async def texts() -> AsyncIterator[LongTexts]:
    texts = LongTexts([make_files()["tokenizer.json"]])
    yield texts
    texts.close()


def count(process: TextProcess) -> int:
    return len(process.encode(TEXT, add_special_tokens=False, field="prompt").ids)


class Held:
    """Work that holds a process until the test lets it go, or the process ends."""

    def __init__(self) -> None:
        self.processes: list[TextProcess] = []
        self.over = threading.Event()

    def __call__(self, process: TextProcess) -> None:
        self.processes.append(process)
        self.over.wait()


async def test_a_process_is_kept_for_the_next_text(texts: LongTexts) -> None:
    used: list[TextProcess] = []
    for _ in range(3):
        await texts.run(used.append, payer=BUSY)
        assert await texts.run(count, payer=OTHER) > 0
    assert len({id(process) for process in used}) == 1


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"CPU_S": 0.0, "CPU_S_PER_MIB": 0.0}, "CPU time"),
        ({"MEMORY_BYTES": 1 << 20, "MEMORY_BYTES_PER_BYTE": 1}, "MiB"),
    ],
)
async def test_a_text_that_takes_too_much_is_refused_and_the_next_is_not(
    bounds: dict[str, float], words: str, texts: LongTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bounded:
        for name, value in bounds.items():
            bounded.setattr(long_texts, name, value)
        with pytest.raises(InvalidArgument, match=words) as refused:
            await texts.run(lambda process: [count(process) for _ in range(40)], payer=BUSY)
        assert refused.value.field == "prompt"
    assert await texts.run(count, payer=BUSY) > 0  # without the bound it is taken


async def test_a_text_that_nobody_wants_any_more_is_given_up(texts: LongTexts) -> None:
    used: list[TextProcess] = []

    def endless(process: TextProcess) -> None:
        used.append(process)
        while True:
            count(process)

    asked = asyncio.create_task(texts.run(endless, payer=BUSY))
    await eventually(lambda: bool(used))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await eventually(lambda: not used[0].is_running)
    assert await texts.run(count, payer=BUSY) > 0


async def test_a_process_whose_client_leaves_while_it_starts_ends(
    texts: LongTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[TextProcess] = []
    starts, may_start = threading.Event(), threading.Event()

    class Slow(TextProcess):
        def __init__(self, tokenizers: Sequence[bytes]) -> None:
            starts.set()
            may_start.wait()
            super().__init__(tokenizers)
            started.append(self)

    monkeypatch.setattr(long_texts, "TextProcess", Slow)
    asked = asyncio.create_task(texts.run(count, payer=BUSY))
    await eventually(starts.is_set)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    may_start.set()
    await eventually(lambda: bool(started) and not started[0].is_running)


async def test_few_processes_are_kept(texts: LongTexts) -> None:
    held = Held()
    asked = [asyncio.create_task(texts.run(held, payer=payer)) for payer in (BUSY, BUSY, OTHER)]
    await eventually(lambda: len(held.processes) == long_texts.MAX_PROCESSES)
    held.over.set()
    await asyncio.gather(*asked)
    await eventually(
        lambda: sum(process.is_running for process in held.processes) == long_texts.MAX_KEPT
    )


async def test_one_payers_long_texts_leave_a_process_for_another(texts: LongTexts) -> None:
    held = Held()
    asked = [asyncio.create_task(texts.run(held, payer=BUSY)) for _ in range(9)]
    try:
        await eventually(lambda: len(held.processes) == long_texts.MAX_PROCESSES - 1)
        assert await texts.run(count, payer=OTHER) > 0
        assert len(held.processes) == long_texts.MAX_PROCESSES - 1
    finally:
        held.over.set()
        await asyncio.gather(*asked)


async def test_of_texts_that_take_much_memory_one_is_under_way(texts: LongTexts) -> None:
    held = Held()
    heavy = long_texts.HEAVY_BYTES + 1
    asked = [
        asyncio.create_task(texts.run(held, num_bytes=heavy, payer=payer))
        for payer in (BUSY, BUSY, OTHER)
    ]
    try:
        await eventually(lambda: bool(held.processes))
        assert len(held.processes) == 1
    finally:
        held.over.set()
        await asyncio.gather(*asked)
    assert len({id(process) for process in held.processes}) == 3
    await eventually(lambda: not any(process.is_running for process in held.processes))


async def test_processes_end_when_the_tokenizer_is_replaced(texts: LongTexts) -> None:
    used: list[TextProcess] = []
    await texts.run(used.append, payer=BUSY)
    texts.close()
    await texts.run(used.append, payer=BUSY)  # of a request that has begun with it
    await eventually(lambda: not any(process.is_running for process in used))
