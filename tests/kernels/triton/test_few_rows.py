"""Products of few rows, with norm, activation and sum, equal the steps one by one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import row_ops

EPS = 1e-5
SIZES = pytest.mark.parametrize(
    ("rows", "columns", "outputs"),
    [
        (1, 64, 32),
        (3, 200, 70),  # columns and outputs that fill no tile
        (16, 288, 96),
    ],
)
BIAS = pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "biased"])


class Problem:
    """Random operands; weights make results of magnitude 1."""

    def __init__(
        self, rows: int, columns: int, outputs: int, *, has_bias: bool, device: str, **kind: Any
    ) -> None:
        torch.manual_seed(0)

        def random(*size: int) -> Tensor:
            return torch.randn(size, device=device).to(**kind)

        self.x = random(rows, columns) * 3
        self.norm = random(columns)
        self.weight = random(outputs, columns) / columns**0.5
        self.bias = random(outputs) if has_bias else None
        self.residual = random(rows, outputs)

    def assert_close(self, actual: Tensor, expected: Tensor, magnitude: Tensor) -> None:
        """Sums of float32 in another order; results of 16 bits are rounded some times besides."""
        columns, unit = self.x.shape[1], torch.finfo(self.x.dtype).eps
        bound = magnitude * (columns * 2.0**-24 + 4 * unit) + 4 * unit * expected.float().abs()
        assert ((actual.float() - expected.float()).abs() <= bound).all()

    def magnitude(self, x: Tensor) -> Tensor:
        """Returns the sums of the sizes of what a product adds."""
        product = x.float().abs() @ self.weight.float().abs().T
        return product if self.bias is None else product + self.bias.float().abs()


@SIZES
@BIAS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_normed_beside_the_product(
    triton_device: str, rows: int, columns: int, outputs: int, has_bias: bool, dtype: torch.dtype
) -> None:
    at = Problem(rows, columns, outputs, has_bias=has_bias, device=triton_device, dtype=dtype)
    found = ops.rms_norm_linear(at.x, at.norm, at.weight, at.bias, eps=EPS)
    normed = row_ops.rms_norm(at.x, at.norm, eps=EPS)
    expected = row_ops.rms_norm_linear(at.x, at.norm, at.weight, at.bias, eps=EPS)
    at.assert_close(found, expected, at.magnitude(normed))


@SIZES
@BIAS
def test_gate_and_up_are_activated(
    triton_device: str, rows: int, columns: int, outputs: int, has_bias: bool
) -> None:
    at = Problem(
        rows, columns, 2 * outputs, has_bias=has_bias, device=triton_device, dtype=torch.float32
    )
    found = ops.rms_norm_linear(at.x, at.norm, at.weight, at.bias, eps=EPS, is_gated=True)
    assert found.shape == (rows, outputs)
    normed = row_ops.rms_norm(at.x, at.norm, eps=EPS)
    product = torch.nn.functional.linear(normed, at.weight, at.bias)
    gate, up = (half.abs() + 1 for half in product.chunk(2, dim=1))  # silu' is below 1.1
    of_gate, of_up = at.magnitude(normed).chunk(2, dim=1)
    expected = row_ops.rms_norm_linear(at.x, at.norm, at.weight, at.bias, eps=EPS, is_gated=True)
    at.assert_close(found, expected, 2 * (of_gate * up + of_up * gate))


@SIZES
@BIAS
def test_a_product_is_added_where_it_is_wanted(
    triton_device: str, rows: int, columns: int, outputs: int, has_bias: bool
) -> None:
    at = Problem(
        rows, columns, outputs, has_bias=has_bias, device=triton_device, dtype=torch.float32
    )
    expected = at.residual.clone()
    ops.linear_add(at.x, at.weight, at.bias, at.residual)
    row_ops.linear_add(at.x, at.weight, at.bias, expected)
    at.assert_close(at.residual, expected, at.magnitude(at.x))


def test_rows_may_lie_apart_and_may_be_none(triton_device: str) -> None:
    at = Problem(3, 64, 32, has_bias=False, device=triton_device, dtype=torch.float32)
    wide = torch.randn(3, 128, device=triton_device)
    at.x = wide[:, 64:]
    found = ops.rms_norm_linear(at.x, at.norm, at.weight, None, eps=EPS)
    packed = ops.rms_norm_linear(at.x.contiguous(), at.norm, at.weight, None, eps=EPS)
    assert torch.equal(found, packed)
    assert ops.rms_norm_linear(at.x[:0], at.norm, at.weight, None, eps=EPS).shape == (0, 32)


def test_a_nan_stays_in_its_row(triton_device: str) -> None:
    at = Problem(3, 64, 32, has_bias=False, device=triton_device, dtype=torch.float32)
    clean = ops.rms_norm_linear(at.x, at.norm, at.weight, None, eps=EPS)
    at.x[1, 5] = float("nan")
    found = ops.rms_norm_linear(at.x, at.norm, at.weight, None, eps=EPS)
    assert found[1].isnan().all()
    assert torch.equal(found[::2], clean[::2])


def test_what_does_not_belong_together_is_refused(triton_device: str) -> None:
    at = Problem(17, 64, 32, has_bias=False, device=triton_device, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"rows are \(17, 64\); at most 16 without gaps"):
        ops.rms_norm_linear(at.x, at.norm, at.weight, None, eps=EPS)
    few = at.x[:2]
    with pytest.raises(ValueError, match=r"rows are torch\.float16; use bfloat16 or float32"):
        ops.linear_add(few.half(), at.weight.half(), None, at.residual[:2].half())
    with pytest.raises(ValueError, match="operands differ in type"):
        ops.linear_add(few, at.weight.bfloat16(), None, at.residual[:2])
    with pytest.raises(ValueError, match="the sum is "):
        ops.linear_add(few, at.weight, None, at.residual)
    with pytest.raises(ValueError, match=r"the matrix is \(32, 64\), rows are \(2, 32\)"):
        ops.linear_add(few[:, :32], at.weight, None, at.residual[:2])
