"""Recurrent layers in plain Torch, against what transformers computes of a whole sequence."""

import pytest
import torch
from torch import Tensor
from transformers.models.granitemoehybrid import modeling_granitemoehybrid as mamba
from transformers.models.qwen3_next import modeling_qwen3_next as delta

from signalbox_kernels import ops
from signalbox_kernels.torch.recurrent import Runs, time_steps

NUM_TOKENS = 11
# Two sequences: one in three runs, of which the first leaves its state at 3, and one in a run.
RUNS = Runs(
    torch.tensor([0, 4, 5, NUM_TOKENS, 2 * NUM_TOKENS]),
    torch.tensor([-1, 3, 0, 2]),
    torch.tensor([3, 0, 0, 1]),
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def in_sequences(x: Tensor) -> Tensor:
    return x.unflatten(0, (2, NUM_TOKENS))


def make_states(*shape: int) -> Tensor:
    """Four states, of which the one that is read first is not zero and others are NaN."""
    states = torch.full((4, *shape), torch.nan)
    states[2] = torch.randn(shape)
    return states


@pytest.mark.parametrize("is_silu", [True, False])
@pytest.mark.parametrize("width", [3, 4])
def test_convolutions_are_those_of_transformers(width: int, is_silu: bool) -> None:
    x, weight, bias = torch.randn(2 * NUM_TOKENS, 24), torch.randn(24, width), torch.randn(24)
    states = make_states(width - 1, 24)
    before = torch.stack([torch.zeros(width - 1, 24), states[2]])
    activation = "silu" if is_silu else None
    inputs = in_sequences(x).transpose(1, 2)
    expected = delta.causal_conv1d_update(
        inputs, before.transpose(1, 2).clone(), weight, bias, activation
    )
    actual = ops.causal_convolution(x, weight, bias, states, RUNS, is_silu=is_silu)
    torch.testing.assert_close(in_sequences(actual), expected.transpose(1, 2))
    torch.testing.assert_close(states[:2], in_sequences(x)[:, 1 - width :])
    torch.testing.assert_close(states[3], x[5 - width : 4])


@pytest.mark.parametrize("num_key_heads", [1, 3, 6])
def test_the_gated_delta_rule_is_that_of_transformers(num_key_heads: int) -> None:
    query, key = torch.randn(2, 2 * NUM_TOKENS, num_key_heads, 16)
    value, decay = torch.randn(2 * NUM_TOKENS, 6, 24), -torch.rand(2 * NUM_TOKENS, 6) * 3
    strength, states = torch.rand(2 * NUM_TOKENS, 6), make_states(6, 16, 24)
    before = torch.stack([torch.zeros(6, 16, 24), states[2]])
    expected, behind = delta.torch_recurrent_gated_delta_rule(
        *map(in_sequences, (query, key, value, decay, strength)),
        initial_state=before,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    actual = ops.gated_delta_rule(query, key, value, decay, strength, states, RUNS)
    torch.testing.assert_close(in_sequences(actual), expected)
    torch.testing.assert_close(states[:2], behind)


@pytest.mark.parametrize("num_groups", [1, 2, 6])
def test_selective_scans_are_those_of_transformers(num_groups: int) -> None:
    query, key = torch.randn(2, 2 * NUM_TOKENS, num_groups, 16)
    value, raw = torch.randn(2 * NUM_TOKENS, 6, 24), torch.randn(2 * NUM_TOKENS, 6) * 3
    rates, biases, skips = -torch.rand(6) * 4, torch.randn(6), torch.randn(6)
    states = make_states(6, 16, 24)
    before = torch.stack([torch.zeros(6, 16, 24), states[2]])
    expected, behind = mamba.mamba2_chunk_scan(
        in_sequences(value),
        in_sequences(raw),
        rates,
        in_sequences(key),
        in_sequences(query),
        chunk_size=4,
        D=skips,
        dt_bias=biases,
        dt_softplus=True,
        dt_limit=(0.2, 2.5),
        initial_states=before.transpose(2, 3),
        return_final_states=True,
    )
    steps = time_steps(raw, biases, least=0.2, most=2.5)
    actual = ops.selective_scan(query, key, value, steps, rates, skips, states, RUNS)
    torch.testing.assert_close(in_sequences(actual), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(states[:2], behind.transpose(2, 3), rtol=1e-4, atol=1e-4)


def test_gated_norms_are_those_of_transformers() -> None:
    x, gate, weight = torch.randn(7, 48), torch.randn(7, 48), torch.rand(48)
    first = mamba.GraniteMoeHybridRMSNormGated(48, 16, eps=1e-5)
    last = delta.Qwen3NextRMSNormGated(16, eps=1e-5)
    with torch.no_grad():
        first.weight.copy_(weight)
        last.weight.copy_(weight[:16])
        actual = ops.gated_rms_norm(x, gate, weight, num_groups=3, eps=1e-5, is_gated_first=True)
        torch.testing.assert_close(actual, first(x, gate))
        repeated = weight[:16].repeat(3)
        actual = ops.gated_rms_norm(x, gate, repeated, num_groups=3, eps=1e-5, is_gated_first=False)
        expected = last(x.view(-1, 16), gate.view(-1, 16)).view(7, 48)
        torch.testing.assert_close(actual, expected)
