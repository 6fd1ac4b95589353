"""An engine in one process and its worker's store: prefixes outlive it, and can be reset."""

from signalbox import LLM
from signalbox_worker.kv.store.memory_store import MemoryStore
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.signalbox.llm.make import GREEDY, assert_expected

CONFIG = SimulatedConfig(num_gpu_blocks=64, num_cpu_blocks=64)
PROMPT = "a prompt of several blocks, so that some of them can be found again in a store"
NUM_BLOCKS = len(PROMPT) // CONFIG.block_size


def make_llm(store: MemoryStore) -> LLM:
    return LLM._from_runner(lambda: SimulatedRunner(CONFIG, store=store), None)


def ask(llm: LLM) -> int:
    """Returns how many blocks of the prompt were cached; the answer is right."""
    planner = llm.llm_engine._core.scheduler.planner
    num_hits = planner.num_prefix_hits
    (output,) = llm.generate([PROMPT], GREEDY)
    assert_expected(output)
    return (planner.num_prefix_hits - num_hits) // CONFIG.block_size


def test_prefixes_outlive_an_engine_until_they_are_reset() -> None:
    store = MemoryStore(block_bytes=8 * CONFIG.block_size, num_blocks=100)
    with make_llm(store) as llm:
        assert ask(llm) == 0
        assert ask(llm) == NUM_BLOCKS
        while store.usage().num_blocks < NUM_BLOCKS:  # the write goes on beside the steps
            ask(llm)
    with make_llm(store) as llm:
        assert ask(llm) == NUM_BLOCKS
        assert llm.reset_prefix_cache()
        assert store.usage().num_blocks == 0
        assert ask(llm) == 0
