"""Tensors that a model does not take by their names, and tensors that stand in two places."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from signalbox_contract.startup import ignore_progress
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.models.layers import ParallelGroup, Placement
from signalbox_worker.runner.loading.loaded_model import all_names
from signalbox_worker.runner.loading.opened_model import open_with_config
from signalbox_worker.runner.loading.weight_loader import load_weights
from tests.gpu_worker.model_runners import (
    WEIGHTS,
    assert_greedy,
    make_prompts,
    make_runner,
    remove_files,
)
from tests.gpu_worker.models.pooling.pooled_batches import pool
from tests.gpu_worker.tiny_models import make_model

pytestmark = pytest.mark.slow

TABLES = ("embed_tokens.weight", "wte.weight")
HEAD = "lm_head.weight"


def tensors_of(path: Path) -> dict[str, Tensor]:
    """Takes all tensors out of a folder's files."""
    found: dict[str, Tensor] = {}
    for shard in path.glob("*.safetensors"):
        found |= load_file(shard)
    remove_files(path, *WEIGHTS)
    return found


def save_with_head(path: Path, family: str, change: Callable[[Tensor], Tensor]) -> Any:
    """Saves a tied model whose files hold a head nevertheless; returns what transformers loads."""
    make_model(path, family, tie_word_embeddings=True, hidden_size=96)  # heads of 16
    tensors = tensors_of(path)
    (table,) = (tensor for name, tensor in tensors.items() if name.endswith(TABLES))
    save_file(tensors | {HEAD: change(table).contiguous()}, path / "model.safetensors")
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def other_head(table: Tensor) -> Tensor:
    return table.flip(0) * 1.5


NATIVE: dict[str, Any] = {"cpu_backend": "native"}
TORCH: dict[str, Any] = {"cpu_backend": "torch"}
THEIRS = TORCH | {"model_impl": "transformers"}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        *((one, NATIVE) for one in ("llama2", "qwen2", "qwen3", "granite", "phi3")),
        *((one, TORCH) for one in ("mistral", "phi3", "opt", "opt-350m", "gpt2", "gemma")),
        *((one, TORCH) for one in ("gemma2", "gemma3", "mixtral", "qwen3-moe")),
        *((one, THEIRS) for one in ("llama2", "starcoder2")),
    ],
)
def test_head_of_a_tied_model_counts_if_it_differs(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """A merged adapter leaves tie_word_embeddings as it was."""
    reference = save_with_head(tmp_path, family, other_head)
    assert reference.get_output_embeddings().weight is not reference.get_input_embeddings().weight
    assert_greedy(make_runner(tmp_path, **options), reference, make_prompts(5, 17), 6)


@pytest.mark.parametrize(
    ("family", "options"),
    [("llama3", NATIVE), ("llama3", TORCH), ("gpt2", TORCH), ("opt", TORCH), ("llama3", THEIRS)],
)
def test_head_of_a_tied_model_stands_for_a_table_that_is_missing(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    save_with_head(tmp_path, family, torch.clone)
    tensors = tensors_of(tmp_path)
    left = {name: one for name, one in tensors.items() if not name.endswith(TABLES)}
    save_file(left, tmp_path / "model.safetensors")
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert_greedy(make_runner(tmp_path, **options), reference, make_prompts(5, 17), 6)


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_head_of_a_tied_model_that_is_the_table_takes_no_memory(
    suffix: str, tmp_path: Path
) -> None:
    reference = save_with_head(tmp_path, "llama3", torch.clone)
    if suffix == ".bin":
        remove_files(tmp_path, *WEIGHTS)
        torch.save(reference.state_dict(), tmp_path / "pytorch_model.bin")
    opened = open_with_config(ModelConfig(model=str(tmp_path)), ignore_progress)
    assert opened.shape.tie_embeddings


@pytest.mark.parametrize("options", [TORCH, NATIVE])
def test_scores_by_tokens_are_of_the_head_that_counts(
    options: dict[str, Any], tmp_path: Path
) -> None:
    reference = save_with_head(tmp_path, "qwen3", other_head)
    tokenizer = (tmp_path / "tokenizer.json").read_text()
    renamed = tokenizer.replace('"w5"', '"yes"').replace('"w6"', '"no"')
    (tmp_path / "tokenizer.json").write_text(renamed)
    runner = make_runner(tmp_path, runner="pooling", convert="classify", **options)
    (prompt,) = make_prompts(9)
    with torch.no_grad():
        logits = reference(torch.tensor([prompt])).logits[0, -1]
    assert pool(runner, [prompt])[0, 0] == pytest.approx(float(logits[5] - logits[6]), rel=1e-4)


STRANGERS = (
    *("self_attn.rotary_emb.inv_freq", "self_attn.k_scale", "self_attn.q_norm.weight"),
    *("attn.bias", "attn.masked_bias", "self_attn.v_proj.bias", "mlp.up_proj.bias"),
)
"""Ends of names that some checkpoints of some family have, within a layer."""
TOP_STRANGERS = ("lm_head.bias", "score.weight", "model.norm.bias", "model.rotary_emb.inv_freq")


@pytest.mark.parametrize("value", [0.0, 0.7])
@pytest.mark.parametrize(
    ("family", "options"),
    [("llama2", NATIVE), ("llama2", TORCH), ("gpt2", TORCH), ("opt", TORCH), ("mixtral", TORCH)],
)
def test_tensor_that_is_dropped_changes_nothing_in_transformers_either(
    family: str, options: dict[str, Any], value: float, tmp_path: Path
) -> None:
    make_model(tmp_path, family, hidden_size=96)
    tensors = tensors_of(tmp_path)
    layers = {"gpt2": "transformer.h.0", "opt": "model.decoder.layers.0"}
    prefix = layers.get(family, "model.layers.0")
    dropped = []
    for name in (*(f"{prefix}.{end}" for end in STRANGERS), *TOP_STRANGERS):
        if name in tensors:
            continue
        save_file(tensors | {name: torch.full((96,), value)}, tmp_path / "model.safetensors")
        reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        try:
            runner = make_runner(tmp_path, **options)
        except ModelError as error:
            assert f"unexpected weight {name!r}" in str(error)
            continue
        assert_greedy(runner, reference, make_prompts(9), 4)
        dropped.append(name)
    assert dropped  # the others were refused


def stage_of(path: Path, start: int, end: int) -> None:
    """Loads some layers of the model."""
    opened = open_with_config(ModelConfig(model=str(path)), ignore_progress)
    placement = Placement(torch.device("cpu"), torch.float32)
    group = ParallelGroup(layers=StageLayers(start, end, 3))
    model = opened.spec.build(opened.config, 64, placement, group)
    load_weights(
        model, opened.source, ignore_progress, of_other_stages=all_names(opened, placement)
    )


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("model.layers.0.self_attn.q_proj.bias", (0, 1)),
        ("model.layers.2.mlp.gate.weight", (1, 3)),
        ("model.layers.3.input_layernorm.weight", (0, 1)),
        ("model.rotary.weight", (1, 3)),
    ],
)
def test_stage_refuses_a_tensor_that_no_stage_takes(
    name: str, stage: tuple[int, int], tmp_path: Path
) -> None:
    make_model(tmp_path, "llama2")
    stage_of(tmp_path, *stage)  # tensors of the other stage are left to it
    save_file(tensors_of(tmp_path) | {name: torch.ones(48)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"unexpected weight '{name}'"):
        stage_of(tmp_path, *stage)
