"""Models of random shapes, native runners of them, and what their results must equal.

SIGNALBOX_TEST_FAMILIES draws more configurations of each family.
"""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from signalbox_contract.cache_groups import num_token_groups
from tests.gpu_worker.generation import Driver, Generated, groups_of, make_sequence, num_row_blocks
from tests.gpu_worker.model_runners import (
    LONG_PROMPT,
    WHOLE,
    assert_greedy,
    log_probabilities,
    make_prompts,
    make_runner,
)
from tests.rounding import LOGITS

NUM_DRAWN = int(os.environ.get("SIGNALBOX_TEST_FAMILIES", "2"))
KINDS = ["sliding_attention", "full_attention"]
"""Kinds of layers in `layer_types`."""


def random_shape(rng: random.Random) -> dict[str, Any]:
    """Returns fields that config.json of all decoders has: odd numbers of heads, tied or not."""
    kv_heads, group = rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
    return {
        "head_dim": rng.choice([16, 48]),
        "hidden_size": rng.choice([20, 52, 100]),
        "num_hidden_layers": rng.choice([1, 2, 3]),
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "intermediate_size": rng.choice([12, 40, 84]),
        "tie_word_embeddings": rng.random() < 0.5,
        "rms_norm_eps": rng.choice([1e-6, 1e-2]),
    }


def widen_to_heads(fields: dict[str, Any]) -> None:
    """Makes the hidden states as wide as all heads together, which are few if they are large: of
    longer sums less is exact than `LOGITS` allows."""
    if fields["head_dim"] > 16:
        fields["num_attention_heads"] //= fields["num_key_value_heads"]
        fields["num_key_value_heads"] = 1
    fields["hidden_size"] = fields["num_attention_heads"] * fields["head_dim"]


def make_native(path: Path, **options: Any) -> Any:
    return make_runner(path, cpu_backend="native", block_size=16, **options)


def assert_like_transformers(path: Path, reference: Any) -> None:
    """Checks tokens and log probabilities of a model in a folder."""
    runner = make_native(path)
    assert_greedy(runner, reference, make_prompts(1, 17, 40), 6, chunks=(WHOLE, 7))
    expected = expected_log_probabilities(reference)
    torch.testing.assert_close(log_probabilities(runner), expected, rtol=0, atol=LOGITS)


def expected_log_probabilities(reference: Any) -> torch.Tensor:
    """Returns those of transformers' model, of the tokens of LONG_PROMPT but the first."""
    with torch.no_grad():
        logits = reference(torch.tensor([LONG_PROMPT])).logits[0].log_softmax(dim=-1)
    return logits[:-1].gather(1, torch.tensor(LONG_PROMPT[1:])[:, None])[:, 0]


def assert_bits_depend_on_the_sequence_alone(
    path: Path, prompts: list[list[int]], **options: Any
) -> list[list[int]]:
    """Checks tokens, K and V of them, and the last states, in any batch, by any chunks and on any
    number of threads.

    Returns:
        Tokens of each prompt, 12 new ones included.
    """

    def found(chosen: list[list[int]], chunk: int, threads: int) -> list[tuple[list[int], bytes]]:
        runner = make_native(path, num_threads=threads, **options)
        driver = Driver(runner=runner, chunk=chunk)
        sequences = [make_sequence(p, range(8 * i, 8 * i + 8)) for i, p in enumerate(chosen)]
        while active := [one for one in sequences if len(one.token_ids) < one.num_prompt + 12]:
            driver.step(active)
        groups = groups_of(runner)
        pool = runner.pools.gpu_pool
        pool = pool.reshape(-1, num_row_blocks(groups), pool.shape[1])
        return [
            (one.token_ids, content_of(one, pool, num_token_groups(groups))) for one in sequences
        ]

    together = found(prompts, WHOLE, 2)
    assert found(prompts, 7, 1) == together
    for prompt, alone in zip(prompts, together, strict=True):
        assert found([prompt], 16, 3) == [alone]
    return [token_ids for token_ids, _ in together]


def content_of(sequence: Generated, pool: NDArray[np.uint8], num_groups: int) -> bytes:
    """Returns the K and V of whole blocks, and the state behind the last token that is computed."""
    whole = sequence.blocks[: sequence.num_computed // 16]
    last = sequence.blocks[(sequence.num_computed - 1) // 16]
    return pool[whole, :num_groups].tobytes() + pool[last, num_groups:].tobytes()
