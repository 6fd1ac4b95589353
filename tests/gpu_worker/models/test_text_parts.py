"""The text parts of models that also take images, beside transformers' classes of the whole."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.text_parts import text
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.checkpoints.text_part import MULTIMODAL, SERVED, TABLE, text_part
from signalbox_worker.runner.loading.model_source import open_model
from tests.gpu_worker.model_runners import (
    LONG_PROMPT,
    assert_greedy,
    log_probabilities,
    make_prompts,
    make_runner,
)
from tests.gpu_worker.models.multimodal_models import FAMILIES, make_multimodal
from tests.rounding import LOGITS

SEEDS = range(int(os.environ.get("CONFIGURATIONS", "2")))
"""Random configurations of each family."""


def reference_logprobs(model: Any, prompt: list[int]) -> torch.Tensor:
    with torch.no_grad():
        rows = model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    return rows[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]


@pytest.mark.slow
@pytest.mark.compares(how="its text part", of="{}ForConditionalGeneration".format)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_text_part_computes_what_the_whole_does_of_text(
    name: str, seed: int, tmp_path: Path
) -> None:
    reference = make_multimodal(tmp_path, name, seed)
    runner = make_runner(tmp_path)
    actual, expected = log_probabilities(runner), reference_logprobs(reference, LONG_PROMPT)
    torch.testing.assert_close(actual, expected, rtol=0, atol=LOGITS)
    assert_greedy(make_runner(tmp_path), reference, make_prompts(1, 17, 40), 6, chunks=(7,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Qwen3VL", "Mistral3", "Glm4v"])
def test_part_that_is_ours_runs_through_transformers_too(name: str, tmp_path: Path) -> None:
    reference = make_multimodal(tmp_path, name, 0)
    runner = make_runner(tmp_path, model_impl="transformers")
    assert_greedy(runner, reference, make_prompts(5, 40), 6)


def test_start_counts_what_it_leaves_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make_multimodal(tmp_path, "Qwen3VL", 1)
    with caplog.at_level(logging.WARNING):
        source = open_model(ModelConfig(model=str(tmp_path)), lambda _: None)
    parameters = dict(model.named_parameters())
    seen = [one for name, one in parameters.items() if "visual" in name]
    assert f"images and sound are not: {len(seen)} tensors are left out" in caplog.text
    assert source.sizes is not None
    left = sum(one.numel() for one in parameters.values()) - sum(one.numel() for one in seen)
    assert source.sizes.num_values == left


def test_table_is_that_of_transformers() -> None:
    assert TABLE.read_text() == text(), "python -m scripts.text_parts writes it"
    assert {f"{name}ForConditionalGeneration" for name in FAMILIES} == {*SERVED}


def test_configuration_of_the_first_files_is_in_one() -> None:
    """That of Qwen2.5-VL, whose rotation by sections has a name of its own."""
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "hidden_size": 64,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {"hidden_size": 8},
        "torch_dtype": "bfloat16",
    }
    found = text_part(config)
    assert found["architectures"] == ["Qwen2ForCausalLM"] and found["hidden_size"] == 64
    assert found["rope_scaling"] == {"type": "default"} and found["vocab_size"] == 152064
    assert not found["tie_word_embeddings"]
    assert found[MULTIMODAL] == "Qwen2_5_VLForConditionalGeneration"
    plain = {"architectures": ["LlamaForCausalLM"], "text_config": {"hidden_size": 1}}
    assert text_part(plain) is plain


def test_what_a_type_has_in_its_code_alone_counts_whatever_the_file_says() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "attention_bias": False}
    found = text_part({"architectures": ["Glm4vForConditionalGeneration"], "text_config": sizes})
    assert found["architectures"] == ["Glm4ForCausalLM"]
    assert (found["head_dim"], found["attention_bias"]) == (16, True)
    assert found["partial_rotary_factor"] is None


REFUSED = {
    "Glm5NextForConditionalGeneration": "glm5_next_text",
    "PaliGemmaForConditionalGeneration": "gemma",
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_part_that_is_not_served_is_refused_before_anything_is_read(
    architecture: str, tmp_path: Path
) -> None:
    config = {
        "architectures": [architecture],
        "text_config": {"model_type": REFUSED[architecture], "vocab_size": 8},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    message = f"not supported: {architecture} .its text part is '{REFUSED[architecture]}'"
    with pytest.raises(ModelError, match=message):
        open_model(ModelConfig(model=str(tmp_path)), lambda _: None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": None}, "has no text_config; it is incomplete"),
        ({"text_config": [1]}, r"text_config = \[1\]"),
    ],
)
def test_unsound_configuration_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        text_part({"architectures": ["Mistral3ForConditionalGeneration"], **change})
