"""`AsyncLLMEngine` over the simulated model: streams, cancellation, shutdown."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing

import numpy as np
import pytest
import pytest_asyncio

from signalbox import AsyncLLMEngine, EngineDeadError, PoolingParams, RequestOutput, SamplingParams
from signalbox_router.generation.pooling.activations import normalized
from signalbox_worker.runner.simulated.simulated_pooler import SIMULATED_POOLING
from tests.signalbox.llm.make import (
    GREEDY,
    assert_at_rest,
    assert_expected,
    greedy,
    make_async_engine,
)
from tests.signalbox.llm.test_llm import Flaky, make_runner
from tests.simulated_model import expected_vector
from tests.waiting import EVENT_S, eventually

ENDLESS = greedy(max_tokens=3000)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[AsyncLLMEngine]:
    engine = make_async_engine(step_ns=1_000_000)
    yield engine
    await at_rest(engine)
    engine.shutdown()


async def at_rest(engine: AsyncLLMEngine) -> None:
    """Waits for the steps in flight, and asserts that nothing is left."""
    if engine._driver is not None:
        async with asyncio.timeout(EVENT_S):
            await engine._driver
    assert not engine._requests
    assert_at_rest(engine)


async def last(engine: AsyncLLMEngine, prompt: str, params: SamplingParams) -> RequestOutput:
    return [output async for output in engine.generate(prompt, params)][-1]


async def test_a_stream_is_cumulative_and_its_last_output_finished(engine: AsyncLLMEngine) -> None:
    outputs = [output async for output in engine.generate("hello", GREEDY, "a")]
    assert {output.request_id for output in outputs} == {"a"}
    assert [output.finished for output in outputs[-2:]] == [False, True]
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    assert lengths == sorted(set(lengths)) and lengths[-1] == 16
    whole = outputs[-1].outputs[0]
    assert_expected(outputs[-1])
    assert all(whole.text.startswith(output.outputs[0].text) for output in outputs)


async def test_many_streams_at_once(engine: AsyncLLMEngine) -> None:
    params = SamplingParams(seed=3, n=2, max_tokens=20, ignore_eos=True)
    outputs = await asyncio.gather(*(last(engine, f"prompt {i}", params) for i in range(40)))
    for i, output in enumerate(outputs):
        assert output.prompt == f"prompt {i}"
        assert_expected(output, 20, temperature=1, seed=3)


async def test_closing_a_stream_aborts_its_request(engine: AsyncLLMEngine) -> None:
    async with aclosing(engine.generate("hello", ENDLESS)) as outputs:
        async for output in outputs:
            if len(output.outputs[0].token_ids) > 3:
                break
    assert engine._core.num_unfinished == 0
    await at_rest(engine)


async def test_cancelling_a_reader_aborts_its_request(engine: AsyncLLMEngine) -> None:
    other = asyncio.create_task(last(engine, "other", GREEDY))
    reading = asyncio.create_task(last(engine, "hello", ENDLESS))
    await eventually(lambda: engine._core.num_unfinished == 2)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert len((await other).outputs[0].token_ids) == 16


async def test_an_abort_ends_the_stream(engine: AsyncLLMEngine) -> None:
    outputs = []
    async for output in engine.generate("hello", ENDLESS, "a"):
        outputs.append(output)
        await engine.abort("a")
        await engine.abort("unknown")
    assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort"
    assert outputs[-1].usage.completion_tokens > 0


async def test_a_stop_string_ends_a_stream_that_is_read_slowly(engine: AsyncLLMEngine) -> None:
    plain = await last(engine, "hello", GREEDY)
    stop = plain.outputs[0].text[8:12]
    params = greedy(max_tokens=3000, stop=stop)
    outputs = engine.generate("hello", params)
    async with aclosing(outputs):
        await anext(outputs)
        assert engine._driver is not None
        await asyncio.wait_for(engine._driver, EVENT_S)  # no task has to read for it to stop
        rest = [output async for output in outputs]
    assert len(rest) == 1 and rest[0].outputs[0].stop_reason == stop
    assert rest[0].outputs[0].text == plain.outputs[0].text.partition(stop)[0]


async def test_a_request_that_cannot_be_served_raises(engine: AsyncLLMEngine) -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        await last(engine, "", GREEDY)
    async with aclosing(engine.generate("hello", ENDLESS, "a")) as outputs:
        await anext(outputs)
        with pytest.raises(ValueError, match="'a' is in use"):
            await anext(engine.generate("again", GREEDY, "a"))


async def test_a_device_that_fails_ends_every_stream() -> None:
    engine = AsyncLLMEngine._from_runner(lambda: Flaky(make_runner().config))
    other = asyncio.create_task(last(engine, "hello", ENDLESS))
    await eventually(lambda: engine._core.num_unfinished == 1)
    with pytest.raises(EngineDeadError, match="the cache is lost"):
        await anext(engine.generate(None, GREEDY, prompt_token_ids=[Flaky.lose]))
    with pytest.raises(EngineDeadError, match="the cache is lost"):
        await other
    with pytest.raises(EngineDeadError, match="the cache is lost"):
        await last(engine, "again", GREEDY)
    engine.shutdown()


async def test_shutting_down_ends_streams_tasks_and_threads() -> None:
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    engine = make_async_engine(step_ns=1_000_000)
    reading = asyncio.create_task(last(engine, "hello", ENDLESS))
    await eventually(lambda: engine._core.num_unfinished == 1)
    engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await reading
    assert asyncio.all_tasks() == tasks
    left = {thread.name for thread in set(threading.enumerate()) - threads}
    assert all(name.startswith("asyncio") for name in left)  # the loop's own


def test_one_loop_may_follow_another() -> None:
    engine = make_async_engine(step_ns=1_000_000)

    async def break_off() -> None:
        reading = asyncio.create_task(last(engine, "hello", ENDLESS))
        await eventually(lambda: engine._core.num_unfinished == 1)
        assert not reading.done()  # the loop ends with a request that runs

    async def finish() -> RequestOutput:
        output = await last(engine, "hello", GREEDY)
        await at_rest(engine)
        engine.shutdown()
        return output

    asyncio.run(break_off())
    assert_expected(asyncio.run(finish()))


POOLING = SIMULATED_POOLING["mean"]
RAW = PoolingParams(use_activation=False)


@pytest_asyncio.fixture
async def pooling_engine() -> AsyncIterator[AsyncLLMEngine]:
    engine = make_async_engine(pooling=POOLING, step_ns=1_000_000)
    yield engine
    await at_rest(engine)
    engine.shutdown()


async def test_encode_yields_one_output_of_each_prompt(pooling_engine: AsyncLLMEngine) -> None:
    async def encode(prompt: str | list[int], params: PoolingParams | None) -> np.ndarray:
        (output,) = [one async for one in pooling_engine.encode(prompt, params)]
        assert output.finished
        expected = expected_vector(output.prompt_token_ids, model=POOLING)
        expected = expected if params is RAW else normalized(expected)
        np.testing.assert_array_equal(output.outputs.data, expected)
        return output.outputs.data

    given = [(f"prompt {i}", params) for i in range(20) for params in (None, RAW)]
    vectors = await asyncio.gather(*(encode(*one) for one in given), encode([5, 6, 7], None))
    assert len({vector.tobytes() for vector in vectors}) == len(vectors)


async def test_an_abort_or_a_reader_that_leaves_ends_what_is_encoded(
    pooling_engine: AsyncLLMEngine,
) -> None:
    async def encode(request_id: str) -> list[object]:
        return [one async for one in pooling_engine.encode([7] * 2000, RAW, request_id)]

    aborted, cancelled = asyncio.create_task(encode("a")), asyncio.create_task(encode("b"))
    await eventually(lambda: pooling_engine._core.num_unfinished == 2)
    cancelled.cancel()
    await pooling_engine.abort("a")
    assert await aborted == []
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_what_a_model_does_not_encode_is_refused(
    engine: AsyncLLMEngine, pooling_engine: AsyncLLMEngine
) -> None:
    for one, params, reason in (
        (engine, None, "the model generates text"),
        (pooling_engine, PoolingParams(task="classify"), "the model does not classify"),
        (pooling_engine, PoolingParams(dimensions=5), "dimensions: allowed: .*; given: 5"),
    ):
        with pytest.raises(ValueError, match=reason):
            await anext(one.encode("hello", params))
