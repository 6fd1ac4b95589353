"""The sequences that a group begins with: one, or those that it had at a scheduler that is lost."""

from dataclasses import replace

from scheduler_svc.beam import BeamSearch
from scheduler_svc.sequence import Sequence, SequenceGroup, SequenceStatus
from scheduler_svc.sequence_ids import next_seq_id


def make_group(group: SequenceGroup, *, eos_token_ids: tuple[int, ...] = ()) -> SequenceGroup:
    """Gives a new group its first sequence, or those that its router knows, and its search.

    Args:
        eos_token_ids: the model's, which no hypothesis has before min_tokens.
    """
    group.sequences += _delivered(group) or [Sequence(seq_id=next_seq_id(), branch=0, group=group)]
    if group.beam_search is not None:
        group.search = BeamSearch(
            group.beam_search,
            stop_token_ids=group.params.stop_token_ids,
            min_tokens=group.params.min_tokens,
            eos_token_ids=eos_token_ids,
        )
        group.params = replace(
            group.params, temperature=0.0, num_logprobs=group.search.num_candidates
        )
        group.found = [
            Sequence(seq_id=next_seq_id(), branch=index, group=group)
            for index in range(group.num_sequences)
        ]
    return group


def _delivered(group: SequenceGroup) -> list[Sequence]:
    """Returns the sequences of a group that goes on, as if their worker had been lost."""
    return [
        Sequence(
            seq_id=next_seq_id(),
            branch=branch,
            group=group,
            status=SequenceStatus.FINISHED if reason else SequenceStatus.WAITING,
            output_token_ids=list(token_ids),
            finish_reason=reason,
        )
        for branch, (token_ids, reason) in enumerate(group.delivered)
    ]
