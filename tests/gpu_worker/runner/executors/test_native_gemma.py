"""Gemmas of random shapes, natively: tokens and log probabilities beside transformers'.

SIGNALBOX_TEST_GEMMAS draws more configurations of each family.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu_worker.model_runners import (
    LONG_PROMPT,
    WHOLE,
    assert_greedy,
    log_probabilities,
    make_prompts,
    make_runner,
)
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels
from tests.rounding import LOGITS

pytestmark = pytest.mark.slow

skip_without_native_kernels()

FAMILIES = ("gemma", "gemma2", "gemma3")
NUM_DRAWN = int(os.environ.get("SIGNALBOX_TEST_GEMMAS", "2"))


def random_fields(family: str, seed: int) -> dict[str, Any]:
    """Fields of config.json: odd numbers of heads and layers, tied or not, capped or not."""
    rng = random.Random(f"{family} {seed}")
    kv_heads, num_layers = rng.choice([1, 2, 3]), rng.choice([1, 3, 4])
    num_heads = kv_heads * rng.choice([1, 2, 3])
    fields: dict[str, Any] = {
        "hidden_size": num_heads * rng.choice([12, 20]),
        "intermediate_size": rng.choice([12, 40, 84]),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([16, 48]),
        "tie_word_embeddings": rng.random() < 0.7,
        "attention_bias": rng.random() < 0.3,
        "rms_norm_eps": rng.choice([1e-6, 1e-2]),
        "initializer_range": 0.1,  # larger scores multiply the roundings of transformers and ours
    }
    if family == "gemma":
        return fields
    kinds = ["sliding_attention", "full_attention"]
    return fields | {
        "query_pre_attn_scalar": rng.choice([16, 100]),
        "sliding_window": rng.choice([1, 13, 40]),
        "layer_types": rng.choices(kinds, k=num_layers),
        "final_logit_softcapping": rng.choice([None, 2.0, 30.0]),
        **({"attn_logit_softcapping": rng.choice([None, 1.0])} if family == "gemma2" else {}),
    }


def make_native(path: Path, **options: Any) -> Any:
    return make_runner(path, cpu_backend="native", block_size=16, **options)


@pytest.mark.parametrize("seed", range(NUM_DRAWN))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_gemmas_equal_transformers(family: str, seed: int, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family, **random_fields(family, seed))
    runner = make_native(tmp_path)
    assert_greedy(runner, reference, make_prompts(1, 17, 40), 6, chunks=(WHOLE, 7))
    with torch.no_grad():
        logits = reference(torch.tensor([LONG_PROMPT])).logits[0].log_softmax(dim=-1)
    expected = logits[:-1].gather(1, torch.tensor(LONG_PROMPT[1:])[:, None])[:, 0]
    torch.testing.assert_close(log_probabilities(runner), expected, rtol=0, atol=LOGITS)
