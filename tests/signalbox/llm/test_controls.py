"""What is asked of an engine between requests: its prefix cache, its sleep, its metrics."""

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from signalbox import LLM, LLMEngine
from signalbox.llm.in_process.local_worker import LocalWorker
from signalbox.llm.in_process.profiler import LocalProfiler
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.v1.metrics.reader import Counter, Gauge, Histogram
from signalbox_scheduler.kv.block_allocator import BlockAllocator
from tests.signalbox.llm.make import (
    GREEDY,
    assert_at_rest,
    make_async_engine,
    make_engine,
    make_llm,
    run,
    tokens_of,
)

PROMPT = "a prompt that is longer than some blocks of the cache are, so that they are found again"


def num_cached_tokens(llm: LLM) -> int:
    (output,) = llm.generate(PROMPT, GREEDY, use_tqdm=False)
    assert output.num_cached_tokens == output.usage.cached_tokens
    return output.num_cached_tokens


def test_a_reset_prefix_cache_is_found_nowhere(llm: LLM) -> None:
    assert num_cached_tokens(llm) == 0
    assert num_cached_tokens(llm) > 0
    assert llm.reset_prefix_cache() is True
    blocks = llm.llm_engine._core.scheduler.blocks
    assert (blocks.gpu.num_cached, blocks.cpu.num_cached) == (0, 0)
    assert num_cached_tokens(llm) == 0


def test_prefixes_that_were_evicted_to_the_cpu_are_forgotten_too() -> None:
    with make_llm(num_gpu_blocks=16, num_cpu_blocks=64, max_model_len=128) as llm:
        for i in range(8):
            llm.generate(f"{i} {PROMPT}", GREEDY, use_tqdm=False)
        blocks = llm.llm_engine._core.scheduler.blocks
        assert blocks.cpu.num_cached > 0, "nothing was evicted: the test shows nothing"
        assert llm.reset_prefix_cache()
        assert (blocks.gpu.num_cached, blocks.cpu.num_cached) == (0, 0)
        assert_at_rest(llm.llm_engine)


def test_nothing_is_reset_while_a_request_is_unfinished(engine: LLMEngine) -> None:
    engine.add_request("0", PROMPT, GREEDY)
    engine.step()
    assert engine.reset_prefix_cache() is False
    with pytest.raises(RuntimeError, match="requests are unfinished"):
        engine.sleep()
    with pytest.raises(ValueError, match="reset_running_requests is not served"):
        engine.reset_prefix_cache(reset_running_requests=True)
    run(engine)
    assert engine.reset_prefix_cache() is True


def test_a_sleeping_engine_holds_no_cache_and_takes_no_request(llm: LLM) -> None:
    expected = llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    runner = llm.llm_engine._core._worker._runner
    whole = runner.simulation.gpu_kv.nbytes  # type: ignore[union-attr]
    llm.sleep()
    llm.sleep(level=1)
    assert llm.is_sleeping() and runner.simulation.gpu_kv.nbytes < whole / 100  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="the engine sleeps; call wake_up"):
        llm.generate(PROMPT, GREEDY, use_tqdm=False)
    llm.wake_up(tags=["weights"])
    assert llm.is_sleeping()
    llm.wake_up()
    llm.wake_up(["kv_cache"])
    assert not llm.is_sleeping() and runner.simulation.gpu_kv.nbytes == whole  # type: ignore[union-attr]
    (output,) = llm.generate(PROMPT, GREEDY, use_tqdm=False)
    assert (output.outputs[0].token_ids, output.usage.cached_tokens) == (expected, 0)


INTERRUPTED: dict[str, tuple[Callable[[LLM], object], type, str]] = {
    "reset_prefix_cache": (LLM.reset_prefix_cache, BlockAllocator, "forget_hashes"),
    "sleep": (LLM.sleep, LocalWorker, "drop_cache"),
    "wake_up": (LLM.wake_up, LocalWorker, "restore_cache"),
}


