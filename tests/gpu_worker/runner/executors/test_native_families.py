"""Dense decoders of random shapes, natively: tokens and log probabilities beside transformers'.

SIGNALBOX_TEST_FAMILIES draws more configurations of each family.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_worker.runner.executors.test_native_mixtures import assert_like_transformers
from tests.gpu_worker.tiny_models import YARN_ROPE, make_model
from tests.native_kernels import skip_without_native_kernels

pytestmark = pytest.mark.slow

skip_without_native_kernels()

FAMILIES = ("cohere", "cohere2", "exaone4", "helium", "ministral3", "olmo2", "olmo3", "seed-oss")
NUM_DRAWN = int(os.environ.get("SIGNALBOX_TEST_FAMILIES", "2"))
KINDS = ("sliding_attention", "full_attention")


def random_fields(family: str, seed: int) -> dict[str, Any]:
    """Fields of config.json: odd numbers of heads, tied or not, with biases or not."""
    rng = random.Random(f"{family} {seed}")
    head_size, group = rng.choice([16, 48]), rng.choice([1, 2, 3])
    kv_heads = rng.choice([1, 2, 3]) if head_size == 16 else 1  # longer sums are less exact
    num_layers = rng.choice([1, 2, 3])
    fields: dict[str, Any] = {
        "hidden_size": kv_heads * group * head_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "intermediate_size": rng.choice([12, 40, 84]),
        "attention_bias": rng.random() < 0.5,
        "tie_word_embeddings": rng.random() < 0.5,
        "rms_norm_eps": rng.choice([1e-6, 1e-2]),
    }
    if family in ("cohere2", "exaone4", "olmo3"):
        fields["sliding_window"] = rng.choice([5, 17])
        fields["layer_types"] = rng.choice([None, [rng.choice(KINDS) for _ in range(num_layers)]])
    if family == "olmo3":
        full = rng.choice([YARN_ROPE, {"rope_type": "default", "rope_theta": 300.0}])
        fields["rope_parameters"] = {KINDS[1]: dict(full)}
    if family.startswith("cohere"):
        fields["layer_norm_eps"] = fields.pop("rms_norm_eps")
        fields["logit_scale"] = rng.choice([0.0625, 0.3])
    if family in ("exaone4", "ministral3", "seed-oss"):  # whose heads need not share the width
        fields |= {"head_dim": head_size, "hidden_size": rng.choice([20, 52])}
    if family == "helium":
        fields["head_dim"] = head_size
    if family in ("helium", "seed-oss"):
        fields["mlp_bias"] = rng.random() < 0.5
    if family == "ministral3":
        fields["sliding_window"] = rng.choice([None, 11])
    return fields


@pytest.mark.parametrize("seed", range(NUM_DRAWN))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_decoders_equal_transformers(family: str, seed: int, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family, **random_fields(family, seed))
    assert_like_transformers(tmp_path, reference)
