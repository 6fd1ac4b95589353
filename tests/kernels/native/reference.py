"""What the ops of a native program mean, in plain NumPy and double precision.

`signalbox_kernels.torch` says the same of PyTorch's ops.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray, to_dtype, to_float32
from signalbox_kernels.recurrent import GatedNorm, Scan
from signalbox_kernels.structs import AttentionArrays, Pairs, ScanRule

Doubles = NDArray[np.float64]


def wide(values: AnyArray) -> Doubles:
    """Returns the values of floats of any type."""
    return values if values.dtype == np.float64 else to_float32(values).astype(np.float64)


def rounded(values: AnyArray, dtype: np.dtype[Any]) -> Doubles:
    return wide(to_dtype(values, dtype))


def linear(x: AnyArray, weight: AnyArray) -> Doubles:
    product: Doubles = wide(x) @ wide(weight).T
    return product


def size_of_terms(x: AnyArray, weight: AnyArray) -> Doubles:
    """Returns the sums of the magnitudes of a product's terms."""
    return linear(np.abs(wide(x)), np.abs(wide(weight)))


def quantised_linear(x: AnyArray, weight: AnyArray, most: int = 127) -> Doubles:
    """The product of rows in codes up to `most`, with a scale for each 32, with the values of
    blocks."""
    rows = to_float32(x)
    groups = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 32))).reshape(len(rows), -1, 32)
    top = np.abs(groups).max(axis=-1, keepdims=True)
    codes = np.round(groups * (np.float32(most) / np.where(top > 0, top, np.float32(1))))
    coded = (codes * (top / np.float32(most))).reshape(len(rows), -1)
    return linear(coded[:, : rows.shape[1]], weight)


def gelu(x: Doubles) -> Doubles:
    risen: Doubles = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return risen


def gelu_tanh(x: Doubles) -> Doubles:
    risen: Doubles = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return risen


def layer_norm(x: AnyArray, weight: AnyArray, bias: AnyArray | None, *, eps: float) -> Doubles:
    values = wide(x)
    centred = values - values.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    normed: Doubles = centred * scale * wide(weight)
    return normed if bias is None else normed + wide(bias)


def silu_and_mul(gate_up: Doubles) -> Doubles:
    gate, up = np.split(gate_up, 2, axis=-1)
    product: Doubles = gate / (1 + np.exp(-gate)) * up
    return product


def rms_norm(x: AnyArray, weight: AnyArray, *, eps: float) -> Doubles:
    values = wide(x)
    scale = 1 / np.sqrt((values**2).mean(axis=-1, keepdims=True) + eps)
    normed: Doubles = values * scale * wide(weight)
    return normed


def rotate(heads: AnyArray, angles: AnyArray, pairs: Pairs = Pairs.HALVES) -> Doubles:
    """Turns the first n elements of [tokens, heads, head_size] by [tokens, 2, n / 2], cosines and
    sines."""
    cosine, sine = wide(angles)[:, :, None].swapaxes(0, 1)
    turned, half = wide(heads).copy(), angles.shape[-1]
    places = np.arange(2 * half).reshape(2, half)
    if pairs is Pairs.NEIGHBOURS:
        places = places.reshape(half, 2).T
    first, second = wide(heads)[..., places[0]], wide(heads)[..., places[1]]
    turned[..., places[0]] = first * cosine - second * sine
    turned[..., places[1]] = second * cosine + first * sine
    return turned


