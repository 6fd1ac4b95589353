"""What the ops of a native program mean, in plain NumPy and double precision.

`signalbox_kernels.torch` says the same of PyTorch's ops.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray, to_dtype, to_float32
from signalbox_kernels.structs import AttentionArrays, Pairs

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
