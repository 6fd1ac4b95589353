"""The section of a step that says how new sequences are pooled, and the vectors of its result."""

from collections.abc import Mapping

import numpy as np

from signalbox_contract.columns import (
    check_length,
    check_lowest,
    int32_list,
    int64_list,
    pack_float32,
    pack_int32,
    pack_int64,
    unpack_float32,
    unpack_int32,
)
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import PoolingParams, Vector
from signalbox_protos.worker.v1 import worker_pb2 as pb

Pooling = Mapping[int, PoolingParams]
"""Parameters of each new sequence of a step, by its id."""


def encode_pooling(pooling: Pooling) -> pb.Pooling:
    params = pooling.values()
    return pb.Pooling(
        seq_ids=pack_int64(list(pooling)),
        num_first_segment_tokens=pack_int32([one.num_first_segment_tokens for one in params]),
        num_skipped_tokens=pack_int32([one.num_skipped_tokens for one in params]),
        per_token_seq_ids=pack_int64([key for key, one in pooling.items() if one.is_per_token]),
    )


def decode_pooling(message: pb.Pooling) -> Pooling:
    """Raises InvalidArgument if the columns differ in length or hold a negative number."""
    seq_ids = int64_list(message.seq_ids, "pooling.seq_ids")
    columns = []
    for name in ("num_first_segment_tokens", "num_skipped_tokens"):
        column = int32_list(getattr(message, name), f"pooling.{name}")
        check_length(f"pooling.{name}", len(column), len(seq_ids))
        check_lowest(f"pooling.{name}", column, 0)
        columns.append(column)
    per_token = set(int64_list(message.per_token_seq_ids, "pooling.per_token_seq_ids"))
    if other := per_token.difference(seq_ids):
        raise InvalidArgument("pooling.per_token_seq_ids", min(other), "some of seq_ids")
    columns.append([key in per_token for key in seq_ids])
    return dict(zip(seq_ids, map(PoolingParams, *columns), strict=True))


def encode_pooled(pooled: Mapping[int, Vector]) -> pb.Pooled:
    values = b"".join(map(pack_float32, pooled.values()))
    sizes = [len(one) for one in pooled.values()]
    num_values = pack_int32(sizes) if len({*sizes}) > 1 else b""
    return pb.Pooled(seq_ids=pack_int64(list(pooled)), values=values, num_values=num_values)


def decode_pooled(message: pb.Pooled) -> dict[int, Vector]:
    """Raises InvalidArgument if the vectors are not of one length, or of those that are named."""
    seq_ids = int64_list(message.seq_ids, "pooled.seq_ids")
    values = unpack_float32(message.values, "pooled.values")
    if message.num_values:
        sizes = unpack_int32(message.num_values, "pooled.num_values")
        check_length("pooled.num_values", len(sizes), len(seq_ids))
        if sizes.min() < 1 or sizes.sum(dtype=np.int64) != len(values):
            found, allowed = f"{len(values)} elements", "as many as num_values counts"
            raise InvalidArgument("pooled.values", found, allowed)
        return dict(zip(seq_ids, np.split(values, np.cumsum(sizes)[:-1]), strict=True))
    if not seq_ids or not len(values) or len(values) % len(seq_ids):
        count = f"{len(values)} elements for {len(seq_ids)} sequences"
        raise InvalidArgument("pooled.values", count, "as many for each sequence, at least 1")
    return dict(zip(seq_ids, values.reshape(len(seq_ids), -1), strict=True))
