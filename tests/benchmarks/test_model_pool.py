"""Real workers under the benchmarks: each client gets its tokens, wherever its request runs."""

from dataclasses import replace
from pathlib import Path

from benchmarks import disaggregation
from benchmarks.harness.answers import Asked
from benchmarks.harness.model_pool import model_pool
from tests.gpu_worker.tiny_models import make_llama

FLAGS = "--swap-space", "0.05", "--kv-cache-memory", "0.05"


async def test_clients_of_a_worker_that_drains_get_their_tokens(tmp_path: Path) -> None:
    make_llama(tmp_path)
    async with model_pool(str(tmp_path)) as pool:
        first = await pool.join(*FLAGS, core=0)
        prompts = [[10 + number] * 20 for number in range(2)]
        answers = [pool.ask(prompt, max_tokens=200) for prompt in prompts]
        await pool.until_whole(answers)
        await pool.join(*FLAGS, core=1)
        again = [pool.ask(prompt, max_tokens=200) for prompt in prompts]
        await pool.until(lambda: all(answer.token_times for answer in again))
        pool.drain(first)
        await pool.until_left(first)
        await pool.until_whole(again)
        assert [one.token_ids for one in again] == [one.token_ids for one in answers]
        assert [worker.address for worker in await pool.workers()] != [first.address]


async def test_requests_of_a_worker_for_prompts_are_handed_over(tmp_path: Path) -> None:
    make_llama(tmp_path)
    load = replace(disaggregation.LOADS["cpu"], chat=Asked(8, 100), long=Asked(100, 100))
    answers, num_out = await disaggregation.measure_model(
        str(tmp_path),
        load,
        disaggregation.PoolKind(64, num_prefill=1),
        num_workers=2,
        rate=20.0,
        seconds=2.0,
        kv_gib=0.05,
    )
    assert num_out > 0
    assert all(answer.is_whole for answer in answers)
    assert {answer.asked for answer in answers} == {load.chat, load.long}
