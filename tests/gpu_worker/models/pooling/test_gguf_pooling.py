"""GGUF files whose model makes embeddings, compared with transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from signalbox_worker.config import ModelError
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.models.pooling.pooled_batches import pool
from tests.gpu_worker.runner.loading.gguf_files import make_gguf, open_gguf
from tests.gpu_worker.tiny_models import make_model

pytestmark = pytest.mark.slow

PROMPTS = [[5], [7, 9, 11, 6], [3 + i % 20 for i in range(40)]]


@pytest.mark.parametrize(("kind", "mode"), [(1, "mean"), (3, "lasttoken")])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_file_that_names_a_pooling_type_makes_embeddings(
    kind: int, mode: str, backend: str, tmp_path: Path
) -> None:
    reference = make_model(tmp_path / "hf", "qwen3")
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3", extra={"pooling_type": kind})
    runner = make_runner(path, cpu_backend=backend)
    pooling = runner.model.pooling
    assert (pooling.task, pooling.activation) == ("embed", "normalize")
    assert pooling.reads_all_tokens is (mode == "mean")
    with torch.no_grad():
        states = [reference.model(torch.tensor([one])).last_hidden_state[0] for one in PROMPTS]
    expected = [one.mean(0) if mode == "mean" else one[-1] for one in states]
    actual = pool(runner, PROMPTS, chunk=16)
    np.testing.assert_allclose(actual, torch.stack(expected).numpy(), rtol=0, atol=1e-5)


def test_a_file_without_one_generates_and_a_reranker_is_refused(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "qwen3")
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3", extra={"pooling_type": 0})
    assert make_runner(path).model.pooling is None
    with pytest.raises(ModelError, match=r"qwen3.pooling_type = 4, which is not supported"):
        _ = open_gguf(tmp_path / "rank", "qwen3", {"pooling_type": 4}).config
