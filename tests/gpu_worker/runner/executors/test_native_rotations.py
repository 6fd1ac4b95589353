"""Decoders of random shapes that rotate a part of each head, neighbours, or not all layers: tokens
and log probabilities beside transformers'.

SIGNALBOX_TEST_ROTATIONS draws more configurations of each family.
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
from tests.gpu_worker.tiny_models import YARN_ROPE, make_model
from tests.native_kernels import skip_without_native_kernels
from tests.rounding import LOGITS

pytestmark = pytest.mark.slow

skip_without_native_kernels()

FAMILIES = ("glm", "glm4", "phi3", "smollm3")
NUM_DRAWN = int(os.environ.get("SIGNALBOX_TEST_ROTATIONS", "2"))


def random_fields(family: str, seed: int) -> dict[str, Any]:
    """Fields of config.json: odd numbers of heads, tied or not, with biases or not."""
    rng = random.Random(f"{family} {seed}")
    kv_heads, group, head_size = rng.choice([1, 2, 3]), rng.choice([1, 2, 3]), rng.choice([16, 48])
    num_layers = rng.choice([1, 2, 3])
    fields: dict[str, Any] = {
        "hidden_size": rng.choice([20, 52, 100]),
        "head_dim": head_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "intermediate_size": rng.choice([12, 40, 84]),
        "tie_word_embeddings": rng.random() < 0.5,
        "rms_norm_eps": rng.choice([1e-6, 1e-2]),
    }
    if family == "phi3":
        fields["sliding_window"] = rng.choice([None, 11])
    else:
        fields["attention_bias"] = rng.random() < 0.5
    if family == "smollm3":
        return fields | {
            "mlp_bias": rng.random() < 0.5,
            "no_rope_layers": rng.choice([None, rng.choices([0, 1], k=num_layers)]),
            "no_rope_layer_interval": rng.choice([1, 2, 3]),
            "use_sliding_window": rng.random() < 0.7,
            "sliding_window": rng.choice([None, 11]),
        }
    plain = {"rope_type": "default", "rope_theta": 300.0}
    rotation = plain if family == "phi3" else rng.choice([plain, YARN_ROPE])
    part = rng.choice([0.25, 0.5, 0.75, 1.0])
    return fields | {"rope_parameters": rotation | {"partial_rotary_factor": part}}


@pytest.mark.parametrize("seed", range(NUM_DRAWN))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_decoders_equal_transformers(family: str, seed: int, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family, **random_fields(family, seed))
    runner = make_runner(tmp_path, cpu_backend="native", block_size=16)
    assert_greedy(runner, reference, make_prompts(1, 17, 40), 6, chunks=(WHOLE, 7))
    with torch.no_grad():
        logits = reference(torch.tensor([LONG_PROMPT])).logits[0].log_softmax(dim=-1)
    expected = logits[:-1].gather(1, torch.tensor(LONG_PROMPT[1:])[:, None])[:, 0]
    torch.testing.assert_close(log_probabilities(runner), expected, rtol=0, atol=LOGITS)
