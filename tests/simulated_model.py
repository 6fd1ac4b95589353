"""What the simulated worker should answer, computed with integers and without blocks."""

from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np

from signalbox_contract.pooling import PoolingModel, PoolingParams, Vector
from signalbox_worker.runner.simulated.hashing import (
    MASK,
    POSITION,
    SALT,
    SEGMENT,
    TOKEN,
    adapter_key,
)
from signalbox_worker.runner.simulated.simulated_draws import made_up_logprobs
from signalbox_worker.runner.simulated.simulated_pooler import made_up_vector


def expected_tokens(
    prompt: Sequence[int],
    *,
    num_tokens: int,
    vocab_size: int = 512,
    temperature: float = 0.0,
    seed: int = 0,
    branch: int = 0,
    min_tokens: int = 0,
    stop_token_ids: Collection[int] = (),
    adapter: str = "",
    windows: Sequence[int] = (0,),
    has_states: bool = False,
) -> list[int]:
    """Returns the tokens that the simulated model draws after `prompt`.

    It draws past stop tokens; before min_tokens it draws none. `adapter` is an adapter's SHA-256,
    and `windows` are those of the groups of layers with K and V; 0 sees all tokens. A model that
    `has_states` has a group of states beside them.
    """
    of_adapter = adapter_key(adapter)
    key = mix_int(seed * SALT + branch) if temperature > 0 else 0
    tokens, slot, sums = list(prompt), 0, [0]
    for position in range(len(prompt) + num_tokens - 1):
        slot += mix_int(tokens[position] * TOKEN + position * POSITION + of_adapter)
        sums.append(sums[-1] + slot * (mix_int(position) | 1))
        if position + 1 == len(tokens):
            starts = [max(0, position + 1 - one) if one else 0 for one in windows]
            total = sum(sums[-1] - sums[start] for start in starts)
            of_state = mix_int(slot & MASK) if has_states else 0
            best = mix_int((total + of_state & MASK) ^ key) % vocab_size
            starved = len(tokens) - len(prompt) < min_tokens
            while starved and best in stop_token_ids:
                best = (best + 1) % vocab_size
            tokens.append(best)
    return tokens[len(prompt) :]


def expected_logprobs(
    token_ids: Sequence[int], *, num: int, vocab_size: int = 512
) -> tuple[list[int], list[float]]:
    """Returns the likeliest tokens after `token_ids`, as a greedy row reports them."""
    (best,) = expected_tokens(token_ids, num_tokens=1, vocab_size=vocab_size)
    found = made_up_logprobs(0, best=best, token=best, num=num, size=vocab_size)
    return found.top_token_ids, found.top_logprobs


def expected_vector(
    token_ids: Sequence[int],
    *,
    model: PoolingModel,
    params: PoolingParams = PoolingParams(),  # noqa: B008 (it is immutable)
    adapter: str = "",
) -> Vector:
    """Returns the vector that the simulated worker makes of a prompt.

    `adapter` is an adapter's SHA-256.
    """
    of_adapter, first_segment = adapter_key(adapter), params.num_first_segment_tokens
    own = [
        mix_int(
            token_id * TOKEN
            + position * POSITION
            + of_adapter
            + SEGMENT * (0 < first_segment <= position)
        )
        for position, token_id in enumerate(token_ids)
    ]
    slots = accumulate(own)
    contexts = list(accumulate(slot * (mix_int(i) | 1) for i, slot in enumerate(slots)))
    if not model.reads_all_tokens:
        return made_up_vector(contexts[-1] & MASK, model.num_outputs)
    if model.is_bidirectional:
        contexts = [contexts[-1]] * len(contexts)
    if params.is_per_token:
        size = model.num_token_outputs
        made = [made_up_vector(one + i & MASK, size) for i, one in enumerate(contexts)]
        return np.concatenate(made)
    values = [mix_int(context + i * POSITION) for i, context in enumerate(contexts)]
    return made_up_vector(sum(values[params.num_skipped_tokens :]) & MASK, model.num_outputs)


def mix_int(x: int) -> int:
    x &= MASK
    x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & MASK
    return x ^ (x >> 31)
