"""What a worker reads of a family's configuration, and what a configuration need not say."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from signalbox_worker.config import ModelError
from signalbox_worker.models import ModelShape
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.tiny_models import make_model

NEEDED: dict[str, Any] = {
    "architecture": "OwnForCausalLM", "vocab_size": 97, "max_position": 64, "num_layers": 2,
    "num_heads": 4, "num_kv_heads": 2, "head_size": 16, "scale": 0.25,
}  # fmt: skip


def test_fields_that_a_configuration_lacks_are_neutral() -> None:
    shape = ModelShape.of(SimpleNamespace(**NEEDED, rope="of the family alone"))
    assert shape == ModelShape(**NEEDED, sliding_windows=(None, None), usual_length=64)
    assert not (shape.hidden_size or shape.has_sinks or shape.is_bidirectional)
    assert shape.attention_soft_cap is None


def test_fields_that_a_configuration_has_are_taken() -> None:
    given = {"sliding_windows": (8, None), "usual_length": 32, "attention_soft_cap": 50.0}
    assert ModelShape.of(SimpleNamespace(**NEEDED, **given)) == ModelShape(**NEEDED, **given)


def test_a_family_without_pooling_is_refused_for_it(tmp_path: Path) -> None:
    make_model(tmp_path, "gpt2")
    with pytest.raises(ModelError, match="GPT2LMHeadModel is not served with --runner pooling"):
        make_runner(tmp_path, runner="pooling")
