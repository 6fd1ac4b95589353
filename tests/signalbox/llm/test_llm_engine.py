"""`LLMEngine` over the simulated model: the step loop, aborts, ids."""

import gc
import threading

import pytest

from signalbox import EngineArgs, LLMEngine, SamplingParams
from signalbox.llm.in_process.local_worker import STEPS_IN_FLIGHT
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.signalbox.llm.make import GREEDY, make_runner, run
from tests.simulated_model import expected_tokens
from tests.waiting import EVENT_S


def test_each_step_returns_all_that_was_generated_so_far(engine: LLMEngine) -> None:
    engine.add_request("a", "hello", GREEDY)
    outputs = run(engine)["a"]
    whole = outputs[-1].outputs[0]
    assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(1, 17))
    assert [output.finished for output in outputs] == [False] * 15 + [True]
    for output in outputs:
        (completion,) = output.outputs
        assert whole.text.startswith(completion.text)
        assert whole.token_ids[: len(completion.token_ids)] == completion.token_ids
        assert completion.finished() is output.finished


def test_requests_may_join_while_others_run(engine: LLMEngine) -> None:
    joined, outputs = 0, {}
    while joined < 8 or engine.has_unfinished_requests():
        if joined < 8:
            engine.add_request(str(joined), None, GREEDY, [joined + 1, 2])
            joined += 1
        outputs |= {output.request_id: output for output in engine.step()}
        assert len(engine._core.scheduler.in_flight) <= STEPS_IN_FLIGHT
    for request_id, output in outputs.items():
        expected = expected_tokens([int(request_id) + 1, 2], num_tokens=16)
        assert output.outputs[0].token_ids == expected


async def test_an_engine_steps_inside_a_running_event_loop(engine: LLMEngine) -> None:
    """As in a notebook."""
    engine.add_request("a", "hello", GREEDY)
    assert len(run(engine)["a"]) == 16


def test_two_steps_are_in_flight_between_calls(engine: LLMEngine) -> None:
    engine.add_request("a", "hello", GREEDY)
    engine.step()
    assert len(engine._core.scheduler.in_flight) == STEPS_IN_FLIGHT
    run(engine)


def test_an_aborted_request_has_no_more_outputs(engine: LLMEngine) -> None:
    for request_id in ("a", "b", "c"):
        engine.add_request(request_id, "hello " + request_id, GREEDY)
    engine.step()
    engine.abort_request(["a", "unknown"])
    engine.abort_request("b")
    assert engine.get_num_unfinished_requests() == 1
    assert run(engine).keys() == {"c"}
    engine.abort_request("c")  # has ended


def test_a_request_may_be_aborted_before_its_first_step(engine: LLMEngine) -> None:
    engine.add_request("a", "hello", GREEDY)
    engine.abort_request("a")
    assert not engine.has_unfinished_requests()
    assert engine.step() == []


def test_an_id_is_taken_while_its_request_lives(engine: LLMEngine) -> None:
    engine.add_request("a", "hello", GREEDY)
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.add_request("a", "again", GREEDY)
    assert len(run(engine)["a"]) == 16
    engine.add_request("a", "again", GREEDY)
    assert run(engine)["a"][-1].prompt == "again"


def test_a_refused_request_leaves_the_news_of_others(engine: LLMEngine) -> None:
    engine.add_request("a", "hello", GREEDY)
    engine.step()
    with pytest.raises(ValueError, match="request_id"):
        engine.add_request("", "hello", GREEDY)
    with pytest.raises(ValueError, match="fit no worker's KV cache"):
        engine.add_request("b", "hello", SamplingParams(n=64, max_tokens=4000))
    assert len(run(engine)["a"]) == 15


def test_metrics_are_in_the_order_of_events(engine: LLMEngine) -> None:
    engine.add_request("a", "hello", GREEDY)
    first, *_, last = run(engine)["a"]
    assert first.metrics.finished_time is None
    times = last.metrics
    assert times.time_in_queue is not None and times.time_in_queue >= 0
    in_order = [
        times.arrival_time,
        times.first_scheduled_time or 0.0,
        times.first_token_time or 0.0,
        times.last_token_time or 0.0,
        times.finished_time or 0.0,
    ]
    assert in_order == sorted(in_order)


def test_a_cached_prefix_is_counted(engine: LLMEngine) -> None:
    prompt = list(range(1, 41))
    for request_id, cached in (("a", 0), ("b", 32)):
        engine.add_request(request_id, None, GREEDY, prompt)
        output = run(engine)[request_id][-1]
        assert output.usage == (40, 16, cached)
        assert output.outputs[0].token_ids == expected_tokens(prompt, num_tokens=16)


def test_an_engine_that_is_dropped_ends_its_thread_and_its_runner() -> None:
    closed: list[bool] = []

    class Closing(SimulatedRunner):
        def close(self, failure: str | None = None) -> None:
            closed.append(thread.is_alive())

    before = set(threading.enumerate())
    engine = LLMEngine._from_runner(lambda: Closing(make_runner().config))
    engine.add_request("a", "hello", GREEDY)
    run(engine)
    (thread,) = set(threading.enumerate()) - before
    del engine
    gc.collect()
    thread.join(EVENT_S)
    assert closed == [False]


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no/such/model"):
        LLMEngine.from_engine_args(EngineArgs(model="/no/such/model"))
