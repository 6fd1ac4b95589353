"""Types of pooling: a prompt gives one vector, instead of tokens that continue it."""

from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.errors import InvalidArgument
from signalbox_protos.common.v1 import common_pb2 as pb

Task = Literal["embed", "classify", "token_embed"]
Activation = Literal["identity", "normalize", "sigmoid", "softmax"]
Vector = NDArray[np.float32]
"""[PoolingModel.num_outputs], or [num_tokens * num_token_outputs] of a vector for each token."""
_MAX_TOKEN_VECTOR_BYTES = 32 << 20
"""Most bytes of the vectors of one prompt's tokens, in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingModel:
    """Task and outputs of a model that pools; see common.proto."""

    task: Task
    num_outputs: int
    is_bidirectional: bool = False
    reads_all_tokens: bool = False
    activation: Activation = "identity"
    dimensions: tuple[int, ...] = ()
    num_token_outputs: int = 0

    @property
    def max_vector_tokens(self) -> int:
        """Most tokens of a prompt that has a vector for each; 0 if the model makes none."""
        size = 4 * self.num_token_outputs
        return _MAX_TOKEN_VECTOR_BYTES // size if size else 0


class PoolingParams(NamedTuple):
    """Parameters of pooling one prompt's hidden states; see common.proto."""

    num_first_segment_tokens: int = 0
    num_skipped_tokens: int = 0
    is_per_token: bool = False


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
        num_token_outputs=message.num_token_outputs,
    )


def encode(params: PoolingParams) -> pb.PoolingParams:
    return pb.PoolingParams(**params._asdict())


def decode(message: pb.PoolingParams) -> PoolingParams:
    return PoolingParams(
        message.num_first_segment_tokens, message.num_skipped_tokens, message.is_per_token
    )
