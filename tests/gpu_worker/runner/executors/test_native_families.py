"""Dense decoders of random shapes, natively: tokens and log probabilities beside transformers'."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_worker.runner.executors.native_models import (
    KINDS,
    NUM_DRAWN,
    assert_like_transformers,
    random_shape,
    widen_to_heads,
)
from tests.gpu_worker.tiny_models import YARN_ROPE, make_model
from tests.native_kernels import skip_without_native_kernels

pytestmark = pytest.mark.slow

skip_without_native_kernels()

FAMILIES = (
    *("cohere", "cohere2", "exaone4", "glm", "glm4", "helium", "ministral3", "olmo2", "olmo3"),
    *("phi3", "seed-oss", "smollm3"),
)
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 300.0}


def random_fields(family: str, seed: int) -> dict[str, Any]:
    """Fields of config.json: rotations of a part or of some layers, windows, with biases or not."""
    rng = random.Random(f"{family} {seed}")
    fields = random_shape(rng)
    num_layers = fields["num_hidden_layers"]
    if family in ("cohere", "cohere2", "helium", "olmo2", "olmo3"):
        widen_to_heads(fields)
    if family != "phi3":
        fields["attention_bias"] = rng.random() < 0.5
    if family in ("helium", "seed-oss", "smollm3"):
        fields["mlp_bias"] = rng.random() < 0.5
    if family in ("cohere2", "exaone4", "olmo3"):
        fields["sliding_window"] = rng.choice([5, 17])
        fields["layer_types"] = rng.choice([None, rng.choices(KINDS, k=num_layers)])
    elif family in ("ministral3", "phi3", "smollm3"):
        fields["sliding_window"] = rng.choice([None, 11])
    if family.startswith("cohere"):
        fields["layer_norm_eps"] = fields.pop("rms_norm_eps")
        fields["logit_scale"] = rng.choice([0.0625, 0.3])
    elif family == "smollm3":
        fields["no_rope_layers"] = rng.choice([None, rng.choices([0, 1], k=num_layers)])
        fields["no_rope_layer_interval"] = rng.choice([1, 2, 3])
        fields["use_sliding_window"] = rng.random() < 0.7
    elif family == "olmo3":
        fields["rope_parameters"] = {KINDS[1]: dict(rng.choice([YARN_ROPE, PLAIN_ROPE]))}
    elif family in ("glm", "glm4", "phi3"):
        rotation = PLAIN_ROPE if family == "phi3" else rng.choice([PLAIN_ROPE, YARN_ROPE])
        part = rng.choice([0.25, 0.5, 0.75, 1.0])
        fields["rope_parameters"] = rotation | {"partial_rotary_factor": part}
    return fields


@pytest.mark.parametrize("seed", range(NUM_DRAWN))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_decoders_equal_transformers(family: str, seed: int, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family, **random_fields(family, seed))
    assert_like_transformers(tmp_path, reference)
