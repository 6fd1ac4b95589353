"""A vector of each token against sentence-transformers, on random weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer import modules as st

from signalbox_contract.pooling import PoolingParams
from signalbox_router.generation.pooling.activations import activated
from signalbox_worker.config import ModelError
from signalbox_worker.models.pooling import pooler
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.models.pooling.encoder_models import (
    architecture_of,
    edit_json,
    make_texts,
    save_model,
    token_ids_of,
)
from tests.gpu_worker.models.pooling.pooled_batches import make_batch, make_prompts

pytestmark = pytest.mark.slow

TEXTS = make_texts(1, 3, 16, 17, 40, 120)
SIZE = 48
TOLERANCE = 1e-5


def save_colbert(
    path: Path, family: str = "bert", *, dim: int = 16, is_normalized: bool = True
) -> Any:
    """Saves a model for late interaction, and returns it."""
    save_model(path / "model", family)
    torch.manual_seed(1)
    dense = st.Dense(
        SIZE,
        dim,
        bias=False,
        activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )
    modules = [st.Transformer(str(path / "model")), dense, MultiVectorMask()]
    if is_normalized:
        modules.append(st.Normalize(module_input_name="token_embeddings"))
    model = MultiVectorEncoder(modules=modules, device="cpu")
    model.save(str(path / "saved"), create_model_card=False)
    return model


def token_vectors(runner: Any, prompts: list[list[int]], *, also: int = 0) -> list[np.ndarray]:
    """Returns [num_tokens, num_token_outputs] of each prompt, computed with others that have one
    vector each.

    Args:
        also: how many others.
    """
    params = [PoolingParams(is_per_token=True)] * len(prompts) + [PoolingParams()] * also
    batch = make_batch(make_prompts([*prompts, *prompts[:also]], params))
    output = runner.execute(batch)
    assert not output.failed_seqs
    assert all(len(output.pooled.pop(len(prompts) + i)) == SIZE for i in range(also))
    size = runner.model.pooling.num_token_outputs
    return [output.pooled[i].reshape(-1, size) for i in range(len(prompts))]


@pytest.mark.compares(how="vectors of tokens", of=architecture_of)
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "distilbert", "nomic-bert"])
def test_late_interaction_is_sentence_transformers(
    family: str, backend: str, tmp_path: Path
) -> None:
    is_normalized = family != "distilbert"
    model = save_colbert(tmp_path, family, is_normalized=is_normalized)
    runner = make_runner(tmp_path / "saved", cpu_backend=backend)
    pooling = runner.model.pooling
    assert pooling.activation == ("normalize" if is_normalized else "identity")
    assert (pooling.task, pooling.num_outputs, pooling.num_token_outputs) == ("token_embed", 16, 16)
    prompts = token_ids_of(model.tokenizer, TEXTS)
    expected = model.encode(TEXTS, convert_to_numpy=True)
    for vectors, token_ids, others in zip(
        token_vectors(runner, prompts), prompts, expected, strict=True
    ):
        assert vectors.shape == (len(token_ids), 16)
        found = activated(vectors, pooling.activation)
        np.testing.assert_allclose(found, others, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_an_embedding_model_has_the_hidden_states_of_tokens(backend: str, tmp_path: Path) -> None:
    save_model(tmp_path / "model", "modernbert")
    modules = [st.Transformer(str(tmp_path / "model")), st.Pooling(SIZE), st.Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.save(str(tmp_path / "saved"), create_model_card=False)
    runner = make_runner(tmp_path / "saved", cpu_backend=backend)
    prompts = token_ids_of(model.tokenizer, TEXTS)
    expected = model.encode(TEXTS, output_value="token_embeddings")
    alone = [token_vectors(runner, [one])[0] for one in prompts]
    for one, vectors, others in zip(
        alone, token_vectors(runner, prompts, also=3), expected, strict=True
    ):
        np.testing.assert_allclose(vectors, others.numpy(), rtol=1e-5, atol=TOLERANCE)
        assert backend != "native" or one.tobytes() == vectors.tobytes()


def test_the_forms_of_other_packages_are_read(tmp_path: Path) -> None:
    model = save_colbert(tmp_path)
    saved = tmp_path / "saved"
    prompts = token_ids_of(model.tokenizer, TEXTS)
    expected = np.concatenate(token_vectors(make_runner(saved), prompts))

    def check(**options: Any) -> None:
        found = np.concatenate(token_vectors(make_runner(saved, **options), prompts))
        assert found.tobytes() == expected.tobytes()

    edit_json(saved / "sentence_bert_config.json", query_length=32, document_length=180)
    entries = json.loads((saved / "modules.json").read_text())[:2]  # PyLate norms in its code
    entries[1]["type"] = "pylate.models.Dense.Dense"
    (saved / "modules.json").write_text(json.dumps(entries))
    names = {"module_input_name": None, "module_output_name": None}
    edit_json(saved / "1_Dense" / "config.json", **names)
    check()
    linear = load_file(saved / "1_Dense" / "model.safetensors")
    weights = {f"bert.{name}": one for name, one in load_file(saved / "model.safetensors").items()}
    save_file(weights | linear, saved / "model.safetensors")
    for name in ("modules.json", "sentence_bert_config.json"):
        (saved / name).unlink()
    edit_json(saved / "config.json", architectures=["HF_ColBERT"])
    check()


def test_what_is_not_bounded_or_not_whole_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_colbert(tmp_path)
    runner = make_runner(tmp_path / "saved")
    prompts = token_ids_of(model.tokenizer, TEXTS[:2])
    monkeypatch.setattr(pooler, "_MAX_BATCH_BYTES", 4 * 16 * len(prompts[0]))
    params = [PoolingParams(is_per_token=True)] * 2
    output = runner.execute(make_batch(make_prompts(prompts, params)))
    assert (output.pooled.keys(), output.failed_seqs) == ({0}, {1: pooler.TOO_MANY_VECTORS})
    save_model(tmp_path / "causal", "qwen2")
    assert make_runner(tmp_path / "causal", runner="pooling").model.pooling.num_token_outputs == 0
    edit_json(tmp_path / "saved" / "1_Dense" / "config.json", module_input_name="other")
    with pytest.raises(ModelError, match="'other'"):
        make_runner(tmp_path / "saved")
