"""Decoders with recurrent layers of random shapes, natively, beside transformers; their states lie
in blocks of the pool."""

import random
from pathlib import Path
from typing import Any

import pytest

from signalbox_worker.runner.loading import opened_model
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.runner.executors.native_models import (
    NUM_DRAWN,
    assert_bits_depend_on_the_sequence_alone,
    assert_like_transformers,
    random_shape,
)
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


@pytest.fixture(autouse=True)
def _serve_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_model, "_refuse_states", lambda shape: None)


def random_fields(seed: int) -> dict[str, Any]:
    rng = random.Random(f"lfm2 {seed}")
    fields = random_shape(rng)
    kinds = [rng.choice(["conv", "full_attention"]) for _ in range(rng.choice([0, 1, 3]))]
    kinds += ["conv", "full_attention"]
    rng.shuffle(kinds)
    return fields | {
        "hidden_size": rng.choice([32, 48, 112]),
        "norm_eps": fields.pop("rms_norm_eps"),
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "conv_L_cache": rng.choice([2, 3, 4]),
        "conv_bias": rng.random() < 0.5,
        "block_auto_adjust_ff_dim": rng.random() < 0.5,
        "block_multiple_of": 8,
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_DRAWN))
def test_random_lfm2_equals_transformers(seed: int, tmp_path: Path) -> None:
    reference = make_model(tmp_path, "lfm2", **random_fields(seed))
    assert_like_transformers(tmp_path, reference)


def test_bits_of_lfm2_depend_on_the_sequence_alone(tmp_path: Path) -> None:
    """States too: a row of blocks ends with the state behind its last token."""
    make_model(tmp_path, "lfm2")
    assert_bits_depend_on_the_sequence_alone(tmp_path, make_prompts(1, 17, 40, 64))
