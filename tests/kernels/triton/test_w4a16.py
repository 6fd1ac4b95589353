"""Products with 4-bit codes equal those with the decoded matrix."""

import pytest
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import int4, registry
from signalbox_kernels.torch.int4 import Int4Weight


def make_weight(
    *, out_features: int, in_features: int, group_size: int, device: str, dtype: torch.dtype
) -> Int4Weight:
    """Random codes, scales and zero points."""
    size = int4.usable_group_size(group_size, in_features)
    assert size is not None
    num_groups = max(1, -(-in_features // int4.RUN) * int4.RUN // size)
    codes = torch.randint(0, 16, (out_features, in_features), dtype=torch.uint8)
    scales = (torch.rand(num_groups, out_features) / 16 + 0.01).to(dtype)
    zeros = torch.randint(0, 17, (num_groups, out_features))
    return Int4Weight(
        int4.pack_words(codes).to(device),
        int4.pack_groups(scales, zeros).to(device),
        size,
        in_features,
        torch.zeros(-(-out_features // int4.COUNTED), dtype=torch.int32, device=device),
    )


def assert_close(actual: Tensor, expected: Tensor, weight: Int4Weight, x: Tensor) -> None:
    """Sums of float32 in another order, and one rounding to the rows' type."""
    magnitude = x.float().abs() @ int4.dequantise(weight, torch.float32).abs().T
    unit = torch.finfo(x.dtype).eps
    bound = magnitude * weight.in_features * 2.0**-24 + expected.float().abs() * unit
    assert ((actual.float() - expected.float()).abs() <= bound).all()


@pytest.mark.parametrize(
    ("rows", "outputs", "columns", "group_size"),
    [
        (1, 64, 256, 128),
        (3, 70, 384, 128),  # outputs that fill no tile
        (16, 128, 576, 64),  # columns that fill no run
        (17, 130, 144, 32),
        (2, 64, 256, 16),
        (5, 96, 272, -1),  # a scale for each row
        (70, 200, 256, 256),  # groups of several runs, and two tiles of rows
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_products_are_those_of_the_decoded_matrix(
    triton_device: str, rows: int, outputs: int, columns: int, group_size: int, dtype: torch.dtype
) -> None:
    weight = make_weight(
        out_features=outputs,
        in_features=columns,
        group_size=columns if group_size < 0 else group_size,
        device=triton_device,
        dtype=torch.float16,
    )
    x = torch.randn(rows, columns, device=triton_device).to(dtype)
    bias = torch.randn(outputs, device=triton_device).to(dtype) if rows % 2 else None
    expected = int4.w4a16_linear(x.float(), weight, None if bias is None else bias.float())
    if dtype is torch.float16:  # weights are rounded before they are multiplied
        rounded = int4.dequantise(weight, dtype).float()
        expected = x.float() @ rounded.T + (0 if bias is None else bias.float())
    assert_close(ops.w4a16_linear(x, weight, bias), expected, weight, x)


@pytest.mark.parametrize("num_splits", [2, 3, 16])  # more than there are runs: some have none
@pytest.mark.parametrize("rows", [1, 16])
def test_programs_that_share_columns_add_up(triton_device: str, rows: int, num_splits: int) -> None:
    weight = make_weight(
        out_features=96, in_features=640, group_size=64, device=triton_device, dtype=torch.bfloat16
    )
    product = registry.implementation_of("w4a16_linear", torch.device(triton_device))
    x, bias = torch.randn(rows, 640, device=triton_device), torch.randn(96, device=triton_device)
    expected = int4.w4a16_linear(x, weight, bias)
    first = product(x, weight, bias, num_splits=num_splits)
    assert_close(first, expected, weight, x)
    again = product(x, weight, bias, num_splits=num_splits)  # the counters are zero again
    assert torch.equal(first, again)
    assert not weight.arrived.any()


def test_rows_may_lie_apart(triton_device: str) -> None:
    weight = make_weight(
        out_features=64, in_features=128, group_size=128, device=triton_device, dtype=torch.float16
    )
    x = torch.randn(4, 384, device=triton_device)[:, 128:256]
    assert_close(ops.w4a16_linear(x, weight, None), int4.w4a16_linear(x, weight, None), weight, x)
    assert ops.w4a16_linear(x[:0], weight, None).shape == (0, 64)


def test_every_code_and_zero_point_is_decoded_exactly(triton_device: str) -> None:
    """Rows of the identity give the matrix: all codes at all places of a word, by zero points."""
    codes = torch.arange(128).view(8, 16).T.reshape(1, 128) % 16  # nibble i of word w: 16 i + w
    codes = torch.cat([(codes + shift) % 16 for shift in range(16)]).to(torch.uint8)
    kinds = torch.cartesian_prod(torch.arange(17.0), torch.tensor([0.0, 2.0**-24, 0.1, 65504.0]))
    zeros, scales = kinds.repeat_interleave(16, dim=0).T[:, None]
    codes, scales = codes.repeat(len(kinds), 1), scales.half()
    weight = Int4Weight(
        int4.pack_words(codes).to(triton_device),
        int4.pack_groups(scales, zeros.long()).to(triton_device),
        128,
        128,
        torch.zeros(-(-len(codes) // int4.COUNTED), dtype=torch.int32, device=triton_device),
    )
    expected = (codes.float() - zeros.T) * scales.float().T
    assert torch.equal(int4.dequantise(weight, torch.float32).cpu(), expected)
    rows = torch.eye(128, device=triton_device)
    assert torch.equal(ops.w4a16_linear(rows, weight, None).T.cpu(), expected)


def test_what_the_kernel_cannot_multiply_is_refused(triton_device: str) -> None:
    weight = make_weight(
        out_features=64, in_features=128, group_size=128, device=triton_device, dtype=torch.float16
    )
    with pytest.raises(ValueError, match=r"rows are \(2, 96\), the matrix is \(64, 128\)"):
        ops.w4a16_linear(torch.ones(2, 96, device=triton_device), weight, None)
    other = Int4Weight(weight.words, weight.groups, 48, 128, weight.arrived)
    with pytest.raises(ValueError, match="groups have 48 columns"):
        ops.w4a16_linear(torch.ones(2, 128, device=triton_device), other, None)


def test_groups_are_held_in_sizes_that_the_layout_has() -> None:
    held = {size: int4.usable_group_size(size, 4096) for size in (128, 32, 96, 48, 256, 4096, 20)}
    assert held == {128: 128, 32: 32, 96: 32, 48: 16, 256: 256, 4096: 4096, 20: None}
    assert int4.usable_group_size(576, 576) == 640
