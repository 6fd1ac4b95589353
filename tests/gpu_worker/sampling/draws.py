"""Rows to draw and their comparison, for samplers that must equal PyTorch's."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.batch.batch import BatchOutput
from signalbox_worker.batch.sampling_rows import SampleRows
from tests.gpu_worker.generation import make_rows


def make_logits(num_rows: int, vocab_size: int, *, scale: float = 3.0, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * scale


def random_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    """Each parameter is neutral half of the time."""

    def perhaps(neutral: object, *values: object) -> object:
        return neutral if rng.random() < 0.5 else rng.choice(values)

    tokens = rng.sample(range(vocab_size), min(vocab_size, 5))
    return SamplingParams(
        temperature=perhaps(1.0, 0.0, 1e-6, 0.3, 0.7, 2.0),  # type: ignore[arg-type]
        top_p=perhaps(1.0, 1e-6, 0.1, 0.5, 0.9, 0.999),  # type: ignore[arg-type]
        top_k=perhaps(0, 1, 2, 50, 300, vocab_size),  # type: ignore[arg-type]
        min_p=perhaps(0.0, 1e-3, 0.1, 1.0),  # type: ignore[arg-type]
        typical_p=perhaps(1.0, 1e-6, 0.2, 0.9),  # type: ignore[arg-type]
        presence_penalty=perhaps(0.0, -2.0, 0.5, 2.0),  # type: ignore[arg-type]
        frequency_penalty=perhaps(0.0, -0.5, 1.0),  # type: ignore[arg-type]
        repetition_penalty=perhaps(1.0, 0.5, 1.3),  # type: ignore[arg-type]
        logit_bias=perhaps((), tuple((t, rng.uniform(-3, 3)) for t in tokens)),  # type: ignore[arg-type]
        allowed_token_ids=perhaps((), tuple(tokens), tuple(range(0, vocab_size, 3))),  # type: ignore[arg-type]
        bad_words=perhaps((), ((tokens[0],), (tokens[-1], tokens[0]))),  # type: ignore[arg-type]
        seed=rng.getrandbits(64),
        num_logprobs=perhaps(None, 0, min(5, vocab_size)),  # type: ignore[arg-type]
        logprob_token_ids=perhaps((), tuple(tokens), (tokens[-1],) * 2),  # type: ignore[arg-type]
    )


def make_history(params: Sequence[SamplingParams], vocab_size: int) -> SampleRows:
    rng = random.Random(3)
    tokens = [rng.choices(range(vocab_size), k=rng.randint(1, 60)) for _ in params]
    return make_rows(
        params,
        token_index=range(len(params)),
        branch=[rng.randint(0, 5) for _ in params],
        tokens=tokens,
        num_prompt=[rng.randint(0, len(one)) for one in tokens],
        vocab_size=vocab_size,
    )


def assert_same(ours: BatchOutput, theirs: BatchOutput) -> None:
    assert ours.failed == theirs.failed
    alive = ~np.isin(np.arange(len(ours.token_ids)), list(ours.failed))
    assert ours.token_ids[alive].tolist() == theirs.token_ids[alive].tolist()
    # Of the same logits: the sums over the vocabulary differ, by the root of up to 49,152 roundings
    # (see tests.rounding), 1.3e-5, and u times a logit of up to 40 beside it.
    for mine, other in zip(ours.logprobs, theirs.logprobs, strict=True):
        assert mine.row == other.row
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert mine.top_token_ids == other.top_token_ids
        assert mine.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-4)
        assert mine.rank == other.rank
