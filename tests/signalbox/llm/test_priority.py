"""Priorities of requests in this process, where the scheduling policy goes by them."""

from collections.abc import Iterator

import pytest

from signalbox import LLM, LLMEngine
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_scheduler.config import SchedulingSettings
from tests.signalbox.llm.make import (
    GREEDY,
    assert_at_rest,
    make_async_engine,
    make_engine,
    make_llm,
)

BY_PRIORITY = CoreConfig(scheduling=SchedulingSettings(scheduling_policy="priority"))


@pytest.fixture
def llm() -> Iterator[LLM]:
    with make_llm(BY_PRIORITY, max_num_seqs=1) as llm:
        yield llm


def finishing_order(engine: LLMEngine) -> list[str]:
    ended = []
    while engine.has_unfinished_requests():
        ended += [output.request_id for output in engine.step_finished()]
    assert_at_rest(engine)
    return ended


@pytest.mark.parametrize(
    ("config", "expected"), [(BY_PRIORITY, ["c", "a", "b"]), (None, ["a", "b", "c"])]
)
def test_the_least_priority_goes_first_under_that_policy(
    config: CoreConfig | None, expected: list[str]
) -> None:
    with make_engine(config, max_num_seqs=1) as engine:
        for request_id, priority in (("a", 0), ("b", 3), ("c", -2)):
            engine.add_request(request_id, request_id, GREEDY, priority=priority)
        assert finishing_order(engine) == expected


def test_each_prompt_has_its_priority_and_outputs_keep_their_order(llm: LLM) -> None:
    outputs = llm.generate(["a", "b"], GREEDY, use_tqdm=False, priority=[1, -1])
    assert [output.prompt for output in outputs] == ["a", "b"]
    started, ended = outputs[0].metrics.first_scheduled_time, outputs[1].metrics.finished_time
    assert started is not None
    assert ended is not None
    assert ended <= started
    assert llm.generate("c", GREEDY, use_tqdm=False, priority=5)[0].finished


def test_a_priority_is_refused_before_anything_is_computed(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 priorities for 1 prompt"):
        llm.generate("a", GREEDY, use_tqdm=False, priority=[1, 2])
    with pytest.raises(ValueError, match=r"priority: .*\[-1000, 1000\]; given: 1001"):
        llm.generate("a", GREEDY, use_tqdm=False, priority=1001)
    assert_at_rest(llm.llm_engine)


async def test_a_stream_may_have_a_priority() -> None:
    engine = make_async_engine(BY_PRIORITY)
    outputs = [output async for output in engine.generate("a", GREEDY, priority=-3)]
    assert outputs[-1].finished
    engine.shutdown()
