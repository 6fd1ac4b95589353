"""Weights are matched with the model before any is read, and each is read when it is taken."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from signalbox_kernels.floats import BFLOAT16, AnyArray, to_float32
from signalbox_kernels.storage import Matrix, Storage, StoredMatrix
from signalbox_worker.config import ModelError
from signalbox_worker.device.stage_layers import all_layers
from signalbox_worker.files.checkpoints.quantization import Quantization
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.models.decoder_config import DecoderConfig, qwen2_config
from signalbox_worker.runner.native.matrices import joined
from signalbox_worker.runner.native.tensor_share import TensorShare
from signalbox_worker.runner.native.weight_shapes import EMBEDDING, HEAD, weight_shapes
from signalbox_worker.runner.native.weights import WeightForm, Weights
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

NORM = "model.norm.weight"

QUERY = "model.layers.0.self_attn.q_proj.weight"
Stored = dict[str, StoredTensor]


def make_config(**changes: Any) -> DecoderConfig:
    config = qwen2_config(
        {
            "architectures": ["Qwen2ForCausalLM"],
            "vocab_size": 40,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 64,
        }
    )
    return replace(config, **changes)


def make_stored(config: DecoderConfig, on_read: Callable[[str], None] = lambda _: None) -> Stored:
    """Tensors whose values count from 0."""

    def make(name: str, shape: tuple[int, ...]) -> StoredTensor:
        def read() -> np.ndarray:
            on_read(name)
            return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

        return StoredTensor(shape, read)

    return {name: make(name, shape) for name, shape in weight_shapes(config).items()}


def make_weights(config: DecoderConfig, stored: Stored, **options: Any) -> Weights:
    form = WeightForm(options.pop("dtype", np.dtype(np.float32)), options.pop("quantization", None))
    layers = all_layers(config.num_layers)
    return Weights(stored, TensorShare(whole=config), layers, form, **options)


def test_a_tensor_is_read_when_it_is_taken() -> None:
    config, read = make_config(), list[str]()
    taken: list[tuple[int, int]] = []
    weights = make_weights(
        config, make_stored(config, read.append), on_taken=lambda *counts: taken.append(counts)
    )
    assert read == []
    assert weights.matrix(QUERY).shape == (32, 32)
    assert weights.vector("model.layers.1.self_attn.k_proj.bias").shape == (16,)
    assert weights.vector_if_any("model.layers.1.self_attn.o_proj.bias") is None
    assert read == [QUERY, "model.layers.1.self_attn.k_proj.bias"]
    assert taken == [(1, len(weight_shapes(config))), (2, len(weight_shapes(config)))]


def test_tensors_of_the_bare_model_are_found() -> None:
    config = make_config()
    bare = {
        name if name == HEAD else name.removeprefix("model."): tensor
        for name, tensor in make_stored(config).items()
    }
    assert make_weights(config, bare).vector(NORM).shape == (32,)


@pytest.mark.parametrize("quantization", [None, Quantization("int8", Storage.Q8_0)])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16])
def test_rows_that_are_read_alone_are_those_of_the_whole(
    dtype: np.dtype[Any], quantization: Quantization | None
) -> None:
    config, names = make_config(), [QUERY, QUERY.replace("q_proj", "k_proj")]
    stored, whole, by_rows = make_stored(config), list[Matrix](), list[Matrix]()
    for name in names:
        values = stored[name].read()
        whole.append(
            make_weights(config, stored, dtype=dtype, quantization=quantization).matrix(name)
        )
        stored[name] = StoredTensor(
            values.shape,
            lambda: pytest.fail("it is read whole"),
            dtype=values.dtype,
            read_rows=partial(lambda values, start, end: values[start:end], values),
        )
        by_rows.append(
            make_weights(config, stored, dtype=dtype, quantization=quantization).matrix(name)
        )
    ([expected], [matrix]) = joined(whole), joined(by_rows)
    assert isinstance(expected, StoredMatrix)
    assert isinstance(matrix, StoredMatrix)
    assert (matrix.type, matrix.shape) == (expected.type, expected.shape)
    assert matrix.read_rows is not None
    for start, end in ((0, 48), (3, 5), (30, 40), (40, 48)):  # of one part, and of both
        np.testing.assert_array_equal(matrix.read_rows(start, end), expected.blocks[start:end])


def test_missing_tensors_are_counted_and_one_is_named() -> None:
    config = make_config()
    stored = make_stored(config)
    del stored[QUERY], stored[NORM]
    with pytest.raises(ModelError, match=rf"weights are missing, such as '{QUERY}' \(2 in all"):
        make_weights(config, stored)


def test_a_tensor_that_the_model_lacks_is_refused() -> None:
    config = make_config()
    stored = make_stored(config)
    stored["model.layers.0.mlp.gate.weight"] = stored[NORM]
    with pytest.raises(
        ModelError, match=r"unexpected weight 'model\.layers\.0\.mlp\.gate\.weight'"
    ):
        make_weights(config, stored)


def test_copies_that_are_not_needed_are_left_alone() -> None:
    stored = make_stored(make_config())
    stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = stored[NORM]
    stored |= {
        "model.layers.2.eh_proj.weight": stored[NORM],
        "layers.11.enorm.weight": stored[NORM],
    }
    tied = make_config(tie_embeddings=True)  # its checkpoint has a head all the same
    with pytest.raises(ModelError, match=r"unexpected weight 'model\.layers\.2\.eh_proj"):
        make_weights(tied, stored)
    more = replace(tied, may_have_more_layers=True)
    assert make_weights(more, stored).matrix(EMBEDDING).shape == (40, 32)
    stored["model.layers.1.eh_proj.weight"] = stored[NORM]
    with pytest.raises(ModelError, match=r"unexpected weight 'model\.layers\.1\.eh_proj"):
        make_weights(more, stored)


def test_a_tensor_of_another_shape_is_refused() -> None:
    config = make_config()
    stored = make_stored(config) | {QUERY: StoredTensor((33, 32), lambda: np.zeros((33, 32)))}
    with pytest.raises(ModelError, match=r"q_proj.weight has shape \(33, 32\) where \(32, 32\)"):
        make_weights(config, stored)  # before anything is read


def test_padding_of_the_vocabulary_is_dropped() -> None:
    small = make_config(vocab_size=37)
    table = make_weights(small, make_stored(make_config())).matrix(EMBEDDING)
    assert table.shape == (37, 32)


def test_floats_are_rounded_to_the_models_type() -> None:
    config = make_config()
    weights = make_weights(config, make_stored(config), dtype=BFLOAT16)
    matrix = weights.matrix(QUERY)
    assert isinstance(matrix, np.ndarray)
    assert matrix.dtype == BFLOAT16
    assert to_float32(matrix)[8, 1] == 256.0  # 257 has a bit too many
    assert weights.vector("model.layers.0.self_attn.q_proj.bias").dtype == np.float32


@pytest.mark.parametrize("roundings", [(True, False), (False, True)])
def test_a_vector_is_rounded_as_each_reader_asks(roundings: tuple[bool, bool]) -> None:
    config = make_config()
    stored = make_stored(config)
    stored[NORM] = StoredTensor((32,), lambda: np.full(32, 257, dtype=np.float32))
    weights = make_weights(config, stored, dtype=BFLOAT16)
    read = [weights.vector(NORM, is_rounded=is_rounded)[0] for is_rounded in roundings]
    assert read == [256 if is_rounded else 257 for is_rounded in roundings]


@pytest.mark.parametrize("stored_as", [np.float64, np.int8])
def test_floats_of_a_type_that_no_product_has_become_float32(stored_as: type) -> None:
    config = make_config()
    stored = make_stored(config)
    values: AnyArray = np.ones(stored[QUERY].shape, dtype=stored_as)
    stored[QUERY] = StoredTensor(values.shape, lambda: values)
    matrix = make_weights(config, stored).matrix(QUERY)
    assert isinstance(matrix, np.ndarray)
    assert matrix.dtype == np.float32


def test_matrices_become_blocks_and_vectors_stay() -> None:
    config = make_config()
    form = Quantization("int4", Storage.Q4_1, Storage.Q8_0)
    weights = make_weights(config, make_stored(config), quantization=form)
    kinds = [weights.matrix(name) for name in (QUERY, EMBEDDING, HEAD)]
    assert [one.type for one in kinds if isinstance(one, StoredMatrix)] == [
        Storage.Q4_1,
        Storage.Q8_0,
        Storage.Q8_0,
    ]
    assert weights.vector(NORM).tolist() == list(range(32))


def test_blocks_of_a_file_stay_if_the_form_keeps_them_or_float32_computes() -> None:
    config = make_config()
    blocks = StoredMatrix(Storage.Q8_0, (40, 32), lambda: np.zeros((40, 34), dtype=np.uint8))
    stored = make_stored(config)
    stored[EMBEDDING] = replace(stored[EMBEDDING], blocks=blocks)
    kept = make_weights(config, stored, quantization=Quantization("gguf")).matrix(EMBEDDING)
    assert isinstance(kept, StoredMatrix)
    assert kept.blocks.shape == (40, 34)
    in_float32 = make_weights(config, stored).matrix(EMBEDDING)
    assert isinstance(in_float32, StoredMatrix)
    narrow = make_weights(config, stored, dtype=BFLOAT16).matrix(EMBEDDING)
    assert isinstance(narrow, np.ndarray)
