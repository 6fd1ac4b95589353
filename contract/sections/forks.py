"""The section of a step that splits sequences off others."""

from collections.abc import Sequence
from typing import NamedTuple

from contract.columns import check_lengths, int32_list, int64_list, pack_int32, pack_int64
from protos.worker.v1 import worker_pb2 as pb


class Fork(NamedTuple):
    """`child` continues the computed tokens of `parent` with `token_id`."""

    parent: int
    child: int
    branch: int
    token_id: int


def encode_forks(forks: Sequence[Fork]) -> pb.Forks:
    return pb.Forks(
        parent_seq_ids=pack_int64([fork.parent for fork in forks]),
        child_seq_ids=pack_int64([fork.child for fork in forks]),
        branches=pack_int32([fork.branch for fork in forks]),
        token_ids=pack_int32([fork.token_id for fork in forks]),
    )


def decode_forks(message: pb.Forks) -> tuple[Fork, ...]:
    """Raises InvalidArgument if the columns differ in length."""
    parents, children = int64_list(message.parent_seq_ids), int64_list(message.child_seq_ids)
    branches, token_ids = int32_list(message.branches), int32_list(message.token_ids)
    check_lengths("forks", len(parents), len(children), len(branches), len(token_ids))
    return tuple(map(Fork, parents, children, branches, token_ids))
