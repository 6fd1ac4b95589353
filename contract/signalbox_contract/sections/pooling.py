"""The section of a step that says how new sequences are pooled, and the vectors of its result."""

from collections.abc import Mapping

from signalbox_contract.columns import (
    check_length,
    check_lowest,
    int32_list,
    int64_list,
    pack_float32,
    pack_int32,
    pack_int64,
    unpack_float32,
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
    )


def decode_pooling(message: pb.Pooling) -> Pooling:
    """Raises InvalidArgument if the columns differ in length or hold a negative number."""
    seq_ids = int64_list(message.seq_ids, "pooling.seq_ids")
    columns = []
    for name in PoolingParams._fields:
        column = int32_list(getattr(message, name), f"pooling.{name}")
        check_length(f"pooling.{name}", len(column), len(seq_ids))
        check_lowest(f"pooling.{name}", column, 0)
        columns.append(column)
    return dict(zip(seq_ids, map(PoolingParams, *columns), strict=True))


def encode_pooled(pooled: Mapping[int, Vector]) -> pb.Pooled:
    values = b"".join(map(pack_float32, pooled.values()))
    return pb.Pooled(seq_ids=pack_int64(list(pooled)), values=values)


def decode_pooled(message: pb.Pooled) -> dict[int, Vector]:
    """Raises InvalidArgument if the vectors are not of one length."""
    seq_ids = int64_list(message.seq_ids, "pooled.seq_ids")
    values = unpack_float32(message.values, "pooled.values")
    if not seq_ids or not len(values) or len(values) % len(seq_ids):
        count = f"{len(values)} elements for {len(seq_ids)} sequences"
        raise InvalidArgument("pooled.values", count, "as many for each sequence, at least 1")
    return dict(zip(seq_ids, values.reshape(len(seq_ids), -1), strict=True))
