"""What the router reads in a scheduler's columns."""

import pytest

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.worker.v1 import worker_pb2
from router.scheduler_codec import token_runs
from rpc.columns import pack_int32, pack_int64


def make_outputs(num_tokens: list[int], token_ids: list[int], *rows: int) -> pb.StepOutputs:
    """Two sequences' news, with log probabilities of some rows."""
    return pb.StepOutputs(
        handles=pack_int64([1, 2]),
        indices=pack_int32([0, 3]),
        num_tokens=pack_int32(num_tokens),
        token_ids=pack_int32(token_ids),
        logprobs=[worker_pb2.TokenLogprobs(row=row, logprob=-float(row)) for row in rows],
    )


@pytest.mark.parametrize(("lengths", "runs"), [([1, 1], [[5], [6]]), ([2, 1], [[5, 6], [7]])])
def test_tokens_are_cut_into_runs_with_their_log_probabilities(
    lengths: list[int], runs: list[list[int]]
) -> None:
    token_ids = [token_id for run in runs for token_id in run]
    plain = list(token_runs(make_outputs(lengths, token_ids)))
    assert [(run.handle, run.index, run.token_ids) for run in plain] == [
        (1, 0, runs[0]),
        (2, 3, runs[1]),
    ]
    last = len(token_ids) - 1
    rich = list(token_runs(make_outputs(lengths, token_ids, last)))
    assert [run.token_ids for run in rich] == runs
    assert [[one.logprob for one in run.logprobs] for run in rich] == [[], [-float(last)]]


@pytest.mark.parametrize("lengths", [[], [1], [1, 1, 1], [2], [2, 1], [2, 0, 0], [0, 1]])
def test_columns_that_do_not_fit_together_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"shorter|longer|tokens"):
        list(token_runs(make_outputs(lengths, [5, 6])))
