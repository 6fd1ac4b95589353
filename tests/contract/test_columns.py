"""Columns come back as they went in."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalbox_contract.columns import (
    int32_list,
    int64_list,
    int64s,
    pack_int32,
    pack_int64,
    unpack_int32,
    unpack_int64,
)
from signalbox_contract.errors import InvalidArgument


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_int32_round_trip(values: list[int]) -> None:
    assert unpack_int32(pack_int32(values)).tolist() == values
    assert int32_list(pack_int32(values)) == values
    assert unpack_int32(pack_int32(np.array(values, dtype=np.int64))).tolist() == values


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_int64_round_trip(values: list[int]) -> None:
    assert unpack_int64(pack_int64(values)).tolist() == values
    assert int64_list(pack_int64(values)) == values


def test_bytes_are_little_endian() -> None:
    assert pack_int32([1]) == b"\x01\0\0\0"


@pytest.mark.parametrize(
    ("unpack", "length"),
    [(unpack_int32, 3), (unpack_int64, 12), (int32_list, 3), (int64_list, 12), (int64s, 12)],
)
def test_a_cut_off_element_is_refused(unpack, length: int) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidArgument, match="seq_ids: "):
        unpack(bytes(length), "seq_ids")


def test_a_value_out_of_range_is_refused() -> None:
    with pytest.raises(struct.error):
        pack_int32([2**31])
