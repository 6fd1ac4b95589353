"""The passes of `sampling.py` over a row of logits: the largest, masses, bounds, and the race.

A weight is exp(logit / temperature - the largest of these). It is made in `_weights` alone, so that
all passes, and both sides of a comparison, see the same bits. Bounds are bits of float32 as int32.
"""

import triton
import triton.language as tl

_ONE_BITS = tl.constexpr(0x3F800000)
_MOST_ROUNDS = tl.constexpr(64)
_INF_BITS = tl.constexpr(0x7F800000)
_DIGIT_BITS = tl.constexpr(10)  # three digits make the 30 bits of a weight
_NUM_DIGITS = tl.constexpr(1024)
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def best_logit(logits, vocab_size, CHUNK: tl.constexpr):
    """Returns the largest logit, the first token that has it, and whether all are finite."""
    column = tl.arange(0, CHUNK)
    top = tl.full([], float("-inf"), tl.float32)
    token = tl.zeros([], tl.int32)
    num_bad = tl.zeros([], tl.int32)
    for start in range(0, vocab_size, CHUNK):
        mask = start + column < vocab_size
        x = tl.load(logits + start + column, mask, float("-inf")).to(tl.float32)
        is_bad = mask & ((x != x) | (tl.abs(x) == float("inf")))
        num_bad += tl.sum(is_bad.to(tl.int32), axis=0)
        most = tl.max(x, axis=0)
        first = tl.min(tl.where(x == most, start + column, _NO_TOKEN), axis=0)
        token = tl.where(most > top, first, token)
        top = tl.maximum(top, most)
    return top, token, num_bad == 0


@triton.jit
def _weights(logits, start, vocab_size, temperature, scaled_top, CHUNK: tl.constexpr):
    """Weights with their logarithms, and the tokens of a chunk; 0 and -inf past the end."""
    token = start + tl.arange(0, CHUNK)
    x = tl.load(logits + token, token < vocab_size, float("-inf")).to(tl.float32)
    log = tl.div_rn(x, temperature) - scaled_top
    return tl.exp(log), log, token


@triton.jit
def mass_from(logits, vocab_size, temperature, scaled_top, low, CHUNK: tl.constexpr):
    """Returns the mass of weights that are at least `low`."""
    mass = tl.zeros([], tl.float64)
    for start in range(0, vocab_size, CHUNK):
        w, _, _ = _weights(logits, start, vocab_size, temperature, scaled_top, CHUNK)
        is_in = w.to(tl.int32, bitcast=True) >= low
        mass += tl.sum(tl.where(is_in, w, 0.0).to(tl.float64), axis=0)
    return mass


@triton.jit
def _masses_above(logits, vocab_size, temperature, scaled_top, one, other, CHUNK: tl.constexpr):
    """Returns the masses of the weights above each of two bounds."""
    mass = tl.zeros([], tl.float64)
    other_mass = tl.zeros([], tl.float64)
    for start in range(0, vocab_size, CHUNK):
        w, _, _ = _weights(logits, start, vocab_size, temperature, scaled_top, CHUNK)
        bits = w.to(tl.int32, bitcast=True)
        mass += tl.sum(tl.where(bits > one, w, 0.0).to(tl.float64), axis=0)
        other_mass += tl.sum(tl.where(bits > other, w, 0.0).to(tl.float64), axis=0)
    return mass, other_mass


@triton.jit
def kth_weight_bits(logits, vocab_size, temperature, scaled_top, k, CHUNK: tl.constexpr):
    """Returns the k-th largest weight, by histograms of one digit after the other."""
    digits = tl.arange(0, _NUM_DIGITS)
    prefix = tl.zeros([], tl.int32)
    for turn in range(3):
        shift = _DIGIT_BITS * (2 - turn)
        counts = tl.zeros([_NUM_DIGITS], tl.int32)
        for start in range(0, vocab_size, CHUNK):
            w, _, token = _weights(logits, start, vocab_size, temperature, scaled_top, CHUNK)
            bits = w.to(tl.int32, bitcast=True)
            agrees = (token < vocab_size) & (bits >> (shift + _DIGIT_BITS) == prefix)
            digit = (bits >> shift) & (_NUM_DIGITS - 1)
            counts += tl.histogram(digit, _NUM_DIGITS, mask=agrees)
        no_less = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0) + counts
        digit = tl.max(tl.where(no_less >= k, digits, 0), axis=0)
        k -= tl.sum(tl.where(digits > digit, counts, 0), axis=0)
        prefix = (prefix << _DIGIT_BITS) | digit
    return prefix


@triton.jit
def least_kept_bits(logits, vocab_size, temperature, scaled_top, low, nucleus, CHUNK: tl.constexpr):
    """Returns the least bound from `low` up that has less mass than `nucleus` above it."""
    high = low * 0 + _ONE_BITS
    while low < high:
        middle = (low + high) // 2
        above, _ = _masses_above(logits, vocab_size, temperature, scaled_top, middle, middle, CHUNK)
        is_kept = above < nucleus
        low = tl.where(is_kept, low, middle + 1)
        high = tl.where(is_kept, middle, high)
    return low


