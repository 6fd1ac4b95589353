"""The section of a step that splits sequences off others."""

from collections.abc import Sequence
from typing import NamedTuple

from signalbox_contract.columns import check_length, int32_list, int64_list, pack_int32, pack_int64
from signalbox_protos.worker.v1 import worker_pb2 as pb


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
    parents = int64_list(message.parent_seq_ids, "forks.parent_seq_ids")
    children = int64_list(message.child_seq_ids, "forks.child_seq_ids")
    branches = int32_list(message.branches, "forks.branches")
    token_ids = int32_list(message.token_ids, "forks.token_ids")
    check_length("forks.child_seq_ids", len(children), len(parents))
    check_length("forks.branches", len(branches), len(parents))
    check_length("forks.token_ids", len(token_ids), len(parents))
    return tuple(map(Fork, parents, children, branches, token_ids))
