"""Types of pooling: a prompt gives one vector, instead of tokens that continue it."""

from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.errors import InvalidArgument
from signalbox_protos.common.v1 import common_pb2 as pb

Task = Literal["embed", "classify"]
Activation = Literal["identity", "normalize", "sigmoid", "softmax"]
Vector = NDArray[np.float32]
"""[PoolingModel.num_outputs]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingModel:
    """Task and outputs of a model that pools; see common.proto."""

    task: Task
    num_outputs: int
    is_bidirectional: bool = False
    reads_all_tokens: bool = False
    activation: Activation = "identity"
    dimensions: tuple[int, ...] = ()


class PoolingParams(NamedTuple):
    """Parameters of pooling one prompt's hidden states; see common.proto."""

    num_first_segment_tokens: int = 0
    num_skipped_tokens: int = 0


def encode_model(model: PoolingModel) -> pb.PoolingModel:
    return pb.PoolingModel(**asdict(model))


def decode_model(message: pb.PoolingModel) -> PoolingModel:
    """Raises InvalidArgument for a task or a function that does not exist, and for no outputs."""
    if message.task not in get_args(Task):
        raise InvalidArgument("pooling.task", message.task, " or ".join(get_args(Task)))
    if message.activation not in get_args(Activation):
        expected = ", ".join(get_args(Activation))
        raise InvalidArgument("pooling.activation", message.activation, f"one of {expected}")
    if not message.num_outputs:
        raise InvalidArgument("pooling.num_outputs", 0, "at least 1")
    return PoolingModel(
        task=cast(Task, message.task),
        num_outputs=message.num_outputs,
        is_bidirectional=message.is_bidirectional,
        reads_all_tokens=message.reads_all_tokens,
        activation=cast(Activation, message.activation),
        dimensions=tuple(message.dimensions),
    )


def encode(params: PoolingParams) -> pb.PoolingParams:
    return pb.PoolingParams(**params._asdict())


def decode(message: pb.PoolingParams) -> PoolingParams:
    return PoolingParams(message.num_first_segment_tokens, message.num_skipped_tokens)
