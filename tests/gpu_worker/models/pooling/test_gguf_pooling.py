"""GGUF files whose model makes embeddings, compared with transformers."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from transformers import BertTokenizer

from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.model_needs import examine_model
from signalbox_worker.config import ModelError
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.models.pooling import encoder_models
from tests.gpu_worker.models.pooling.encoder_models import architecture_of
from tests.gpu_worker.models.pooling.pooled_batches import pool
from tests.gpu_worker.runner.loading.gguf_files import make_gguf, open_gguf, open_path, writing
from tests.gpu_worker.tiny_models import make_model

pytestmark = pytest.mark.slow

PROMPTS = [[5], [7, 9, 11, 6], [3 + i % 20 for i in range(40)]]


@pytest.mark.parametrize(("kind", "mode"), [(1, "mean"), (3, "lasttoken")])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_file_that_names_a_pooling_type_makes_embeddings(
    kind: int, mode: str, backend: str, tmp_path: Path
) -> None:
    reference = make_model(tmp_path / "hf", "qwen3")
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3", extra={"pooling_type": kind})
    runner = make_runner(path, cpu_backend=backend)
    pooling = runner.model.pooling
    assert (pooling.task, pooling.activation) == ("embed", "normalize")
    assert pooling.reads_all_tokens is (mode == "mean")
    with torch.no_grad():
        states = [reference.model(torch.tensor([one])).last_hidden_state[0] for one in PROMPTS]
    expected = [one.mean(0) if mode == "mean" else one[-1] for one in states]
    actual = pool(runner, PROMPTS, chunk=16)
    np.testing.assert_allclose(actual, torch.stack(expected).numpy(), rtol=0, atol=1e-5)


ENCODERS = {"bert": "bert", "nomic-bert": "nomic-bert"}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "capital", "of", "france", "is", "paris", ",", ".", "uber", "東", "[unused1]")
PIECES = ("##s", "##ing", "##a", "##b", "##1", "##京")
TEXTS = ["", "The  capital of FRANCE is Paris.", "Überings, paris1b", "東京 of\tzzz [MASK]\x00 isa"]
_OLD = {
    "self_attn.o_proj": "attn.out_proj",
    "mlp.up_proj": "mlp.fc11",
    "mlp.gate_proj": "mlp.fc12",
    "mlp.down_proj": "mlp.fc2",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
}
"""Names of Nomic BERT's tensors in transformers, and those that llama.cpp's converter reads."""


def make_encoder_gguf(path: Path, reference: Any, architecture: str, **fields: Any) -> Path:
    """Writes an encoder as llama.cpp's converter does."""
    config = reference.config
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    tensors = {name: one.numpy() for name, one in reference.state_dict().items()}
    for index in range(config.num_hidden_layers if architecture == "nomic-bert" else 0):
        parts = [tensors.pop(f"layers.{index}.self_attn.{one}_proj.weight") for one in "qkv"]
        tensors[f"layers.{index}.attn.Wqkv.weight"] = np.concatenate(parts)
    with writing(path, architecture) as writer:
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_causal_attention(fields.get("causal", False))
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        if architecture == "nomic-bert":
            writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        _add_word_pieces(writer, config.vocab_size)
        for name, values in tensors.items():
            if name.startswith("pooler."):
                continue
            for own, old in (_OLD if architecture == "nomic-bert" else {}).items():
                name = name.replace(own, old)
            name = name.replace("layers.", "encoder.layers.") if name[:7] == "layers." else name
            kind = fields.get("kind", gguf.GGMLQuantizationType.F32)
            if values.ndim < 2:
                kind = gguf.GGMLQuantizationType.F32
            stored = gguf.quants.quantize(values, kind)
            own_name = str(names.get_name(name, (".weight", ".bias")))
            writer.add_tensor(own_name, stored, raw_dtype=kind)
    return path


def vocabulary(size: int) -> list[str]:
    known = [*SPECIAL, *WORDS, *PIECES]
    return known + [f"w{i}" for i in range(size - len(known))]


def _add_word_pieces(writer: gguf.GGUFWriter, size: int) -> None:
    tokens = vocabulary(size)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("nomic-bert-v1.5")
    marked = [one[2:] if one.startswith("##") else f"\u2581{one}" for one in tokens]
    writer.add_token_list([*SPECIAL, *marked[len(SPECIAL) :]])
    writer.add_token_types([3 if one in SPECIAL else 1 for one in tokens])
    writer.add_token_type_count(2)
    for name, add in (("PAD", "pad"), ("UNK", "unk"), ("SEP", "sep"), ("MASK", "mask")):
        getattr(writer, f"add_{add}_token_id")(SPECIAL.index(f"[{name}]"))
    writer.add_bos_token_id(SPECIAL.index("[CLS]"))


@pytest.mark.compares(how="from GGUF", of=architecture_of, gguf=ENCODERS.get)
@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoders_file_makes_the_vectors_of_transformers(family: str, tmp_path: Path) -> None:
    reference = encoder_models.make_model(family)
    path = make_encoder_gguf(tmp_path / "x.gguf", reference, ENCODERS[family])
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(vocabulary(reference.config.vocab_size)))
    tokenizer = BertTokenizer(str(vocab))
    own = tokenizers.Tokenizer.from_str(
        open_path(path).tokenizer_files()["tokenizer.json"].decode()
    )
    prompts = [own.encode(text).ids for text in TEXTS]
    assert prompts == [tokenizer(text)["input_ids"] for text in TEXTS]
    assert own.encode("the", "paris").ids == tokenizer("the", "paris")["input_ids"]
    with torch.no_grad():
        states = [reference(torch.tensor([one])).last_hidden_state[0] for one in prompts]
    expected = torch.stack([one.mean(0) for one in states]).numpy()
    for backend in ("native", "torch"):
        runner = make_runner(path, cpu_backend=backend)
        assert runner.model.pooling.activation == "normalize"
        np.testing.assert_allclose(pool(runner, prompts), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_report_counts_the_floats_that_blocks_of_an_encoder_become(
    dtype: str, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 96, "intermediate_size": 192, "vocab_size": 1000}
    reference = encoder_models.make_model("bert", **sizes)
    kind = gguf.GGMLQuantizationType.Q8_0
    path = make_encoder_gguf(tmp_path / "x.gguf", reference, "bert", kind=kind)
    settings = ServeSettings(model=str(path), dtype=dtype, device="cpu")
    needs = examine_model(settings).needs
    assert (needs.is_native, needs.stored_form) == (True, "Q8_0")
    held = make_runner(path, dtype=dtype, cpu_backend="native").executor.program.weights_bytes
    assert needs.weights_bytes == pytest.approx(held, rel=0.1)  # with vectors, and padding


def test_an_encoder_whose_tokens_see_none_behind_them_is_refused(tmp_path: Path) -> None:
    reference = encoder_models.make_model("bert")
    path = make_encoder_gguf(tmp_path / "x.gguf", reference, "bert", causal=True)
    with pytest.raises(ModelError, match=r"attention\.causal is true"):
        _ = open_path(path).config


def test_a_file_without_one_generates_and_a_reranker_is_refused(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "qwen3")
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3", extra={"pooling_type": 0})
    assert make_runner(path).model.pooling is None
    with pytest.raises(ModelError, match=r"qwen3.pooling_type = 4, which is not supported"):
        _ = open_gguf(tmp_path / "rank", "qwen3", {"pooling_type": 4}).config
