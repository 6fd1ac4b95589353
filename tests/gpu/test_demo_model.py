"""The demo model in float32 on a card: the greedy tokens of transformers, exactly."""

import pytest

from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.service.runner_factory import make_runner
from tests.gpu_worker.generation import Driver
from tests.integration.demo_model.prompts import PROMPTS
from tests.transformers_demo import DEMO, demo, greedy_texts

NUM_NEW_TOKENS = 16


@pytest.mark.skipif(not DEMO.exists(), reason="needs the demo model (make model)")
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_tokens_are_transformers(enforce_eager: bool) -> None:
    runner = make_runner(
        RunnerConfig(
            model=ModelConfig(model=str(DEMO), dtype="float32", max_model_len=512),
            cache=CacheConfig(max_num_seqs=32, swap_space=0),
            device=DeviceConfig(device="cuda", enforce_eager=enforce_eager),
        )
    )
    runner.init_cache_engine(num_gpu_blocks=512, num_cpu_blocks=0)
    prompts = list(PROMPTS[:16])
    token_ids = [demo().tokenizer(prompt)["input_ids"] for prompt in prompts]
    drawn = Driver(runner=runner).generate(token_ids, num_tokens=NUM_NEW_TOKENS)
    assert drawn == greedy_texts(demo().model, prompts, drawn)
