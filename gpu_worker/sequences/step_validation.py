"""Checks of the parts of a step that need no sequence known before.

Everything is refused at the door, with a status that names the field, its value and what is
allowed; nothing has been changed by then.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contract.errors import InvalidArgument
from contract.model import ModelInfo, WorkerCapacity
from contract.sampling_params import MAX_LOGPROB_TOKEN_IDS, SamplingParams
from contract.step import NewSequence

MAX_PENALTY = 2
MAX_REPETITION = 10
MAX_BIAS = 100
MAX_BIASES = 1024
MAX_BAD_TOKENS = 16_384
"""Most tokens of all bad words of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that the steps of a lease are checked against."""

    model: ModelInfo
    capacity: WorkerCapacity
    num_gpu_blocks: int
    adapter_slots: Mapping[str, int]
    """Slots of the adapters that are loaded, by SHA-256."""

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.model.max_model_len // self.capacity.block_size)

    def most_tokens(self, num_seqs: int) -> int:
        """Returns the most tokens of a step: a sequence alone may be as long as it is whole."""
        pooling, most = self.model.pooling, self.capacity.max_num_batched_tokens
        if num_seqs == 1 and pooling is not None and pooling.is_bidirectional:
            return max(most, self.model.max_model_len)
        return most


def check_range(field: str, values: NDArray[np.integer] | Sequence[int], end: int) -> None:
    """Checks that all values are in [0, end)."""
    array = np.asarray(values)
    if not array.size:
        return
    for value in (int(array.min()), int(array.max())):
        if not 0 <= value < end:
            raise InvalidArgument(field, value, f"in [0, {end})")


def check_new(new: NewSequence, limits: Limits) -> None:
    """Checks all of a new sequence that does not depend on the sequences known."""
    where = "new_groups.sequences"
    model, capacity = limits.model, limits.capacity
    num_tokens, block_size = len(new.token_ids), capacity.block_size
    end = new.num_computed_tokens + new.num_new_tokens
    for field, value, low, high in (
        ("token_ids", num_tokens, 1, model.max_model_len),
        ("num_computed_tokens", new.num_computed_tokens, 0, num_tokens - 1),
        ("num_new_tokens", new.num_new_tokens, 1, num_tokens - new.num_computed_tokens),
        ("num_samples", new.num_samples, 1, capacity.max_num_seqs),
        ("block_table", len(new.block_table), -(-end // block_size), None),
        ("block_table", len(new.block_table), 1, limits.max_blocks),
    ):
        _check_between(f"{where}.{field}", value, low, high)
    _check_between("new_groups.num_prompt_tokens", new.num_prompt_tokens, 1, num_tokens)
    check_range(f"{where}.token_ids", new.token_ids, model.vocab_size)
    check_range(f"{where}.block_table", new.block_table, limits.num_gpu_blocks)
    if new.adapter and new.adapter not in limits.adapter_slots:
        raise InvalidArgument("new_groups.adapter", new.adapter, "an adapter that is loaded")
    _check_params(new.params, vocab_size=model.vocab_size)


def _check_between(field: str, value: float, low: float, high: float | None) -> None:
    allowed = f"at least {low}" if high is None else f"in [{low}, {high}]"
    if not low <= value <= (math.inf if high is None else high):
        raise InvalidArgument(field, value, allowed)


def _check_params(params: SamplingParams, *, vocab_size: int) -> None:
    where = "new_groups.sampling_params"
    if not (math.isfinite(params.temperature) and params.temperature >= 0):
        raise InvalidArgument(f"{where}.temperature", params.temperature, "finite, at least 0")
    for name, high in (("top_p", 1), ("typical_p", 1), ("repetition_penalty", MAX_REPETITION)):
        if not 0 < (value := getattr(params, name)) <= high:
            raise InvalidArgument(f"{where}.{name}", value, f"in (0, {high}]")
    for name in ("presence_penalty", "frequency_penalty"):
        _check_between(f"{where}.{name}", getattr(params, name), -MAX_PENALTY, MAX_PENALTY)
    _check_between(f"{where}.min_p", params.min_p, 0, 1)
    _check_between(f"{where}.top_k", params.top_k, 0, None)
    for name in ("num_logprobs", "num_prompt_logprobs"):
        if (count := getattr(params, name)) is not None:
            _check_between(f"{where}.{name}", count, 0, vocab_size)
    if params.logprob_token_ids and params.num_logprobs != 0:
        allowed = "0 with logprob_token_ids"
        raise InvalidArgument(f"{where}.num_logprobs", params.num_logprobs, allowed)
    _check_tokens(params, where=where, vocab_size=vocab_size)


def _check_tokens(params: SamplingParams, *, where: str, vocab_size: int) -> None:
    biased = [token_id for token_id, _ in params.logit_bias]
    bad_tokens = [token_id for run in params.bad_words for token_id in run]
    _check_between(f"{where}.logit_biases", len(biased), 0, MAX_BIASES)
    _check_between(f"{where}.bad_words", len(bad_tokens), 0, MAX_BAD_TOKENS)
    num_reported = len(params.logprob_token_ids)
    _check_between(f"{where}.logprob_token_ids", num_reported, 0, MAX_LOGPROB_TOKEN_IDS)
    for _, bias in params.logit_bias:
        _check_between(f"{where}.logit_biases", bias, -MAX_BIAS, MAX_BIAS)
    if not all(params.bad_words):
        raise InvalidArgument(f"{where}.bad_words", (), "runs of at least one token")
    if len(set(biased)) < len(biased):
        raise InvalidArgument(f"{where}.logit_bias_token_ids", "a token twice", "distinct tokens")
    for name, token_ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias_token_ids", biased),
        ("allowed_token_ids", params.allowed_token_ids),
        ("logprob_token_ids", params.logprob_token_ids),
        ("bad_words", bad_tokens),
    ):
        check_range(f"{where}.{name}", token_ids, vocab_size)
