"""Requests that ask for beam search, and what they have to end with."""

from signalbox_contract.request import BeamSearchParams
from signalbox_contract.updates import FinishReason
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.fake_worker import expected_beams
from tests.scheduler_svc.make import EOS, make_request, outputs

PROMPT = [5, 6, 7, 8, 9]
STOPS = (EOS, *range(3, 97, 9))
"""Many, so that hypotheses end."""


def make_search(
    prompt: list[int] = PROMPT,
    *,
    width: int = 4,
    n: int = 2,
    max_tokens: int = 12,
    arrival: float = 0.0,
    stops: tuple[int, ...] = STOPS,
    min_tokens: int = 0,
    length_penalty: float = 1.0,
    early_stopping: bool = False,
) -> SequenceGroup:
    return make_request(
        prompt,
        n=n,
        max_tokens=max_tokens,
        arrival=arrival,
        stop_token_ids=stops,
        min_tokens=min_tokens,
        beam_search=BeamSearchParams(
            width=width, length_penalty=length_penalty, early_stopping=early_stopping
        ),
    )


def assert_found(group: SequenceGroup) -> None:
    assert group.request.beam_search is not None
    found = expected_beams(
        group.request.prompt_token_ids,
        group.request.beam_search,
        max_tokens=group.max_tokens,
        stop_token_ids=group.params.stop_token_ids,
        min_tokens=group.params.min_tokens,
    )[: group.request.num_sequences]
    assert group.failure is None
    assert outputs(group) == [one.token_ids for one in found]
    assert [seq.score for seq in group.sequences] == [float(one.score) for one in found]
    for seq in group.sequences:
        last = seq.output_token_ids[-1]
        is_stop = last in group.params.stop_token_ids
        is_early = len(seq.output_token_ids) < group.max_tokens
        assert is_stop or not is_early
        assert seq.stop_token_id == (last if is_stop else None)
        assert (seq.finish_reason is FinishReason.LENGTH) is not is_stop
        assert (seq.finish_reason is FinishReason.STOP) is (is_stop and last == EOS)
