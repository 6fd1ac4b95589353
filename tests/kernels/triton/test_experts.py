"""A mixture of experts in Triton equals the reference, under the interpreter unless there is a
GPU."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch.experts import ExpertWeights
from signalbox_kernels.torch.experts import mix_experts as reference

HIDDEN, SIZE = 40, 24  # no multiples of a tile
SHAPES = [
    # tokens, experts, k
    (1, 4, 1),
    (1, 128, 8),
    (2, 7, 7),
    (17, 128, 8),
    (64, 8, 2),
    (100, 60, 4),
    (300, 4, 3),
    (600, 16, 1),
]
"""One chunk of tokens and several, small and large; few rows of an expert and many."""


def make_weights(
    num_experts: int, device: str, dtype: torch.dtype = torch.float32
) -> tuple[ExpertWeights, ExpertWeights]:
    gate_up = torch.randn(num_experts, 2 * SIZE, HIDDEN, device=device) / HIDDEN**0.5
    down = torch.randn(num_experts, HIDDEN, SIZE, device=device) / SIZE**0.5
    return ExpertWeights(gate_up.to(dtype)), ExpertWeights(down.to(dtype))


def make_fp8(
    num_experts: int, out_features: int, in_features: int, rows_per_scale: int, device: str
) -> ExpertWeights:
    """All codes but the NaN; scales of rows, or of blocks of 128 columns."""
    shape = (num_experts, out_features, in_features)
    codes = torch.randint(0, 254, shape, dtype=torch.uint8, device=device)
    codes += codes >= 127
    num_groups = 1 if rows_per_scale == 1 else -(-in_features // 128)
    num_scales = -(-num_experts * out_features // rows_per_scale)
    scales = torch.rand(num_scales, num_groups, device=device) + 0.5
    scales /= 128 * in_features**0.5
    return ExpertWeights(codes.view(torch.float8_e4m3fn), scales, rows_per_scale)


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "k", "renormalise"),
    [(*shape, i % 2 == 0) for i, shape in enumerate(SHAPES)],
)
def test_mixture_matches_the_reference(
    triton_device: str, num_tokens: int, num_experts: int, k: int, renormalise: bool
) -> None:
    x = torch.randn(num_tokens, HIDDEN, device=triton_device)
    logits = torch.randn(num_tokens, num_experts, device=triton_device)
    weights = make_weights(num_experts, triton_device)

    actual = ops.mix_experts(x, logits, *weights, experts_per_token=k, renormalise=renormalise)

    expected = reference(x, logits, *weights, experts_per_token=k, renormalise=renormalise)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixture_of_16_bits(triton_device: str, dtype: torch.dtype) -> None:
    """Both round three times, to hidden values, to outputs of experts and to their sum."""
    x, logits = torch.randn(9, HIDDEN, device=triton_device), torch.randn(9, 8).to(triton_device)
    weights = make_weights(8, triton_device, dtype)
    x, logits = x.to(dtype), logits.to(dtype)

    actual = ops.mix_experts(x, logits, *weights, experts_per_token=2, renormalise=True)

    wide = [ExpertWeights(each.weight.float()) for each in weights]
    exact = reference(x.float(), logits.float(), *wide, experts_per_token=2, renormalise=True)
    assert actual.dtype is dtype
    atol = 4 * torch.finfo(dtype).eps * float(exact.abs().max())
    torch.testing.assert_close(actual.float(), exact, rtol=0, atol=atol)


@pytest.mark.parametrize(("num_tokens", "rows_per_scale"), [(70, 1), (5, 32), (70, 128)])
def test_experts_in_e4m3(triton_device: str, num_tokens: int, rows_per_scale: int) -> None:
    """Blocks that end within a matrix, and matrices that end within a block."""
    hidden_size, size = 160, 96
    x = torch.randn(num_tokens, hidden_size, device=triton_device)
    logits = torch.randn(num_tokens, 4, device=triton_device)
    gate_up = make_fp8(4, 2 * size, hidden_size, rows_per_scale, triton_device)
    down = make_fp8(4, hidden_size, size, rows_per_scale, triton_device)

    actual = ops.mix_experts(x, logits, gate_up, down, experts_per_token=2, renormalise=False)

    decoded = [
        ExpertWeights(torch.stack([decode(each, i) for i in range(4)])) for each in (gate_up, down)
    ]
    expected = reference(x, logits, *decoded, experts_per_token=2, renormalise=False)
    atol = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=atol)


def decode(weights: ExpertWeights, expert: int) -> Tensor:
    """Value by value, apart from the reference."""
    assert weights.scales is not None
    scales, rows_per_scale = weights.scales.cpu(), weights.rows_per_scale
    _, num_rows, num_columns = weights.weight.shape
    decoded = weights.weight[expert].cpu().float()
    for row in range(num_rows):
        of_row = scales[(expert * num_rows + row) // rows_per_scale]
        for column in range(num_columns):
            decoded[row, column] *= of_row[column // 128 if len(of_row) > 1 else 0]
    return decoded.to(weights.weight.device)


@pytest.mark.parametrize("num_tokens", [3, 90])
def test_weights_of_experts_without_tokens_are_not_read(
    triton_device: str, num_tokens: int
) -> None:
    x = torch.randn(num_tokens, HIDDEN, device=triton_device)
    logits = torch.randn(num_tokens, 16, device=triton_device)
    logits[:, 5] += 100
    weights = make_weights(16, triton_device)
    gate_up, down = (each.weight for each in weights)
    gate_up[:5], gate_up[6:], down[:5], down[6:] = [float("nan")] * 4

    actual = ops.mix_experts(x, logits, *weights, experts_per_token=1, renormalise=True)

    gate, up = (x @ gate_up[5].T).chunk(2, dim=1)
    expected = (torch.nn.functional.silu(gate) * up) @ down[5].T
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_tokens", [9, 100])
def test_a_nan_stays_in_its_row(triton_device: str, num_tokens: int) -> None:
    x = torch.randn(num_tokens, HIDDEN, device=triton_device)
    logits = torch.randn(num_tokens, 8, device=triton_device)
    weights = make_weights(8, triton_device)
    clean = ops.mix_experts(x, logits, *weights, experts_per_token=3, renormalise=True)

    x[2], logits[4] = float("nan"), float("nan")
    logits[6, 1] = float("nan")
    actual = ops.mix_experts(x, logits, *weights, experts_per_token=3, renormalise=True)

    is_nan = actual.isnan()
    assert is_nan[[2, 4, 6]].all()
    assert is_nan.sum() == 3 * HIDDEN
    kept = [row for row in range(num_tokens) if row not in (2, 4, 6)]
    # Rows lie elsewhere in their tiles then, and the interpreter's products round by the place.
    torch.testing.assert_close(actual[kept], clean[kept], rtol=1e-4, atol=1e-5)


def test_of_equal_scores_the_first_experts_are_chosen(triton_device: str) -> None:
    weights = make_weights(8, triton_device)
    x, equal = torch.randn(2, HIDDEN, device=triton_device), torch.zeros(2, 8, device=triton_device)
    falling = equal - torch.tensor([0.0, 0, 0, 9, 9, 9, 9, 9], device=triton_device)

    actual = ops.mix_experts(x, equal, *weights, experts_per_token=3, renormalise=True)

    expected = reference(x, falling, *weights, experts_per_token=3, renormalise=True)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tile_rows", [16, 128])
@pytest.mark.parametrize(("num_tokens", "num_experts", "k"), SHAPES)
@pytest.mark.parametrize("is_skewed", [False, True])
def test_each_entry_is_in_one_tile_of_its_expert(
    triton_device: str, num_tokens: int, num_experts: int, k: int, tile_rows: int, is_skewed: bool
) -> None:
    from signalbox_kernels.triton.experts.routing import route

    logits = torch.randn(num_tokens, num_experts, device=triton_device)
    if is_skewed:
        logits += torch.arange(num_experts, device=triton_device)  # all take the last ones

    routed = route(logits, k=k, renormalise=False, tile_rows=tile_rows)

    shares, chosen = logits.softmax(dim=-1).topk(k)
    torch.testing.assert_close(routed.shares, shares)
    order = routed.order.tolist()
    assert order == chosen.flatten().argsort(stable=True).tolist()
    covered: list[int] = []
    used = [tile for tile in routed.tiles.tolist() if tile[0] >= 0]
    assert used == sorted(used)
    for expert, begin, end in used:
        mine = order[begin : min(end, begin + tile_rows)]
        assert mine and set(chosen.flatten()[mine].tolist()) == {expert}
        covered += mine
    assert covered == order
    assert all(tile[0] == -1 for tile in routed.tiles.tolist()[len(used) :])
    assert all(low != high for low, high in pairwise(used))


@pytest.mark.parametrize(("num_tokens", "num_launches"), [(1, 4), (16, 4), (17, 5), (700, 5)])
def test_launches_do_not_depend_on_experts(
    triton_device: str, num_tokens: int, num_launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if triton_device != "cpu":
        pytest.skip("launches are counted in the interpreter")
    from triton.runtime.interpreter import GridExecutor

    launches: list[str] = []
    monkeypatch.setattr(
        GridExecutor, "__call__", lambda self, *_, **__: launches.append(self.fn.__name__)
    )
    x, logits = torch.randn(num_tokens, HIDDEN), torch.randn(num_tokens, 128)
    ops.mix_experts(x, logits, *make_weights(128, "cpu"), experts_per_token=8, renormalise=True)
    assert len(launches) == num_launches


def test_no_tokens_are_no_launch(triton_device: str) -> None:
    x, logits = torch.empty(0, HIDDEN, device=triton_device), torch.empty(0, 4).to(triton_device)
    weights = make_weights(4, triton_device)
    out = ops.mix_experts(x, logits, *weights, experts_per_token=2, renormalise=True)
    assert out.shape == (0, HIDDEN)


def test_what_does_not_belong_together_is_refused(triton_device: str) -> None:
    x, logits = torch.randn(2, HIDDEN, device=triton_device), torch.randn(2, 4).to(triton_device)
    gate_up, down = make_weights(4, triton_device)
    with pytest.raises(ValueError, match="mix_experts: x is"):
        fewer = ExpertWeights(down.weight[:3])
        ops.mix_experts(x, logits, gate_up, fewer, experts_per_token=2, renormalise=True)
    with pytest.raises(ValueError, match="mix_experts: 5 of 4 experts a token"):
        ops.mix_experts(x, logits, gate_up, down, experts_per_token=5, renormalise=True)
    with pytest.raises(ValueError, match="must be contiguous"):
        turned = ExpertWeights(down.weight.mT)
        ops.mix_experts(x, logits, gate_up, turned, experts_per_token=2, renormalise=True)
    with pytest.raises(ValueError, match=r"weights are torch\.float64, not torch\.float32"):
        wide = ExpertWeights(down.weight.double())
        ops.mix_experts(x, logits, gate_up, wide, experts_per_token=2, renormalise=True)
    many = torch.randn(2, 513, device=triton_device)
    with pytest.raises(ValueError, match="513 experts; at most 512"):
        ops.mix_experts(
            x, many, *make_weights(513, triton_device), experts_per_token=2, renormalise=True
        )
