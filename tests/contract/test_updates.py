"""What a router reads of a scheduler's updates is what the scheduler has put in."""

from dataclasses import replace

import pytest

from signalbox_contract import updates
from signalbox_contract.errors import Code, InvalidArgument
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.updates import (
    AdmittedRequest,
    FinishedRequest,
    FinishedSequence,
    FinishReason,
    PromptRun,
    RequestFailure,
    RequestUpdates,
    SpeculationUse,
    Timings,
    Usage,
)
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb

VALUES = TokenLogprobs(-1.5, 2, [7, 5], [-0.5, -1.5])
FAILURE = RequestFailure(Code.UNAVAILABLE, "no worker serves", 1.5)
TOO_LONG = RequestFailure(Code.INVALID_ARGUMENT, "too long", exceeded_window=12)


def sent(given: RequestUpdates) -> RequestUpdates:
    return updates.decode(pb.RequestUpdates.FromString(updates.encode(given).SerializeToString()))


def make_updates(num_tokens: list[int], token_ids: list[int], *rows: int) -> RequestUpdates:
    """News of two sequences, with log probabilities of some rows."""
    return RequestUpdates(
        handles=[1, 2],
        indices=[0, 3],
        num_tokens=num_tokens,
        token_ids=token_ids,
        logprobs=[(row, TokenLogprobs(-float(row), 1, [], [])) for row in rows],
    )


@pytest.mark.parametrize("failure", [None, FAILURE, TOO_LONG])
@pytest.mark.parametrize("reason", FinishReason)
def test_updates_come_as_they_were_sent(
    reason: FinishReason, failure: RequestFailure | None
) -> None:
    given = RequestUpdates(
        handles=[1 << 40, 2],
        indices=[3, 0],
        token_ids=[9, 8],
        logprobs=[(1, VALUES)],
        prompt_logprobs=[PromptRun(3, 1, [VALUES, VALUES])],
        finished_sequences=[
            FinishedSequence(handle=1, index=2, reason=reason, stop_token_id=0),
            FinishedSequence(handle=1, index=0, reason=reason, error_message="no", score=-0.5),
        ],
        finished_requests=[
            FinishedRequest(
                handle=1,
                failure=failure,
                usage=Usage(1, 2, 3),
                timings=Timings(4, 5, 6, 7),
                speculation=SpeculationUse(1, 5, 4, 3, 2),
                arithmetic="ab" * 32,
            )
        ],
        admitted=[AdmittedRequest(5, 17)],
    )
    assert sent(given) == given
    assert not updates.encode(given).num_tokens, "a run of one token has no length on the wire"


def test_updates_of_nothing_are_an_empty_message() -> None:
    assert updates.encode(RequestUpdates()).ByteSize() == 0
    assert sent(RequestUpdates()) == RequestUpdates()


def test_a_reason_and_a_code_of_a_later_version_are_an_error() -> None:
    message = pb.RequestUpdates(
        finished_sequences=[pb.FinishedSequence(handle=1, reason=99)],  # type: ignore[arg-type]
        finished_requests=[pb.FinishedRequest(handle=1, code=99)],
    )
    read = updates.decode(message)
    assert read.finished_sequences[0].reason is FinishReason.ERROR
    assert read.finished_requests[0].failure == RequestFailure(Code.UNKNOWN, "")


@pytest.mark.parametrize(
    ("lengths", "runs"),
    [([], [[5], [6]]), ([1, 1], [[5], [6]]), ([2, 1], [[5, 6], [7]]), ([0, 2], [[], [5, 6]])],
)
def test_tokens_are_cut_into_runs_with_their_log_probabilities(
    lengths: list[int], runs: list[list[int]]
) -> None:
    token_ids = [token_id for run in runs for token_id in run]
    plain = list(sent(make_updates(lengths, token_ids)).runs())
    assert plain == [(1, 0, runs[0], []), (2, 3, runs[1], [])]
    last = len(token_ids) - 1
    rich = list(sent(make_updates(lengths, token_ids, last)).runs())
    assert [token_ids for _, _, token_ids, _ in rich] == runs
    assert [[one.logprob for one in values] for *_, values in rich] == [[], [-float(last)]]


@pytest.mark.parametrize(
    ("lengths", "field"),
    [
        ([1], "num_tokens"),
        ([1, 1, 1], "num_tokens"),
        ([-1, 3], "num_tokens"),
        ([2, 1], "token_ids"),
        ([0, 1], "token_ids"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(lengths: list[int], field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        sent(make_updates(lengths, [5, 6]))


@pytest.mark.parametrize("rows", [[], [0]])
@pytest.mark.parametrize("token_ids", [[], [5], [5, 6, 7]])
def test_one_token_is_expected_of_each_run_without_a_length(
    token_ids: list[int], rows: list[int]
) -> None:
    with pytest.raises(InvalidArgument, match=r"^token_ids: "):
        sent(make_updates([], token_ids, *rows))


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"indices": [0]}, "indices"),
        ({"indices": [0, -1]}, "indices"),
        ({"handles": [1]}, "indices"),
        ({"token_ids": [5, -1]}, "token_ids"),
    ],
)
def test_a_column_that_no_run_can_have_is_refused(
    columns: dict[str, list[int]], field: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        sent(replace(make_updates([], [5, 6]), **columns))  # type: ignore[arg-type]
