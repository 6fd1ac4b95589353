"""What each field of a request may not be, restated from inference.proto, as strategies.

A field that is in no table fails `test_every_field_of_a_request_is_in_a_table`.
"""

from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from signalbox_protos.inference.v1 import inference_pb2 as pb

VOCAB_SIZE = 512
"""Of the simulated model."""
UINT32, UINT64 = 2**32 - 1, 2**64 - 1
INT32 = 2**31 - 1


def outside(low: float, high: float, *, low_is_allowed: bool = True) -> st.SearchStrategy[float]:
    """Returns numbers that are not in a range of float32, and those that are no numbers."""

    def is_bad(value: float) -> bool:
        return not (low <= value <= high) or (value == low and not low_is_allowed)

    drawn = st.floats(width=32) | st.sampled_from([float("nan"), float("inf"), float("-inf")])
    edges = [low] if not low_is_allowed else []
    return (drawn | st.sampled_from([*edges, high + 0.5, -1e30, 1e30])).filter(is_bad)


def above(most: int, top: int = UINT32) -> st.SearchStrategy[int]:
    return st.integers(most + 1, top) | st.sampled_from([most + 1, top])


def too_long(most_bytes: int) -> st.SearchStrategy[str]:
    repeated = st.sampled_from(["a", "é", "東", "\0", " "])
    count = st.integers(most_bytes + 1, most_bytes + 50) | st.just(1 << 20)
    return st.builds(lambda text, number: text * number, repeated, count)


def unprintable() -> st.SearchStrategy[str]:
    spoiled = st.characters(codec="utf-8").filter(lambda c: not (c.isascii() and c.isprintable()))
    return st.builds(lambda a, b, c: a + b + c, st.text("ab", max_size=5), spoiled, st.text("ab"))


def lists(bad: st.SearchStrategy[Any], good: Any) -> st.SearchStrategy[list[Any]]:
    """Returns lists with one bad value among good ones."""
    return st.builds(
        lambda before, value, after: [good] * before + [value] + [good] * after,
        st.integers(0, 3),
        bad,
        st.integers(0, 3),
    )


@dataclass(frozen=True, slots=True)
class Bad:
    """Values that are refused, and the field that is named if it is not the one that was set."""

    values: st.SearchStrategy[Any]
    named: str = ""


_S = "sampling_params."
BAD: dict[str, Bad] = {
    "request_id": Bad(unprintable() | too_long(128)),
    "text": Bad(st.just("")),
    "token_ids.ids": Bad(lists(above(VOCAB_SIZE - 1), 5) | st.just([])),
    "truncate_prompt_tokens": Bad(st.just(0)),
    "priority": Bad(st.integers(1001, INT32) | st.integers(-INT32 - 1, -1001)),
    "cache_salt": Bad(too_long(128)),
    "output_kind": Bad(st.integers(4, INT32) | st.integers(-INT32 - 1, -1)),
    "stream_interval": Bad(st.just(0)),
    "prefix_ttl.seconds": Bad(st.integers(-(1 << 63), -1), "prefix_ttl"),
    "prefix_ttl.nanos": Bad(st.integers(-INT32 - 1, -1), "prefix_ttl"),
    _S + "temperature": Bad(outside(0, 2)),
    _S + "top_p": Bad(outside(0, 1, low_is_allowed=False)),
    _S + "min_p": Bad(outside(0, 1)),
    _S + "typical_p": Bad(outside(0, 1, low_is_allowed=False)),
    _S + "presence_penalty": Bad(outside(-2, 2)),
    _S + "frequency_penalty": Bad(outside(-2, 2)),
    _S + "repetition_penalty": Bad(outside(0, 10, low_is_allowed=False)),
    _S + "max_tokens": Bad(st.just(0) | above(2048)),
    _S + "min_tokens": Bad(above(2048)),
    _S + "logprobs": Bad(above(20)),
    _S + "prompt_logprobs": Bad(above(20)),
    _S + "n": Bad(st.just(0) | above(64)),
    _S + "best_of": Bad(st.just(0) | above(64)),
    _S + "stop": Bad(lists(st.just("") | too_long(1024), "x") | st.just(["x"] * 65)),
    _S + "stop_token_ids": Bad(lists(above(VOCAB_SIZE - 1), 5) | st.just([5] * 257)),
    _S + "allowed_token_ids": Bad(lists(above(VOCAB_SIZE - 1), 5) | st.just([7, 5, 7])),
    _S + "logprob_token_ids": Bad(lists(above(VOCAB_SIZE - 1), 5) | st.just([5] * 129)),
    _S + "bad_words": Bad(
        lists(st.sampled_from(["", " ", "\n\t"]) | too_long(128), "x") | st.just(["x"] * 65)
    ),
    _S + "prediction": Bad(st.just("a " * 4096)),
    _S + "logit_bias.token_id": Bad(above(VOCAB_SIZE - 1)),
    _S + "logit_bias.bias": Bad(outside(-100, 100)),
    _S + "beam_search.width": Bad(st.just(0) | above(32)),
    _S + "beam_search.length_penalty": Bad(outside(-5, 5), _S + "beam_search.width"),
}
"""Of GenerateRequest. What is set alone: a beam search without a width is refused by its width."""

