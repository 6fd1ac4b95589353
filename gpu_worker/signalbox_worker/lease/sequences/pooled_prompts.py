"""Prompts that are pooled: checks of their section, rows of a batch, and vectors of a result.

A sequence of a pooling worker is a prompt alone. The batch that computes its last token has its
vector; nothing is drawn, so that no token becomes known and no step goes on with it.
"""

from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import PoolingModel, PoolingParams, Vector
from signalbox_contract.step import NewSequence, Step
from signalbox_worker.batch.arrays import FloatArray, Int32Array, Int64Array
from signalbox_worker.batch.pooling_rows import PoolingRows


def check_section(step: Step, model: PoolingModel | None) -> None:
    """Checks that all new sequences are pooled, or none is. Raises InvalidArgument."""
    if model is None:
        if step.pooling is not None:
            count = f"{len(step.pooling)} sequences"
            raise InvalidArgument("pooling", count, "unset: this worker generates")
        return
    pooling = step.pooling or {}
    if other := {new.seq_id for new in step.new}.symmetric_difference(pooling):
        expected = "the new sequences of the step: this worker pools"
        raise InvalidArgument("pooling.seq_ids", min(other), expected)
    if step.forks:
        raise InvalidArgument("forks", f"{len(step.forks)} forks", "unset: this worker pools")
    for new in step.new:
        _check_new(new, pooling[new.seq_id], model)


def _check_new(new: NewSequence, params: PoolingParams, model: PoolingModel) -> None:
    where, num_tokens = "new_groups.sequences", len(new.token_ids)
    if new.num_prompt_tokens != num_tokens:
        allowed = f"{num_tokens}: a sequence that is pooled has no output"
        raise InvalidArgument("new_groups.num_prompt_tokens", new.num_prompt_tokens, allowed)
    if model.reads_all_tokens and new.num_computed_tokens:
        allowed = "0: the vector reads all tokens"
        raise InvalidArgument(f"{where}.num_computed_tokens", new.num_computed_tokens, allowed)
    if model.is_bidirectional and new.num_new_tokens != num_tokens:
        allowed = f"{num_tokens}: attention sees both ways"
        raise InvalidArgument(f"{where}.num_new_tokens", new.num_new_tokens, allowed)
    for name, value, most in (
        ("num_first_segment_tokens", params.num_first_segment_tokens, num_tokens),
        ("num_skipped_tokens", params.num_skipped_tokens, num_tokens - 1),
    ):
        if not 0 <= value <= most:
            raise InvalidArgument(f"pooling.{name}", value, f"in [0, {most}]")
    if params.is_per_token and num_tokens > model.max_vector_tokens:
        allowed = f"unset of more than {model.max_vector_tokens} tokens"
        raise InvalidArgument("pooling.per_token_seq_ids", new.seq_id, allowed)
    if model.task == "token_embed" and not params.is_per_token:
        raise InvalidArgument("pooling.per_token_seq_ids", None, "all of seq_ids")
    if new.params.num_prompt_logprobs is not None:
        value = new.params.num_prompt_logprobs
        field = "new_groups.sampling_params.num_prompt_logprobs"
        raise InvalidArgument(field, value, "unset: this worker pools")
    if new.returns_logits:
        raise InvalidArgument("new_groups.returns_logits", True, "unset: this worker pools")


def rows_of(state: NDArray[Any], rows: Int64Array, num_new: Int64Array) -> PoolingRows:
    """Returns the rows of a batch that computes `num_new` [B] tokens of each sequence.

    Args:
        state: [B], state of each sequence before the batch is computed.
        rows: [B], row of each sequence.
    """
    return PoolingRows(
        slots=rows,
        is_last=state["num_computed"] + num_new == state["num_tokens"],
        num_skipped=np.ascontiguousarray(state["num_skipped"]),
        is_per_token=np.ascontiguousarray(state["is_per_token"]),
    )


def token_types(
    state: NDArray[Any], num_new: Int64Array, positions: Int64Array
) -> Int32Array | None:
    """Returns the segment of each of the T tokens; None if all are in segment 0."""
    ends = state["num_first_segment"]
    if not ends.any():
        return None
    ends = np.where(ends > 0, ends, state["num_tokens"])
    return (positions >= np.repeat(ends, num_new)).astype(np.int32)


def vectors_of(
    seq_ids: Int64Array, pooled: dict[int, FloatArray], *, failed: Container[int]
) -> dict[int, Vector]:
    """Returns the vectors, by sequence id, of the sequences that have not failed.

    Args:
        seq_ids: [B], ids of the sequences of the batch.
        pooled: vectors by index into the batch.
    """
    return {int(seq_ids[i]): vector for i, vector in pooled.items() if i not in failed}