@pytest.mark.parametrize(("call", "owner", "method"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_interrupted_call_is_ended_first(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[LLM], object], owner: type, method: str
) -> None:
    with make_llm(num_gpu_blocks=16, num_cpu_blocks=64, max_model_len=128) as llm:
        prompts = [f"{i} {PROMPT}" for i in range(8)]
        expected = llm.generate(prompts, GREEDY, use_tqdm=False)
        blocks = llm.llm_engine._core.scheduler.blocks
        assert blocks.gpu.num_cached and blocks.cpu.num_cached
        if call is LLM.wake_up:
            llm.sleep()
        interrupt_after(monkeypatch, owner, method)
        with pytest.raises(KeyboardInterrupt):
            call(llm)
        assert llm.is_sleeping() is (call is LLM.sleep)
        assert (blocks.gpu.num_cached, blocks.cpu.num_cached) == (0, 0)
        llm.wake_up()
        assert tokens_of(llm.generate(prompts, GREEDY, use_tqdm=False)) == tokens_of(expected)
        assert_at_rest(llm.llm_engine)


def test_an_interrupted_close_is_ended_first(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    llm = make_llm()
    interrupt_after(monkeypatch, LocalProfiler, "close")
    with pytest.raises(KeyboardInterrupt):
        llm.close()
    assert set(threading.enumerate()) == before
    llm.close()


def interrupt_after(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
    """Sends SIGINT after the first call of a method."""
    change = getattr(owner, method)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        result = change(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(owner, method, interrupted)


def test_what_sleep_and_profiles_cannot_do_is_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="sleep level 2 is not served"):
        llm.sleep(level=2)
    with pytest.raises(ValueError, match="tags has 'lora'"):
        llm.wake_up(tags=["lora"])
    with pytest.raises(RuntimeError, match="profiler_config="):
        llm.start_profile()
    with pytest.raises(RuntimeError, match="start_profile begins one"):
        llm.stop_profile()


def test_metrics_are_objects_under_vllms_names(llm: LLM) -> None:
    for _ in range(2):
        llm.generate(PROMPT, GREEDY, use_tqdm=False)
    found = {metric.name: metric for metric in llm.get_metrics()}
    generated, hits = found["vllm:generation_tokens"], found["vllm:prefix_cache_hits"]
    assert isinstance(generated, Counter) and generated.value == 2 * 16
    assert isinstance(hits, Counter) and hits.value > 0
    running, latency = found["vllm:num_requests_running"], found["vllm:request_queue_time_seconds"]
    assert isinstance(running, Gauge) and running.value == 0
    assert running.labels["model_name"] == "simulated"
    assert isinstance(latency, Histogram) and latency.count == latency.buckets["+Inf"] == 2
    assert list(latency.buckets.values()) == sorted(latency.buckets.values())


@pytest.mark.parametrize("is_on", [True, False])
def test_an_engine_logs_what_it_does_unless_it_is_not_to(
    is_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), make_engine(CoreConfig(log_stats=is_on)) as engine:
        engine._core._stats_due -= engine._core._config.scheduling.log_stats_interval
        engine.add_request("0", PROMPT, GREEDY)
        run(engine)
        engine.do_log_stats()
    lines = [one for one in caplog.messages if "generated tokens/s" in one]
    assert len(lines) == (2 if is_on else 0)


async def test_an_async_engine_has_the_same_calls() -> None:
    engine = make_async_engine()
    streams = engine.generate(PROMPT, GREEDY, "0")
    await anext(streams)
    assert await engine.reset_prefix_cache() is False
    async for _ in streams:
        pass
    assert await engine.reset_prefix_cache() is True
    await engine.sleep()
    assert await engine.is_sleeping()
    with pytest.raises(RuntimeError, match="call wake_up"):
        await anext(engine.generate(PROMPT, GREEDY, "1"))
    await engine.wake_up()
    outputs = [output async for output in engine.generate(PROMPT, GREEDY, "2")]
    assert outputs[-1].finished and outputs[-1].usage.cached_tokens == 0
    assert {metric.name for metric in engine.get_metrics()} >= {"vllm:generation_tokens"}
    assert_at_rest(engine)
    engine.shutdown()