ANY: dict[str, st.SearchStrategy[Any]] = {
    "add_special_tokens": st.booleans(),
    "echo": st.booleans(),
    "session": st.text(max_size=100),
    _S + "top_k": st.integers(0, UINT32),
    _S + "seed": st.integers(0, UINT64),
    _S + "include_stop_str_in_output": st.booleans(),
    _S + "ignore_eos": st.booleans(),
    _S + "skip_special_tokens": st.booleans(),
    _S + "speculation": st.booleans(),
    "receipt": st.booleans(),
}
"""Fields of which every value is legal."""

ELSEWHERE = {
    "model": "NOT_FOUND instead",
    _S + "structured_output": "compiled with limits, see test_structured_output_check.py",
    _S + "beam_search.early_stopping": "needs a width",
}


def leaves(descriptor: Descriptor, prefix: str = "") -> list[str]:
    """Returns the paths of all fields that are no messages, or that are looked at elsewhere."""
    found: list[str] = []
    for field in descriptor.fields:
        path = prefix + field.name
        if path in ELSEWHERE or field.type != FieldDescriptor.TYPE_MESSAGE:
            found.append(path)
        else:
            found += leaves(field.message_type, path + ".")
    return found


def put(message: Message, path: str, value: Any) -> None:
    """Sets a field by its path; of a repeated message, in one element."""
    *parents, name = path.split(".")
    target: Any = message
    for parent in parents:
        target = getattr(target, parent)
        target = target.add() if hasattr(target, "add") else target
        target.SetInParent()
    if isinstance(value, list):
        getattr(target, name).extend(value)
    else:
        setattr(target, name, value)


def make_request() -> pb.GenerateRequest:
    """Returns a request that is served in a few steps."""
    return pb.GenerateRequest(
        text="Hello", sampling_params=pb.SamplingParams(max_tokens=3, temperature=0.5)
    )


def make_chat() -> pb.ChatRequest:
    hello = [pb.ContentPart(text="Hello")]
    messages = [pb.ChatMessage(role=pb.CHAT_ROLE_USER, content=hello)]
    return pb.ChatRequest(messages=messages, sampling_params=pb.SamplingParams(max_tokens=3))


def make_rich() -> pb.GenerateRequest:
    """Returns a request with most fields set."""
    request = pb.GenerateRequest(
        model="simulated", priority=-5, cache_salt="salt", echo=True, stream_interval=2
    )
    request.token_ids.ids.extend(range(40))
    params = request.sampling_params
    params.CopyFrom(
        pb.SamplingParams(
            temperature=0.7, top_p=0.9, top_k=20, min_p=0.1, seed=3, max_tokens=5, min_tokens=2,
            stop=["zz"], stop_token_ids=[7], logprobs=2, prompt_logprobs=1, n=2, best_of=3,
            presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.5, typical_p=0.9,
            bad_words=["q"], logprob_token_ids=[3, 500],
        )
    )  # fmt: skip
    params.logit_bias.add(token_id=9, bias=-3)
    return request
