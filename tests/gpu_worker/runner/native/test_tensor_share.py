"""The shares of tensor-parallel ranks make up the model, in the form that it is stored in."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from signalbox_kernels.adapters import LoraPair
from signalbox_kernels.floats import AnyArray
from signalbox_kernels.storage import Storage, StoredMatrix, quantise, stored
from signalbox_worker.config import ModelError
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.stage_layers import all_layers
from signalbox_worker.files.checkpoints.quantization import Quantization
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.runner.native.tensor_share import TensorShare, tensor_share, why_not_divided
from signalbox_worker.runner.native.weight_shapes import EMBEDDING, HEAD
from signalbox_worker.runner.native.weights import WeightForm, Weights
from tests.gpu_worker.runner.native.test_weights import Stored, make_config, make_stored
from tests.kernels.native.matrices import make_stored as make_matrix
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

NORM = "model.norm.weight"

LAYER = "model.layers.0."
BY_ROWS = {
    f"{LAYER}self_attn.q_proj.weight",
    f"{LAYER}self_attn.k_proj.weight",
    f"{LAYER}self_attn.v_proj.weight",
    f"{LAYER}mlp.gate_proj.weight",
    f"{LAYER}mlp.up_proj.weight",
    EMBEDDING,
    HEAD,
}
OUT, DOWN = f"{LAYER}self_attn.o_proj.weight", f"{LAYER}mlp.down_proj.weight"


def make_wide(**changes: Any) -> DecoderConfig:
    shapes = {"hidden_size": 64, "head_size": 64, "num_heads": 8, "num_kv_heads": 4}
    return make_config(**{**shapes, "intermediate_size": 800, "vocab_size": 41} | changes)


def shares_of(config: DecoderConfig, tensors: Stored, size: int) -> list[TensorShare]:
    ranks = [ParallelConfig(rank=rank, tensor_parallel_size=size) for rank in range(size)]
    return [tensor_share(config, rank, tensors) for rank in ranks]


def weights_of(tensors: Stored, share: TensorShare, **options: Any) -> Weights:
    form = WeightForm(options.pop("dtype", np.dtype(np.float32)), options.pop("quantization", None))
    stage = options.pop("stage", all_layers(share.whole.num_layers))
    return Weights(tensors, share, stage, form, **options)


def blocks(weights: Weights, name: str) -> AnyArray:
    return np.ascontiguousarray(stored(weights.matrix(name)).blocks)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    "kind",
    [Storage.F32, Storage.Q8_0, Storage.Q4_K, Storage.INT4_G128, Storage.E4M3, Storage.MXFP4],
)
def test_ranks_have_the_blocks_of_the_model_and_no_others(kind: Storage, size: int) -> None:
    config = make_wide()
    tensors = make_stored(config)
    if kind is not Storage.F32:
        for seed, name in enumerate((*BY_ROWS, OUT, DOWN)):
            matrix = make_matrix(kind, *tensors[name].shape, seed=seed)
            assert isinstance(matrix, StoredMatrix)
            tensors[name] = replace(tensors[name], blocks=matrix)
    shares = shares_of(config, tensors, size)
    whole = weights_of(tensors, TensorShare(whole=config))
    ranks = [weights_of(tensors, share) for share in shares]
    for name in BY_ROWS:
        together = np.concatenate([blocks(rank, name) for rank in ranks])
        np.testing.assert_array_equal(together, blocks(whole, name))
    for name in (DOWN, OUT) if kind is not Storage.Q4_K or size < 4 else (DOWN,):
        assert {stored(rank.matrix(name)).type for rank in ranks} == {kind}
        together = np.concatenate([blocks(rank, name) for rank in ranks], axis=1)
        np.testing.assert_array_equal(together, blocks(whole, name))
    widths = [share.config.intermediate_size for share in shares]
    assert sum(widths) == 800 and min(widths) > 0
    assert all(width % max(32, kind.block_size) == 0 for width in widths[:-1])
    assert sum(share.config.num_heads for share in shares) == 8


def test_blocks_that_a_cut_would_split_are_decoded() -> None:
    """A rank of four has the 128 columns of two heads, and a block has 256."""
    config = make_wide()
    tensors = make_stored(config)
    matrix = make_matrix(Storage.Q4_K, *tensors[OUT].shape)
    assert isinstance(matrix, StoredMatrix)
    tensors[OUT] = replace(tensors[OUT], blocks=matrix)
    ranks = [weights_of(tensors, share) for share in shares_of(config, tensors, 4)]
    parts = [rank.matrix(OUT) for rank in ranks]
    assert all(isinstance(part, np.ndarray) for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), tensors[OUT].read())


def test_columns_in_another_order_are_not_cut() -> None:
    order = np.arange(512, dtype=np.int32)[::-1]
    matrix = StoredMatrix(Storage.Q8_0, (4, 512), lambda: np.zeros((4, 544), np.uint8), order)
    assert matrix.has_whole_blocks(range(512))
    assert not matrix.has_whole_blocks(range(256))
    assert not replace(matrix, order=None).has_whole_blocks(range(16))
    assert replace(matrix, order=None).columns(range(32, 64)).blocks.shape == (4, 34)


def test_floats_are_cut_before_they_become_blocks() -> None:
    config = make_wide()
    tensors = make_stored(config)
    form = Quantization("int8", Storage.Q8_0, Storage.Q8_0)
    whole = quantise(tensors[DOWN].read(), Storage.Q8_0).blocks
    parts = [
        blocks(weights_of(tensors, share, quantization=form), DOWN)
        for share in shares_of(config, tensors, 2)
    ]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_biases_that_are_added_to_sums_are_rank_0s() -> None:
    config = make_wide(o_bias=True, mlp_bias=True)
    tensors = make_stored(config)
    first, second = (weights_of(tensors, share) for share in shares_of(config, tensors, 2))
    for weights, shape in ((first, (64,)), (second, None)):
        for module in ("self_attn.o_proj", "mlp.down_proj"):
            bias = weights.vector_if_any(f"{LAYER}{module}.bias")
            assert (None if bias is None else bias.shape) == shape
    gate = [one.vector(f"{LAYER}mlp.gate_proj.bias") for one in (first, second)]
    assert np.concatenate(gate).tolist() == list(range(800))
    assert first.vector(NORM).tolist() == second.vector(NORM).tolist() == list(range(64))


def test_ranks_share_a_head_of_keys_if_there_are_fewer_than_ranks() -> None:
    config = make_wide(num_kv_heads=2)
    tensors = make_stored(config)
    rows = [
        share.rows(f"{LAYER}self_attn.k_proj.weight") for share in shares_of(config, tensors, 4)
    ]
    assert rows == [(range(64),), (range(64),), (range(64, 128),), (range(64, 128),)]


def test_adapters_are_cut_as_their_matrices() -> None:
    config = make_wide()
    shares = shares_of(config, make_stored(config), 2)
    a, b = np.ones((3, 512), dtype=np.float32), np.ones((64, 3), dtype=np.float32)
    pairs = [share.pair(f"{LAYER}self_attn.o_proj", LoraPair(a, b)) for share in shares]
    assert [(pair.a.shape, pair.b.shape) for pair in pairs] == 2 * [((3, 256), (64, 3))]
    pairs = [share.pair(f"{LAYER}self_attn.q_proj", LoraPair(b.T, a.T)) for share in shares]
    assert [(pair.a.shape, pair.b.shape) for pair in pairs] == 2 * [((3, 64), (256, 3))]


def test_progress_counts_what_the_rank_takes() -> None:
    config = make_wide(o_bias=True)
    tensors = make_stored(config)
    _, share = shares_of(config, tensors, 2)
    taken: list[tuple[int, int]] = []
    weights = weights_of(tensors, share, on_taken=lambda *counts: taken.append(counts))
    weights.matrix(OUT)
    assert taken == [(1, len(tensors) - config.num_layers)]


def test_what_cannot_be_divided_is_named() -> None:
    assert why_not_divided(make_wide(), 4) is None
    assert why_not_divided(make_wide(intermediate_size=90), 4) == (
        "intermediate_size 90 has fewer than 4 blocks"
    )
    assert why_not_divided(make_wide(vocab_size=5), 4) == "vocab_size 5 is too small for 4 ranks"
    with pytest.raises(ModelError, match=r"num_attention_heads \(8\) .* it can by 1, 2, 4, 8"):
        TensorShare(whole=make_wide(), size=3).config.num_heads  # noqa: B018