@triton.jit
def typical_bounds(
    logits, vocab_size, temperature, scaled_top, low, typical_p, CHUNK: tl.constexpr
):
    """The mean logarithm of weights from `low` up, and how far from it a typical one may be."""
    mass = tl.zeros([], tl.float64)
    moment = tl.zeros([], tl.float64)
    for start in range(0, vocab_size, CHUNK):
        w, log, _ = _weights(logits, start, vocab_size, temperature, scaled_top, CHUNK)
        is_in = (w > 0.0) & (w.to(tl.int32, bitcast=True) >= low)
        mass += tl.sum(tl.where(is_in, w, 0.0).to(tl.float64), axis=0)
        moment += tl.sum((w * tl.where(is_in, log, 0.0)).to(tl.float64), axis=0)
    mean = (moment / mass).to(tl.float32)
    wanted = mass * typical_p.to(tl.float64)
    near = tl.zeros([], tl.int32)  # is kept: nothing is nearer
    far = near + _INF_BITS
    while near < far:  # the greatest distance with less than `wanted` within it
        middle = near + (far - near + 1) // 2
        within = tl.zeros([], tl.float64)
        for start in range(0, vocab_size, CHUNK):
            w, log, _ = _weights(logits, start, vocab_size, temperature, scaled_top, CHUNK)
            is_in = (w > 0.0) & (w.to(tl.int32, bitcast=True) >= low)
            is_in &= tl.abs(log - mean).to(tl.int32, bitcast=True) < middle
            within += tl.sum(tl.where(is_in, w, 0.0).to(tl.float64), axis=0)
        is_kept = within < wanted
        near = tl.where(is_kept, middle, near)
        far = tl.where(is_kept, far, middle - 1)
    return mean, near.to(tl.float32, bitcast=True)


@triton.jit
def _exponentials(token, key_low, key_high):
    """Returns the race's E of tokens; `random.py` states the bits."""
    x = token.to(tl.uint32) * 0x9E3779B1 + key_low
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = ((x ^ (x >> 15)) + key_high) * 0x735A2D97
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    uniform = tl.maximum(x.to(tl.float32) * 2.3283064365386963e-10, 1.1641532182693481e-10)
    rest = 1.0 - uniform
    lost = rest - 1.0  # -uniform as `rest` has it; log1p by Kahan's correction of log
    return tl.where(
        lost == 0.0, uniform, tl.log(rest) * (uniform / tl.where(lost == 0.0, 1.0, lost))
    )


@triton.jit
def _race(
    logits,
    vocab_size,
    temperature,
    scaled_top,
    low,
    mean,
    farthest,
    key_low,
    key_high,
    CHUNK: tl.constexpr,
):
    """The winner among weights from `low` up and near enough to the mean; its weight's bits."""
    best = tl.full([], -1.0, tl.float32)
    winner = tl.zeros([], tl.int32)
    winner_bits = tl.zeros([], tl.int32)
    for start in range(0, vocab_size, CHUNK):
        w, log, token = _weights(logits, start, vocab_size, temperature, scaled_top, CHUNK)
        bits = w.to(tl.int32, bitcast=True)
        is_in = (token < vocab_size) & (bits >= low) & ~(tl.abs(log - mean) > farthest)
        score = tl.where(is_in, w / _exponentials(token, key_low, key_high), -1.0)
        most = tl.max(score, axis=0)
        if most > best:
            best = most
            winner = tl.min(tl.where(score == most, token, _NO_TOKEN), axis=0)
            winner_bits = tl.max(tl.where(token == winner, bits, 0), axis=0)
    return winner, winner_bits


@triton.jit
def nucleus_race(
    logits,
    vocab_size,
    temperature,
    scaled_top,
    low,
    mean,
    farthest,
    nucleus,
    key_low,
    key_high,
    CHUNK: tl.constexpr,
):
    """The winner among tokens that are in the other filters and have less than `nucleus` above.

    Each round halves the bits between what is kept and what is not; a row whose masses are no
    numbers, which has no such token, ends too, with any token.
    """
    high = low * 0 + _ONE_BITS  # is kept; what is between the two is not known yet
    token = low * 0 - 1
    rounds = low * 0
    while (token < 0) & (rounds < _MOST_ROUNDS):
        rounds += 1
        winner, bits = _race(
            logits,
            vocab_size,
            temperature,
            scaled_top,
            low,
            mean,
            farthest,
            key_low,
            key_high,
            CHUNK,
        )
        is_kept = (bits >= high) | (nucleus == float("inf"))
        if not is_kept:
            middle = (bits + high) // 2
            above, above_middle = _masses_above(
                logits, vocab_size, temperature, scaled_top, bits, middle, CHUNK
            )
            is_kept = above < nucleus
            low = tl.where(above_middle < nucleus, bits + 1, middle + 1)
            high = tl.where(above_middle < nucleus, middle, high)
        token = tl.where(is_kept, winner, token)
    return tl.maximum(token, 0)
