"""Every field that is read of a GGUF file with values that no model has: read, or refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.config import GGUFConfig
from signalbox_worker.files.checkpoints.gguf.families import PARTLY_ROTATED
from signalbox_worker.files.checkpoints.gguf.names import FAMILIES
from signalbox_worker.files.checkpoints.gguf.reader import GGUFContent, GGUFTensor
from signalbox_worker.models import model_spec
from signalbox_worker.models.model_shape import ModelShape
from tests.gpu_worker.unsound_values import UNSOUND

NAMES = ["token_embd.weight", "token_types.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight"]
COMMON = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 2.0,
}
MIXED = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
SLIDING = {"attention.sliding_window": 32}
ROTATED = {"rope.dimension_count": 8}
HYBRID = {"attention.head_count_kv": [0, 2]}
CONVOLUTION = HYBRID | {"shortconv.l_cache": 3}
MAMBA = HYBRID | {"ssm.inner_size": 128, "ssm.time_step_rank": 4, "ssm.group_count": 1}
MAMBA |= {"ssm.state_size": 16, "ssm.conv_kernel": 4}
ONE_PART = MAMBA | {"block_count": 3, "attention.head_count_kv": [0, 2, 0]}
ONE_PART |= {"feed_forward_length": [0, 0, 96]}
DELTA = ROTATED | {"full_attention_interval": 2, "ssm.inner_size": 64, "ssm.time_step_rank": 4}
DELTA |= {"ssm.group_count": 2, "ssm.state_size": 16, "ssm.conv_kernel": 4}
ENCODER = {"attention.head_count_kv": 4, "rope.scaling.type": "none"}
PARTS: dict[str, dict[str, Any]] = {
    "bert": ENCODER,
    "cohere2": SLIDING | {"logit_scale": 0.5},
    "deepseek2": MIXED
    | {"attention.key_length_mla": 64, "attention.value_length_mla": 32, "expert_shared_count": 1}
    | {"rope.dimension_count": 32, "attention.kv_lora_rank": 32},
    "gemma2": SLIDING,
    "gemma3": SLIDING,
    "gemma4": SLIDING | {"attention.key_length_swa": 16, "rope.scaling.type": "none"},
    "glm4moe": MIXED | {"expert_shared_count": 1},
    "gpt-oss": MIXED | SLIDING,
    "granitehybrid": MAMBA,
    "lfm2": CONVOLUTION,
    "lfm2moe": CONVOLUTION | MIXED | {"expert_gating_func": 2},
    "nemotron_h": ONE_PART,
    "nemotron_h_moe": ONE_PART | MIXED | {"expert_shared_feed_forward_length": 32},
    "nomic-bert": ENCODER,
    "qwen35": DELTA,
    **dict.fromkeys(("qwen35moe", "qwen3next"), DELTA | MIXED),
    "phi3": {"rope.scaling.type": "none"},
    **dict.fromkeys(("qwen2moe", "qwen3moe", "qwen3vlmoe", "olmoe", "granitemoe"), MIXED),
}


class Recorded(dict[str, Any]):
    """Fields that note which of them are asked for."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().get(key, default)


def fields_of(kind: str) -> dict[str, Any]:
    norm = "layer_norm" if kind in ("bert", "cohere2", "nomic-bert") else "layer_norm_rms"
    given = COMMON | PARTS.get(kind, {}) | {f"attention.{norm}_epsilon": 1e-5}
    given |= ROTATED if kind in PARTLY_ROTATED else {}
    of_model = {f"{kind}.{name}": value for name, value in given.items()}
    return {"general.architecture": kind, **of_model}


def read(fields: dict[str, Any]) -> ModelShape:
    path = Path("x.gguf")
    tensors = {
        name: GGUFTensor(
            name=name,
            shape=(48, 64),
            type=GGMLQuantizationType.F32,
            path=path,
            offset=0,
            num_bytes=4 * 48 * 64,
        )
        for name in NAMES
    }
    config = GGUFConfig(GGUFContent(fields=fields, tensors=tensors), path).config()
    return ModelShape.of(model_spec(config).read_config(config))


def unsound(kind: str) -> Iterator[tuple[str, Any]]:
    recorded = Recorded(fields_of(kind))
    assert read(recorded).num_layers == recorded[f"{kind}.block_count"]
    for name in sorted(recorded.names - {"general.architecture"}):
        yield from ((name, value) for value in UNSOUND if not isinstance(value, dict))


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_value_is_read_or_refused(kind: str) -> None:
    for name, value in unsound(kind):
        try:
            shape = read(fields_of(kind) | {name: value})
        except ModelError:
            continue
        assert 0 < shape.num_layers <= len(NAMES) and shape.head_size > 0, f"{name} = {value}"
