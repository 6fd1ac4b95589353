"""Made-up weights: every family runs from its config.json alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import WEIGHTS, Probe, make_prompts, make_runner, remove_files
from tests.gpu_worker.tiny_models import FAMILIES, make_model

OPT = {
    "architectures": ["OPTForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "ffn_dim": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}


def make_config(path: Path, **changes: Any) -> Path:
    config = {name: value for name, value in (OPT | changes).items() if value is not ...}
    (path / "config.json").write_text(json.dumps(config))
    return path


def load(path: Path, **options: Any) -> LocalRunner:
    return make_runner(path, load_format="dummy", num_gpu_blocks=64, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs_on_made_up_weights(family: str, tmp_path: Path) -> None:
    make_model(tmp_path, family)
    remove_files(tmp_path, *WEIGHTS)
    drawn = [
        Driver(runner=load(tmp_path, **options)).generate(make_prompts(20), num_tokens=6)
        for options in ({"model_impl": "signalbox"}, {})
    ]
    assert drawn[0] == drawn[1]


def test_logits_of_made_up_weights_are_finite_and_differ(tmp_path: Path) -> None:
    runner = load(make_config(tmp_path))
    probe = Probe(runner)
    Driver(runner=runner).generate(make_prompts(9), num_tokens=2)
    logits = probe.logits[-1].numpy()
    assert np.isfinite(logits).all()
    assert logits.std() > 1e-3


def test_configuration_alone_gets_a_tokenizer_of_bytes(tmp_path: Path) -> None:
    runner = load(make_config(tmp_path))
    files = runner.tokenizer_files()
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    ids = tokenizer.encode("où?").ids
    assert tokenizer.decode(ids) == "où?"
    assert tokenizer.get_vocab_size() == OPT["vocab_size"]
    params = SamplingParams(temperature=1.0, seed=3)
    (drawn,) = Driver(runner=runner).generate([ids], num_tokens=20, params=params)
    assert max(drawn) < 512
    assert set(runner.model.eos_token_ids) == {2, 258}


def test_vocabulary_that_config_leaves_out_is_that_of_the_class(tmp_path: Path) -> None:
    config = make_config(tmp_path, architectures=["LlamaForCausalLM"], vocab_size=...)
    tokenizer = Tokenizer.from_str(load(config).tokenizer_files()["tokenizer.json"].decode())
    assert tokenizer.get_vocab_size() == 32000


def test_vocabulary_too_small_for_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a vocabulary of 97 cannot hold the 259 tokens"):
        load(make_config(tmp_path, vocab_size=97))


def test_gguf_file_has_no_made_up_weights(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(ModelError, match=r"takes a directory with config\.json or a hub id"):
        load(file)


def test_models_through_transformers_have_no_made_up_weights(tmp_path: Path) -> None:
    make_model(tmp_path, "llama2")
    with pytest.raises(ModelError, match="not served for models that run through transformers"):
        load(tmp_path, model_impl="transformers")


def test_load_format_is_checked() -> None:
    with pytest.raises(ValueError, match="'auto' or 'dummy'"):
        ModelConfig(model="m", load_format="npz")
