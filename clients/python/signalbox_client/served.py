"""What a router serves, how busy it is, and the tokens of its model, as plain values."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

from protos.inference.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is served."""

    name: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    has_chat_template: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy a router and what is behind it are; see inference.proto."""

    num_live_requests: int
    max_live_requests: int
    num_waiting_requests: int
    num_running_requests: int
    num_swapped_requests: int
    num_workers: int
    num_kv_blocks: int
    num_used_kv_blocks: int


class Token(NamedTuple):
    """A token of the served model."""

    id: int
    text: str


_Plain = TypeVar("_Plain", Model, Load)


def read_model(message: pb.GetModelResponse) -> Model:
    return _same_fields(Model, message)


def read_load(message: pb.GetLoadResponse) -> Load:
    return _same_fields(Load, message)


def read_tokens(message: pb.TokenizeResponse) -> list[Token]:
    return [Token(*pair) for pair in zip(message.token_ids, message.texts, strict=True)]


def _same_fields(kind: type[_Plain], message: Any) -> _Plain:
    return kind(**{field.name: getattr(message, field.name) for field in fields(kind)})
