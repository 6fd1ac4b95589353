"""Triton's products in FP8 equal exactly decoded codes, under the interpreter unless there is a
GPU."""

import pytest
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import fp8
from tests.rounding import UNIT_ROUNDOFF, relative_error

HALF_STEP, HALF_SUBNORMAL = 2.0**-4, 2.0**-10
"""Of E4M3: what rounding moves a code by, relative to it, or in all."""
HOPPER_ROUNDOFF = 2.0**-12
"""Of sums within a tile on tensor cores."""
FINITE_CODES = [code for code in range(256) if code & 127 != 127]


def make_weight(rows: int, columns: int, device: str) -> Tensor:
    codes = torch.tensor(FINITE_CODES, dtype=torch.uint8)
    drawn = codes[torch.randint(0, len(codes), (rows, columns))]
    return drawn.view(torch.float8_e4m3fn).to(device)


def expanded(scales: Tensor, rows_per_scale: int, shape: torch.Size) -> Tensor:
    """A scale for each element."""
    width = shape[1] if scales.shape[1] == 1 else 128
    of_rows = scales.double().repeat_interleave(rows_per_scale, dim=0)[: shape[0]]
    return of_rows.repeat_interleave(width, dim=1)[:, : shape[1]]


@pytest.mark.parametrize("group_size", [None, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [40, 300, 4096])
def test_rows_are_rounded_to_the_nearest_codes(
    triton_device: str, size: int, dtype: torch.dtype, group_size: int | None
) -> None:
    x = torch.randn(5, size + 8, device=triton_device).to(dtype)[:, :size]
    x[1] *= torch.logspace(-7, 0, size, device=triton_device)  # codes of all exponents, and zeros
    x[2] = 0

    codes, scales = ops.quantize_fp8(x, group_size=group_size)

    assert codes.dtype is torch.float8_e4m3fn
    _, expected = fp8.quantize_fp8(x, group_size=group_size)
    torch.testing.assert_close(scales, expected, rtol=1e-6, atol=0)
    scale = expanded(scales, 1, x.shape)
    error = (codes.double() * scale - x.double()).abs()
    bound = torch.maximum(HALF_STEP * x.double().abs(), HALF_SUBNORMAL * scale)
    assert (error <= bound * (1 + 1e-6)).all()
    assert codes.float().abs().amax(dim=1)[[0, 1, 3, 4]].eq(448).all()


MATRICES = [(40, 200, 1, True), (130, 512, 1, False), (160, 320, 32, False), (130, 256, 128, True)]
"""Rows, columns, rows of a scale, and whether a bias is added."""


@pytest.mark.parametrize(
    ("num_tokens", "dtype", "matrix"),
    [
        *((3, torch.float32, matrix) for matrix in MATRICES),
        *((17, torch.bfloat16, matrix) for matrix in MATRICES),
        (1, torch.bfloat16, MATRICES[3]),  # with these, each tile
        (65, torch.float32, MATRICES[2]),
        (513, torch.float32, MATRICES[0]),
    ],
)
def test_products_are_those_of_decoded_codes(
    triton_device: str,
    num_tokens: int,
    dtype: torch.dtype,
    matrix: tuple[int, int, int, bool],
) -> None:
    rows, columns, rows_per_scale, has_bias = matrix
    x = torch.randn(num_tokens, columns, device=triton_device).to(dtype)
    weight = make_weight(rows, columns, triton_device)
    num_groups = 1 if rows_per_scale == 1 else -(-columns // 128)
    scales = torch.rand(-(-rows // rows_per_scale), num_groups, device=triton_device) + 0.5
    bias = torch.randn(rows, device=triton_device).to(dtype) if has_bias else None

    actual = ops.fp8_linear(x, weight, scales, bias, rows_per_scale=rows_per_scale)

    codes, of_tokens = ops.quantize_fp8(x, group_size=None if num_groups == 1 else 128)
    a = codes.double() * expanded(of_tokens, 1, x.shape)
    b = weight.double() * expanded(scales, rows_per_scale, weight.shape)
    expected = a @ b.T + (0 if bias is None else bias.double())
    u = UNIT_ROUNDOFF if triton_device == "cpu" else HOPPER_ROUNDOFF
    bound = relative_error(columns + 8, u=u) * (a.abs() @ b.abs().T)
    if dtype is torch.bfloat16:
        bound += 2.0**-7 * expected.abs()  # the interpreter cuts off
    assert actual.dtype is dtype
    assert ((actual.double() - expected).abs() <= bound + 1e-6).all()
    reference_product = fp8.fp8_linear(x, weight, scales, bias, rows_per_scale=rows_per_scale)
    torch.testing.assert_close(
        actual, reference_product, rtol=0.02, atol=0.02 * float(b.abs().max())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_static_scale_cuts_what_exceeds_it(triton_device: str, dtype: torch.dtype) -> None:
    x = torch.randn(5, 300, device=triton_device).to(dtype)
    x[1, :3] = torch.tensor([1e5, -1e5, float("nan")])

    codes, scales = ops.quantize_fp8(x, scale=1 / 256)

    expected, _ = fp8.quantize_fp8(x, scale=1 / 256)
    assert scales.eq(1 / 256).all() and scales.shape == (5, 1)
    assert codes[1, :2].float().tolist() == [448, -448]
    steps = (codes.float() - expected.float()).abs() / expected.float().abs().clamp(min=2.0**-6)
    assert steps.nan_to_num().max() <= 2.0**-3  # the interpreter rounds ties in its own way
    assert (codes.float().isnan() == expected.float().isnan()).all()
    weight = make_weight(40, 300, triton_device)
    ones = torch.ones(40, 1, device=triton_device)
    product = ops.fp8_linear(x[2:], weight, ones, None, rows_per_scale=1, x_scale=1 / 256)
    by_codes = (codes[2:].double() / 256) @ weight.double().T
    terms = (codes[2:].double() / 256).abs() @ weight.double().abs().T
    assert ((product.double() - by_codes).abs() <= 2.0**-7 * terms).all()


def test_each_code_is_decoded(triton_device: str) -> None:
    """One column of ones; a one becomes the largest code and 1 / 448."""
    codes = torch.tensor(FINITE_CODES, dtype=torch.uint8, device=triton_device)
    weight = codes.view(torch.float8_e4m3fn)[:, None].expand(-1, 16).contiguous()
    x = torch.zeros(1, 16, device=triton_device)
    x[0, 0] = 1
    scales = torch.ones(len(codes), 1, device=triton_device)

    actual = ops.fp8_linear(x, weight, scales, None, rows_per_scale=1)

    torch.testing.assert_close(actual[0], weight[:, 0].float(), rtol=1e-6, atol=0)


def test_no_tokens_are_no_launch(triton_device: str) -> None:
    weight = make_weight(8, 16, triton_device)
    scales = torch.ones(8, 1, device=triton_device)
    x = torch.empty(0, 16, device=triton_device)
    assert ops.fp8_linear(x, weight, scales, None, rows_per_scale=1).shape == (0, 8)
