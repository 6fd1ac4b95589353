"""Engines over the simulated model."""

from collections.abc import Sequence
from typing import Any

from signalbox import LLM, AsyncLLMEngine, LLMEngine, RequestOutput, SamplingParams
from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.simulated_model import expected_tokens


def greedy(**fields: Any) -> SamplingParams:
    """The likeliest tokens, past an end of the sequence."""
    return SamplingParams(temperature=0, ignore_eos=True, **fields)


GREEDY = greedy()


def make_runner(**changes: Any) -> SimulatedRunner:
    return SimulatedRunner(
        SimulatedConfig(**{"num_gpu_blocks": 512, "num_cpu_blocks": 64} | changes)
    )


def make_llm(config: CoreConfig | None = None, **changes: Any) -> LLM:
    return LLM._from_runner(lambda: make_runner(**changes), config)


def make_engine(config: CoreConfig | None = None, **changes: Any) -> LLMEngine:
    return LLMEngine._from_runner(lambda: make_runner(**changes), config)


def make_async_engine(config: CoreConfig | None = None, **changes: Any) -> AsyncLLMEngine:
    return AsyncLLMEngine._from_runner(lambda: make_runner(**changes), config)


def tokens_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """Returns the tokens of each request's first sequence."""
    return [output.outputs[0].token_ids for output in outputs]


def assert_expected(output: RequestOutput, num_tokens: int = 16, **sampling: Any) -> None:
    """Each sequence has the tokens that the simulated model says after this prompt."""
    for one in output.outputs:
        prompt = output.prompt_token_ids
        expected = expected_tokens(prompt, num_tokens=num_tokens, branch=one.index, **sampling)
        assert one.token_ids == expected


def run(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    """Steps until nothing is unfinished; returns every output of every request."""
    outputs: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def assert_at_rest(engine: LLMEngine | AsyncLLMEngine) -> None:
    """Nothing is unfinished or in flight, and every block can be had again."""
    core: EngineCore = engine._core
    assert not core.is_busy
    core.cluster.check()
    assert len(core.cluster.requests) == 0
    for pool in (core.scheduler.blocks.gpu, core.scheduler.blocks.cpu):
        assert pool.num_free == pool.num_blocks
