"""Log probabilities of one token, on their way from a worker to a router, with their codec."""

from typing import NamedTuple

from signalbox_protos.common.v1 import common_pb2 as pb


class TokenLogprobs(NamedTuple):
    """Log probabilities at one position; the alternatives are the most likely tokens."""

    logprob: float
    """Natural logarithm, before temperature and filters."""
    rank: int
    """Number of tokens that are at least as likely, the token itself included."""
    top_token_ids: list[int]
    top_logprobs: list[float]


class PromptLogprobs(NamedTuple):
    """Log probabilities of a run of one sequence's prompt."""

    seq_id: int
    first_position: int
    logprobs: list[TokenLogprobs]


def encode(values: TokenLogprobs, *, row: int) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        row=row,
        logprob=values.logprob,
        rank=values.rank,
        top_token_ids=values.top_token_ids,
        top_logprobs=values.top_logprobs,
    )


def decode(message: pb.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(
        message.logprob, message.rank, list(message.top_token_ids), list(message.top_logprobs)
    )
