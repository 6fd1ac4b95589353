"""Every family and pooling against sentence-transformers, on random weights."""

import json
import re
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st
from sentence_transformers.sentence_transformer.losses import (
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from transformers import AutoModelForCausalLM

from signalbox_contract.pooling import PoolingParams
from signalbox_worker.config import ModelError
from signalbox_worker.models.pooling.pooler import CHUNK_LOST
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.models.pooling.encoder_models import (
    architecture_of,
    edit_json,
    make_texts,
    save_model,
    token_ids_of,
)
from tests.gpu_worker.models.pooling.pooled_batches import make_batch, make_prompts, pool

pytestmark = pytest.mark.slow

TEXTS = make_texts(1, 3, 9, 16, 17, 40, 41, 120, 200)
MODES = ("cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean")
ENCODERS = (
    *("bert", "roberta", "xlm-roberta", "modernbert", "modernbert-biased", "embedding-gemma"),
    *("nomic-bert", "distilbert", "mpnet"),
    "qwen2-both-ways",
)
SIZE = 48
TOLERANCE = 1e-5


def save(path: Path, family: str, *modules: Any, mode: Any = "mean", **options: Any) -> Any:
    """Saves a model of sentence-transformers, and returns it."""
    save_model(path / "model", family)
    torch.manual_seed(1)
    pooling = st.Pooling(SIZE, pooling_mode=mode, **options)
    model = SentenceTransformer(
        modules=[st.Transformer(str(path / "model")), pooling, *modules], device="cpu"
    )
    model.save(str(path / "saved"), create_model_card=False)
    return model


def assert_same(runner: Any, model: Any, texts: list[str] = TEXTS, **options: Any) -> None:
    tokens = token_ids_of(model.tokenizer, texts)
    expected = model.encode(texts, normalize_embeddings=False)
    actual = pool(runner, tokens, **options)
    if runner.model.pooling.activation == "normalize":
        actual /= np.linalg.norm(actual, axis=-1, keepdims=True)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.compares(how="vectors", of=architecture_of)
@pytest.mark.parametrize(("family", "backend"), list(product(ENCODERS, ("torch", "native"))))
def test_vectors_of_encoders_are_the_same(family: str, backend: str, tmp_path: Path) -> None:
    linear = {"bias": False, "activation_function": torch.nn.Identity()}
    of_gemma = [st.Dense(SIZE, 96, **linear), st.Dense(96, SIZE, **linear)]
    dense = of_gemma if family == "embedding-gemma" else []
    model = save(tmp_path, family, *dense, st.Normalize())
    runner = make_runner(tmp_path / "saved", cpu_backend=backend)
    assert runner.model.pooling.is_bidirectional
    assert runner.model.pooling.reads_all_tokens
    assert_same(runner, model)


@pytest.mark.parametrize("family", ["bert", "embedding-gemma"])
def test_vectors_through_tritons_attention_are_the_same(
    triton_device: str, family: str, tmp_path: Path
) -> None:
    """Learned positions and no window; rotation on the way into the cache, with windows."""
    model = save(tmp_path, family, st.Normalize())
    runner = make_runner(tmp_path / "saved", attention_backend="triton", device=triton_device)
    runner.pools.gpu_pool.fill_(0xFF)  # a NaN wherever nobody has written
    assert_same(runner, model, TEXTS[:8])


@pytest.mark.parametrize("mode", [*MODES, MODES])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_each_mode_pools_the_same_in_chunks(mode: Any, backend: str, tmp_path: Path) -> None:
    model = save(tmp_path, "qwen3", st.Normalize(), mode=mode)
    runner = make_runner(tmp_path / "saved", cpu_backend=backend)
    assert runner.model.pooling.reads_all_tokens is (mode != "lasttoken")
    for chunk in (1 << 20, 16, 7):
        assert_same(runner, model, chunk=chunk)


def test_modules_behind_pooling_are_the_same(tmp_path: Path) -> None:
    dense = [
        st.Dense(2 * SIZE, 40, bias=False, activation_function=torch.nn.Identity()),
        st.Dense(40, 32, activation_function=torch.nn.GELU()),
        st.LayerNorm(32),
        st.Dense(32, 32, activation_function=torch.nn.Tanh(), use_residual=True),
    ]
    model = save(tmp_path, "bert", *dense, st.Normalize(), mode=("max", "cls"))
    runner = make_runner(tmp_path / "saved")
    assert runner.model.pooling.num_outputs == 32
    assert_same(runner, model)


def test_an_old_directory_is_read(tmp_path: Path) -> None:
    """Of an old release: its class names, flags of modes, and a folder for the transformer."""
    model = save(tmp_path, "bert", mode=("cls", "mean"))
    saved = tmp_path / "saved"
    (saved / "0_Transformer").mkdir()
    for file in [one for one in saved.iterdir() if one.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(saved / "0_Transformer" / file.name)
    entries = [
        {"idx": 0, "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (saved / "modules.json").write_text(json.dumps(entries))
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    edit_json(saved / "1_Pooling" / "config.json", pooling_mode=None, **flags)
    assert_same(make_runner(saved), model)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_norms_of_old_checkpoints_are_read(backend: str, tmp_path: Path) -> None:
    """Those converted from TensorFlow's, such as the first BERT, call their vectors otherwise."""
    model = save(tmp_path, "bert", st.Normalize())
    file = tmp_path / "saved" / "model.safetensors"
    old = {".weight": ".gamma", ".bias": ".beta"}
    renamed = {
        re.sub(r"(?<=LayerNorm)(\.weight|\.bias)$", lambda part: old[part[0]], name): tensor
        for name, tensor in load_file(file).items()
    }
    assert any(name.endswith(".gamma") for name in renamed)
    save_file(renamed, file)
    assert_same(make_runner(tmp_path / "saved", cpu_backend=backend), model)


def test_tokens_of_a_prompt_are_left_out(tmp_path: Path) -> None:
    model = save(tmp_path, "qwen3", mode=MODES, include_prompt=False)
    prompt, texts = "w9 w10 w11 ", TEXTS[:6]
    expected = model.encode(texts, prompt=prompt)
    tokens = token_ids_of(model.tokenizer, [prompt + text for text in texts])
    params = [PoolingParams(num_skipped_tokens=4)] * len(texts)  # with the token before the text
    runner = make_runner(tmp_path / "saved")
    for chunk in (300, 3):
        actual = pool(runner, tokens, chunk=chunk, params=params)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


def test_files_for_routers_come_with_the_tokenizers(tmp_path: Path) -> None:
    save(tmp_path, "bert", mode="max", include_prompt=False)
    files = make_runner(tmp_path / "saved").tokenizer_files()
    assert json.loads(files["pooling_config.json"])["include_prompt"] is False
    assert json.loads(files["config.json"])["architectures"] == ["BertModel"]
    assert {"modules.json", "config_sentence_transformers.json", "tokenizer.json"} <= files.keys()


def test_a_directory_without_modules_pools_as_there(tmp_path: Path) -> None:
    save_model(tmp_path, "bert")
    model = SentenceTransformer(str(tmp_path), device="cpu")
    assert_same(make_runner(tmp_path), model)


def test_decoders_without_modules_pool_if_they_are_asked_to(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3", "AutoModelForCausalLM")
    model = SentenceTransformer(str(tmp_path), device="cpu")
    runner = make_runner(tmp_path, runner="pooling")
    assert not runner.model.pooling.reads_all_tokens
    assert_same(runner, model, chunk=16)
    assert make_runner(tmp_path).model.pooling is None


CLASSIFIERS = [
    ("bert", {"num_labels": 1}),
    ("bert", {"num_labels": 3}),
    ("roberta", {"num_labels": 1}),
    ("xlm-roberta", {"num_labels": 1}),
    ("modernbert", {"num_labels": 1, "classifier_pooling": "mean"}),
    ("modernbert-biased", {"num_labels": 2, "classifier_bias": True}),
    ("nomic-bert", {"num_labels": 3}),
    ("distilbert", {"num_labels": 2}),
    ("qwen2", {"num_labels": 1}),
    ("qwen3", {"num_labels": 4}),
]


def assert_same_scores(
    runner: Any, model: Any, pairs: list[tuple[str, str]], **options: Any
) -> None:
    """Compares scores before the activation function."""
    expected = model.predict(pairs, activation_fn=torch.nn.Identity()).reshape(len(pairs), -1)
    encoded = [model.tokenizer(*pair) for pair in pairs]
    params = [PoolingParams(_first_segment(one)) for one in encoded]
    actual = pool(runner, [one["input_ids"] for one in encoded], params=params, **options)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


def _first_segment(encoded: Any) -> int:
    types = encoded.get("token_type_ids", [0])
    return types.index(1) if 1 in types else 0


@pytest.mark.compares(how="scores", of=partial(architecture_of, end="ForSequenceClassification"))
@pytest.mark.parametrize(("family", "options"), CLASSIFIERS)
def test_scores_of_classifiers_are_the_same(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    save_model(tmp_path, family, "AutoModelForSequenceClassification", **options)
    model = CrossEncoder(str(tmp_path), device="cpu")
    runner = make_runner(tmp_path)
    pooling = runner.model.pooling
    assert (pooling.task, pooling.num_outputs) == ("classify", options["num_labels"])
    assert pooling.activation == ("sigmoid" if options["num_labels"] == 1 else "softmax")
    pairs = [(a, b) for a, b in pairwise(make_texts(2, 5, 18, 60, 90))]
    assert_same_scores(runner, model, pairs)


IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("settings", "activation"),
    [
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, "identity"),
        ({"sbert_ce_default_activation_function": IDENTITY}, "identity"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            "sigmoid",
        ),
    ],
)
def test_scores_end_in_the_function_that_a_file_names(
    settings: dict[str, Any], activation: str, tmp_path: Path
) -> None:
    save_model(tmp_path / "old", "bert", "AutoModelForSequenceClassification", num_labels=1)
    edit_json(tmp_path / "old" / "config.json", **settings)
    model = CrossEncoder(str(tmp_path / "old"), device="cpu")
    model.save(str(tmp_path / "new"))
    assert type(model.activation_fn).__name__.lower() == activation
    for folder in ("old", "new"):
        assert make_runner(tmp_path / folder).model.pooling.activation == activation


def test_a_function_of_scores_that_is_not_served_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "bert", "AutoModelForSequenceClassification", num_labels=1)
    name = "my_package.Cube"
    edit_json(tmp_path / "config.json", sentence_transformers={"activation_fn": name})
    with pytest.raises(ModelError, match=r"'my_package.Cube' of scores is not supported"):
        make_runner(tmp_path)


def test_a_tensor_that_a_module_has_no_use_for_is_refused(tmp_path: Path) -> None:
    save(tmp_path, "bert", st.Dense(SIZE, 8))
    edit_json(tmp_path / "saved" / "2_Dense" / "config.json", bias=False)
    with pytest.raises(RuntimeError, match=r"linear\.bias"):
        SentenceTransformer(str(tmp_path / "saved"))
    with pytest.raises(ModelError, match=r"2_Dense has the tensor 'linear.bias'"):
        make_runner(tmp_path / "saved")


@pytest.mark.parametrize(
    ("settings", "dimensions"),
    [
        ({}, ()),
        ({"matryoshka_dimensions": [64, 32, 16]}, (16, 32)),
        ({"is_matryoshka": True}, tuple(range(1, SIZE + 1))),
    ],
)
def test_vectors_may_be_cut_to_the_sizes_that_a_model_declares(
    settings: dict[str, Any], dimensions: tuple[int, ...], tmp_path: Path
) -> None:
    save(tmp_path, "bert")
    edit_json(tmp_path / "saved" / "config.json", **settings)
    assert make_runner(tmp_path / "saved").model.pooling.dimensions == dimensions


def test_a_card_says_to_which_sizes_a_trainer_cut_vectors(tmp_path: Path) -> None:
    model = save(tmp_path, "bert")
    inner = MultipleNegativesRankingLoss(model)
    losses = [MatryoshkaLoss(model, inner, matryoshka_dims=dims) for dims in ([48, 32], [16, 32])]
    parts = [json.dumps(one.get_config_dict(), indent=4) for one in losses]
    (tmp_path / "saved" / "README.md").write_text("\n".join(parts))
    assert make_runner(tmp_path / "saved").model.pooling.dimensions == (16, 32, 48)
    edit_json(tmp_path / "saved" / "config.json", matryoshka_dimensions=[8])
    assert make_runner(tmp_path / "saved").model.pooling.dimensions == (8,)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_scores_by_yes_and_no_are_the_same(backend: str, tmp_path: Path) -> None:
    save_model(tmp_path / "plain", "qwen3", "AutoModelForCausalLM")
    model = CrossEncoder(str(tmp_path / "plain"), device="cpu")
    model.save(str(tmp_path / "saved"))
    pairs = [(a, b) for a, b in pairwise(make_texts(2, 5, 18, 60, 90))]
    tokens = [model.tokenizer(*pair)["input_ids"] for pair in pairs]
    expected = _by_yes_and_no(tmp_path / "plain", tokens)
    for folder, options in (("plain", {"convert": "classify", "runner": "pooling"}), ("saved", {})):
        runner = make_runner(tmp_path / folder, cpu_backend=backend, **options)
        pooling = runner.model.pooling
        assert (pooling.task, pooling.num_outputs, pooling.activation) == ("classify", 1, "sigmoid")
        actual = pool(runner, tokens, chunk=16)
        np.testing.assert_allclose(actual[:, 0], expected, rtol=0, atol=TOLERANCE)


def _by_yes_and_no(path: Path, tokens: list[list[int]]) -> list[float]:
    """Returns the difference of both logits at the end of each prompt, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    with torch.no_grad():
        logits = [model(torch.tensor([one])).logits[0, -1] for one in tokens]
    return [float(one[3] - one[4]) for one in logits]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "sentence_transformers.models.CNN"}, "models.CNN, which is not supported"),
        ({"type": "my_package.Pooling"}, "my_package.Pooling, which is not supported"),
        ({"path": "../other"}, "which is not in its folder"),
    ],
)
def test_modules_that_are_not_served_are_refused(
    changes: dict[str, str], message: str, tmp_path: Path
) -> None:
    save(tmp_path, "bert", st.Normalize())
    file = tmp_path / "saved" / "modules.json"
    entries = json.loads(file.read_text())
    entries[2] |= changes
    file.write_text(json.dumps(entries))
    with pytest.raises(ModelError, match=message):
        make_runner(tmp_path / "saved")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"config_args": {"hidden_act": "relu"}}, r"says config_args.hidden_act = "),
        ({"model_kwargs": {"subfolder": "onnx"}}, r"says model_kwargs.subfolder = "),
        ({"tokenizer_args": {"truncation_side": "left"}}, r"tokenizer_args.truncation_side = "),
        ({"processing_kwargs": {"text": {"max_length": 9}}}, r"processing_kwargs.text.max_length"),
        ({"modality_config": {"text": {"method_output_name": "pooler_output"}}}, "modality_config"),
        ({"transformer_task": "any-to-any"}, "transformer_task = any-to-any"),
        ({"query_length": 32}, "query_length = 32"),
        ({"tokenizer_name_or_path": "other"}, "tokenizer_name_or_path = other"),
        ({"colour": "red"}, "colour = red, which is not supported"),
    ],
)
def test_settings_that_are_not_served_are_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save(tmp_path, "bert")
    edit_json(tmp_path / "saved" / "sentence_bert_config.json", **settings)
    with pytest.raises(ModelError, match=message):
        make_runner(tmp_path / "saved")


def test_settings_that_change_nothing_are_taken(tmp_path: Path) -> None:
    model = save(tmp_path, "bert", st.Normalize())
    edit_json(
        tmp_path / "saved" / "sentence_bert_config.json",
        model_args={"torch_dtype": "float32", "attn_implementation": "sdpa"},
        tokenizer_args={"model_max_length": 99, "padding_side": "left"},
        config_args={},
        processing_kwargs={"text": {"padding": True}},
        query_length=None,
        unpad_inputs=True,
    )
    runner = make_runner(tmp_path / "saved")
    assert runner.model.max_model_len == 99
    assert_same(runner, model, TEXTS[:4])


def test_a_saved_size_cuts_vectors(tmp_path: Path) -> None:
    model = save(tmp_path, "bert", st.Normalize())
    model.truncate_dim = 20
    model.save(str(tmp_path / "saved"), create_model_card=False)
    runner = make_runner(tmp_path / "saved")
    assert (runner.model.pooling.num_outputs, runner.model.pooling.activation) == (20, "identity")
    assert_same(runner, SentenceTransformer(str(tmp_path / "saved"), device="cpu"))


def test_encoders_and_pooling_are_refused_where_they_do_nothing(tmp_path: Path) -> None:
    save_model(tmp_path, "bert")
    with pytest.raises(ModelError, match="BertModel generates no tokens; use --runner pooling"):
        make_runner(tmp_path, runner="generate")
    with pytest.raises(ValueError, match=r"lets no token see those behind it.*use torch, triton"):
        make_runner(tmp_path, attention_backend="flash_attn_2")
    with pytest.raises(ModelError, match="keeps no K and V"):
        make_runner(tmp_path, kv_cache_dtype="int8")


def test_a_chunk_that_is_lost_or_not_finite_fails_its_sequence_alone(tmp_path: Path) -> None:
    save(tmp_path, "qwen3")
    runner = make_runner(tmp_path / "saved")
    prompts = make_prompts([[5] * 40, [6] * 40])
    runner.execute(make_batch(prompts[:1], 16))
    for one in prompts:
        one.num_computed = 16
    output = runner.execute(make_batch(prompts))
    assert output.pooled.keys() == {0}
    assert output.failed_seqs == {1: CHUNK_LOST}
