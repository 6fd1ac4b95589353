"""The hash of a token, against the words of its documentation, and draws made of it."""

import numpy as np
import pytest
import torch

from signalbox_kernels.torch.exponentials import exponentials, token_hashes
from tests.kernels.native.test_random import ROWS, make_keys

MASK32 = (1 << 32) - 1


def token_hash(key: int, token_id: int) -> int:
    x = (token_id * 0x9E3779B1 + (key & MASK32)) & MASK32
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & MASK32
    x = (((x ^ (x >> 15)) + (key >> 32)) * 0x735A2D97) & MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK32
    return x ^ (x >> 16)


def test_hashes_match_the_scalar_reference_bit_for_bit() -> None:
    keys = make_keys(ROWS)
    token_ids = [0, 1, 2, 49151, 151935, 2**31 - 1]
    actual = token_hashes(keys, torch.tensor(token_ids, dtype=torch.int32))
    expected = [[token_hash(int(key), token) for token in token_ids] for key in keys]
    assert (actual.to(torch.int64) & MASK32).tolist() == expected


def test_hash_of_a_token_does_not_depend_on_its_company() -> None:
    keys = make_keys(ROWS)
    table = token_hashes(keys, torch.arange(1000, dtype=torch.int32))
    some = torch.tensor([[5, 999], [3, 4], [0, 1], [7, 7], [998, 2]], dtype=torch.int32)
    assert torch.equal(token_hashes(keys, some), table.gather(1, some.long()))


def test_exponentials_are_standard() -> None:
    draws = exponentials(make_keys([(s, 0, 9) for s in range(8)]), torch.arange(1 << 15).int())
    assert draws.min() > 0
    assert draws.mean().item() == pytest.approx(1.0, abs=0.01)
    assert draws.var().item() == pytest.approx(1.0, abs=0.03)
    for quantile in (0.001, 0.1, 0.5, 0.9, 0.999):
        share = (draws < -np.log1p(-quantile)).float().mean().item()
        assert share == pytest.approx(quantile, abs=0.003)
