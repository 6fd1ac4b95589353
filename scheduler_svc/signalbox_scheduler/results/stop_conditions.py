"""Drawn tokens that end a sequence: stop tokens, and the last that it may have."""

from signalbox_contract.updates import FinishReason
from signalbox_scheduler.requests.sequence_group import Sequence


def end_reason(seq: Sequence, *, eos_token_ids: frozenset[int]) -> FinishReason | None:
    """Says whether the newest token ends its sequence, and notes a stop token."""
    token_id = seq.output_token_ids[-1]
    reason = stop_reason(seq, token_id, eos_token_ids=eos_token_ids)
    if reason is not None:
        seq.stop_token_id = token_id
        return reason
    return FinishReason.LENGTH if seq.num_tokens >= seq.group.max_length else None


def stop_reason(
    seq: Sequence, token_id: int, *, eos_token_ids: frozenset[int]
) -> FinishReason | None:
    """Says whether a token that was just drawn ends its sequence."""
    params = seq.group.params
    if token_id not in params.stop_token_ids or len(seq.output_token_ids) <= params.min_tokens:
        return None
    return FinishReason.STOP if token_id in eos_token_ids else FinishReason.STOP_TOKEN