def paged_attention(
    query: Doubles,
    cache: Doubles,
    at: AttentionArrays,
    *,
    scale: float,
    window: int | None,
    is_causal: bool = True,
    sinks: AnyArray | None = None,
    cap: float | None = None,
    biases: AnyArray | None = None,
) -> Doubles:
    """Attention of [tokens, heads, head_size] over [blocks, 2, block_size, kv heads, head_size]."""
    block_size, kv_heads, head_size = cache.shape[2:]
    out = np.empty_like(query)
    for i, context in enumerate(at.context_lens):
        rows = slice(at.query_start[i], at.query_start[i + 1])
        count = rows.stop - rows.start
        blocks = cache[at.block_tables[i, : -(-context // block_size)]].swapaxes(0, 1)
        keys, values = blocks.reshape(2, -1, kv_heads, head_size)[:, :context].swapaxes(1, 2)
        queries = query[rows].reshape(count, kv_heads, -1, head_size).transpose(1, 2, 0, 3)
        scores = scale * queries @ keys[:, None].swapaxes(2, 3)
        scores = scores if cap is None else cap * np.tanh(scores / cap)
        age = np.arange(context - count, context)[:, None] - np.arange(context)
        if biases is not None:
            added = wide(biases)[:, biases.shape[1] // 2 - age]
            scores = scores + added.reshape(*scores.shape[:2], *age.shape)
        hidden = np.abs(age) >= (window or context)
        scores[..., hidden | (age < 0) if is_causal else hidden] = -np.inf
        beside = np.full(query.shape[1], -np.inf) if sinks is None else wide(sinks)
        beside = np.broadcast_to(beside.reshape(*scores.shape[:2], 1, 1), (*scores.shape[:3], 1))
        scores = np.concatenate([scores, beside], axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights[..., :-1] / weights.sum(axis=-1, keepdims=True)
        attended = weights @ values[:, None]
        out[rows] = attended.transpose(2, 0, 1, 3).reshape(count, -1, head_size)
    return out


def silu(x: Doubles) -> Doubles:
    risen: Doubles = x / (1 + np.exp(-x))
    return risen


def convolve(x: AnyArray, weight: AnyArray, bias: AnyArray | None, past: AnyArray) -> Doubles:
    """The sums along one sequence, [num_tokens, num_channels]; `past` are inputs before it."""
    inputs, width = np.concatenate([wide(past), wide(x)]), weight.shape[1]
    sums = sum(inputs[i : i + len(x)] * wide(weight)[:, i] for i in range(width))
    return sums + (0 if bias is None else wide(bias))


class Scanned(NamedTuple):
    """What a scan of one sequence gives."""

    out: Doubles
    """[num_tokens, num_heads, value_size]."""
    terms: Doubles
    """Sums of the magnitudes that a result is the sum of, likewise."""
    state: Doubles
    """[num_heads, key_size, value_size]."""


def scan(
    how: Scan, query: AnyArray, key: AnyArray, value: AnyArray, gates: AnyArray, state: AnyArray
) -> Scanned:
    """Passes heads [num_tokens, heads, size] and gates [num_tokens, columns] through a state."""
    q, k, v = wide(query), wide(key), wide(value)
    is_delta = how.rule is ScanRule.GATED_DELTA
    if is_delta:
        q, k = (x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6) for x in (q, k))
        q = q / math.sqrt(how.key_size)
    q, k = (x.repeat(how.num_heads // how.num_key_heads, axis=1) for x in (q, k))
    raw = wide(gates)[:, how.step : how.step + how.num_heads] + wide(how.biases)
    steps = np.logaddexp(0, raw).clip(*how.step_limits)
    strength = 1 / (1 + np.exp(-wide(gates)[:, how.strength : how.strength + how.num_heads]))
    skips = np.zeros(how.num_heads) if how.skips is None else wide(how.skips)
    s, out, terms = wide(state), np.empty_like(v), np.empty_like(v)
    for t in range(len(v)):
        s = s * np.exp(steps[t] * wide(how.rates))[:, None, None]
        known = np.einsum("hk,hkv->hv", k[t], s) if is_delta else 0
        u = (strength if is_delta else steps)[t, :, None] * (v[t] - known)
        s = s + k[t, :, :, None] * u[:, None]
        out[t] = np.einsum("hk,hkv->hv", q[t], s) + skips[:, None] * v[t]
        sizes = np.einsum("hk,hkv->hv", np.abs(q[t]), np.abs(s))
        terms[t] = sizes + np.abs(skips[:, None] * v[t])
    return Scanned(out, terms, s)


def gated_rms_norm(x: AnyArray, gate: AnyArray, how: GatedNorm) -> Doubles:
    values, share = wide(x), silu(wide(gate))
    if how.is_gated_first:
        values = values * share
    groups = values.reshape(len(x), how.num_groups, -1)
    squares = (groups * groups).mean(axis=-1, keepdims=True)
    normed: Doubles = (groups / np.sqrt(squares + how.eps)).reshape(x.shape) * wide(how.weight)
    return normed if how.is_gated_first else normed * share
