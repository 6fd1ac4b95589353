"""Anything that clients may send, over a real router, scheduler and simulated worker.

tests/hostile/inflated/test_inflated.py measures what large requests cost, on a router apart.
FUZZ_REQUESTS says how many requests there are in all: 500 by default, 100,000 before a release.
"""

import asyncio
import gc
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signalbox_protos.inference.v1 import inference_pb2 as pb
from tests.integration.fuzzing import bad_values, chat_values
from tests.integration.fuzzing.bad_values import ANY, BAD, make_chat, make_request, make_rich
from tests.integration.fuzzing.fuzzed_stack import (
    MAX_MODEL_LEN,
    NUM_BLOCKS,
    OUTAGES_FORGIVEN,
    Outcome,
    Target,
    fuzzed_stack,
    resident_mib,
)
from tests.waiting import EVENT_S

NUM_REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "500"))
pytestmark = pytest.mark.timeout(3600 + NUM_REQUESTS // 5)
StatusCode = grpc.StatusCode
REFUSALS = {
    StatusCode.INVALID_ARGUMENT,
    StatusCode.NOT_FOUND,  # another model's name
    StatusCode.RESOURCE_EXHAUSTED,  # too long for the blocks that there are
    StatusCode.FAILED_PRECONDITION,  # what the model's template cannot show
    StatusCode.ALREADY_EXISTS,  # the id of the request before, which the client has just left
    StatusCode.UNIMPLEMENTED,
}
METHODS = ("Generate", "Chat", "Tokenize", "Detokenize", "GetModel", "ListModels", "GetLoad")


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with fuzzed_stack() as target:
        yield target


def fuzz(share: float) -> Callable[[Any], Any]:
    """Runs a test on its share of all requests."""
    return settings(
        max_examples=max(10, int(NUM_REQUESTS * share)),
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def assert_no_fault(outcome: Outcome) -> None:
    assert outcome.code in {StatusCode.OK, *REFUSALS}, outcome
    assert not outcome.fields or outcome.code is StatusCode.INVALID_ARGUMENT
    assert "Error" not in outcome.message, "no exception's name is told"


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Returns a message with a few bytes changed, cut out, repeated or put in."""
    for _ in range(rng.randrange(1, 4)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.randrange(1, 9))
        match rng.randrange(5):
            case 0:
                data = data[:start] + rng.randbytes(end - start) + data[end:]
            case 1:
                data = data[:start] + data[end:]
            case 2:
                data = data[:end] + data[start:]
            case 3:
                data = data[:start] + rng.randbytes(rng.randrange(1, 9)) + data[start:]
            case 4:
                data = data[:start]
    return data


VALID = {
    "Generate": [make_request().SerializeToString(), make_rich().SerializeToString()],
    "Chat": [make_chat().SerializeToString()],
    "Tokenize": [pb.TokenizeRequest(text="Hello", return_texts=True).SerializeToString()],
    "Detokenize": [pb.DetokenizeRequest(token_ids=[72, 105]).SerializeToString()],
}


def test_random_bytes_are_refused_or_mean_something(target: Target) -> None:
    @fuzz(0.2)
    @given(st.sampled_from(METHODS), st.binary(max_size=120))
    def send(method: str, data: bytes) -> None:
        assert_no_fault(target.send(method, data))

    with target.watched():
        send()


def test_valid_requests_with_some_bytes_changed_do_no_harm(target: Target) -> None:
    seen: Counter[StatusCode] = Counter()

    @fuzz(0.35)
    @given(st.sampled_from(sorted(VALID)), st.randoms(use_true_random=False))
    def send(method: str, rng: random.Random) -> None:
        outcome = target.send(method, mutate(rng.choice(VALID[method]), rng))
        assert_no_fault(outcome)
        seen[outcome.code] += 1

    with target.watched():
        send()
    assert seen[StatusCode.OK] and seen[StatusCode.INVALID_ARGUMENT]


def test_every_field_of_a_request_is_in_a_table() -> None:
    known = {*BAD, *ANY, *bad_values.ELSEWHERE}
    assert set(bad_values.leaves(pb.GenerateRequest.DESCRIPTOR)) == known


def test_a_value_that_is_not_allowed_is_refused_by_the_name_of_its_field(target: Target) -> None:
    @fuzz(0.25)
    @given(st.sampled_from(sorted(BAD)), st.data())
    def send(path: str, data: st.DataObject) -> None:
        request = make_request()
        bad_values.put(request, path, data.draw(BAD[path].values, label=path))
        outcome = target.send("Generate", request.SerializeToString())
        assert outcome.code is StatusCode.INVALID_ARGUMENT, outcome
        assert outcome.fields == (BAD[path].named or path,)
        assert len(outcome.message) < 2000, "a value of a megabyte is not repeated"

    with target.watched():
        send()


def test_where_every_value_is_allowed_every_value_is_served(target: Target) -> None:
    @fuzz(0.08)
    @given(st.fixed_dictionaries({}, optional=ANY))
    def send(values: dict[str, Any]) -> None:
        request = make_request()
        for path, value in values.items():
            bad_values.put(request, path, value)
        assert target.send("Generate", request.SerializeToString()).code is StatusCode.OK

    with target.watched():
        send()


def test_every_field_that_only_a_chat_has_is_in_a_table() -> None:
    chat, message = pb.ChatRequest.DESCRIPTOR, pb.ChatMessage.DESCRIPTOR
    own = {*chat.fields_by_name} - {*pb.GenerateRequest.DESCRIPTOR.fields_by_name}
    fields = own - {"messages"} | {f"messages.{name}" for name in message.fields_by_name}
    assert fields == {*chat_values.BAD, *chat_values.ANY}


def test_a_chat_that_is_not_allowed_is_refused_by_the_name_of_its_field(target: Target) -> None:
    bad = [(name, one) for name, several in chat_values.BAD.items() for one in several]

    @fuzz(0.1)
    @given(st.sampled_from(bad), st.data())
    def send(chosen: tuple[str, bad_values.Bad], data: st.DataObject) -> None:
        name, one = chosen
        request = make_chat()
        request.MergeFrom(data.draw(one.values, label=name))
        outcome = target.send("Chat", request.SerializeToString())
        assert outcome.code is StatusCode.INVALID_ARGUMENT, outcome
        assert outcome.fields == (one.named or name,)

    with target.watched():
        send()


def test_any_conversation_is_answered(target: Target) -> None:
    @fuzz(0.08)
    @given(chat_values.chats())
    def send(request: pb.ChatRequest) -> None:
        outcome = target.send("Chat", request.SerializeToString())
        if outcome.code is StatusCode.RESOURCE_EXHAUSTED:  # a text that is longer than the pool
            assert "fits no worker's KV cache" in outcome.message, outcome
            return
        assert outcome.code is StatusCode.OK, outcome

    with target.watched():
        send()


def test_a_model_that_is_not_served_is_not_found(target: Target) -> None:
    places = st.sampled_from(["/etc/passwd", "../model", "http://127.0.0.1:1/", "simulated\0", "~"])

    @fuzz(0.03)
    @given(places | st.text(min_size=1, max_size=200), st.sampled_from(["Generate", "Tokenize"]))
    def send(name: str, method: str) -> None:
        request = make_request() if method == "Generate" else pb.TokenizeRequest(text="a")
        request.model = name
        assert target.send(method, request.SerializeToString()).code is StatusCode.NOT_FOUND

    with target.watched():
        send()


def test_unknown_fields_change_nothing(target: Target) -> None:
    unknown = pb.SamplingParams(max_tokens=1).SerializeToString()
    varint, length_delimited = b"\xf8\xff\x01\x05", b"\xfa\xff\x01" + bytes([len(unknown)])
    request = make_request()
    request.sampling_params.seed = 5
    plain = request.SerializeToString()
    outcomes = [
        target.send("Generate", data)
        for data in (plain, plain + varint, length_delimited + unknown + plain)
    ]
    texts = {
        "".join(d.text for a in o.answers for d in pb.GenerateResponse.FromString(a).outputs)
        for o in outcomes
    }
    assert {outcome.code for outcome in outcomes} == {StatusCode.OK}
    assert len(texts) == 1


def test_text_of_any_characters_is_taken_and_given_back(target: Target) -> None:
    awkward = st.sampled_from(
        ["\0", "\x1b[2J", "e\u0301\u0302", "😀", "\u202e", "\ufeff", "\uffff"]
    )
    texts = st.lists(awkward | st.text(max_size=8), min_size=1, max_size=6).map("".join)

    @fuzz(0.07)
    @given(texts.filter(bool))
    def send(text: str) -> None:
        asked = pb.TokenizeRequest(text=text, add_special_tokens=False)
        (answer,) = target.send("Tokenize", asked.SerializeToString()).answers
        ids = pb.TokenizeResponse.FromString(answer).token_ids
        asked_back = pb.DetokenizeRequest(token_ids=ids, skip_special_tokens=False)
        (answer,) = target.send("Detokenize", asked_back.SerializeToString()).answers
        assert pb.DetokenizeResponse.FromString(answer).text == text
        request = make_request()
        request.text = text
        assert target.send("Generate", request.SerializeToString()).code is StatusCode.OK

    with target.watched():
        send()


@pytest.mark.parametrize(
    ("num_tokens", "n", "code"),
    [
        (MAX_MODEL_LEN, 1, StatusCode.INVALID_ARGUMENT),
        (3 * MAX_MODEL_LEN, 1, StatusCode.INVALID_ARGUMENT),
        (NUM_BLOCKS * 16 + 1, 1, StatusCode.INVALID_ARGUMENT),  # past the effective window
        (NUM_BLOCKS * 16 - 1, 1, StatusCode.RESOURCE_EXHAUSTED),  # with max_tokens it fits no pool
        (100, 64, StatusCode.RESOURCE_EXHAUSTED),  # a legal n that needs more blocks than exist
        (100, 1, StatusCode.OK),
    ],
)
def test_what_can_never_fit_is_refused_at_once(
    target: Target, num_tokens: int, n: int, code: StatusCode
) -> None:
    request = make_request()
    request.token_ids.ids.extend([5] * num_tokens)
    request.sampling_params.n, request.sampling_params.max_tokens = n, 60
    with target.watched():
        outcome = target.send("Generate", request.SerializeToString())
    assert outcome.code is code, outcome
    if code is StatusCode.INVALID_ARGUMENT:
        assert str(num_tokens) in outcome.message
        window = MAX_MODEL_LEN if num_tokens >= MAX_MODEL_LEN else NUM_BLOCKS * 16
        assert str(window) in outcome.message


def test_a_message_of_five_mebibytes_is_refused(target: Target) -> None:
    request = make_request()
    request.text = "a" * (5 << 20)
    with target.watched():
        outcome = target.send("Generate", request.SerializeToString())
    assert outcome.code is StatusCode.RESOURCE_EXHAUSTED


BODIES = {
    "/v1/completions": {"prompt": "Hello", "max_tokens": 3, "logit_bias": {"5": 1}, "seed": 1},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 3,
        "stop": ["zz"],
        "stream": True,
    },
    "/v1/responses": {
        "instructions": "Hello",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
        "max_output_tokens": 3,
        "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}],
        "tool_choice": "auto",
    },
    "/v1/messages": {
        "system": [{"type": "text", "text": "Hello"}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "max_tokens": 3,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
    },
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [72, 105]},
}


def mutate_text(text: str, rng: random.Random) -> bytes:
    """Returns a body with a character replaced, so that most are still JSON, or anything else."""
    if rng.random() < 0.3:
        return mutate(text.encode(), rng)
    place = rng.randrange(len(text))
    return (text[:place] + chr(rng.randrange(32, 300)) + text[place + 1 :]).encode()


def test_http_bodies_with_some_bytes_changed_do_no_harm(target: Target) -> None:
    http = target.services.router.http
    assert http is not None
    seen: Counter[int] = Counter()
    headers = {"content-type": "application/json"}
    with httpx2.Client(
        base_url=f"http://{http.address}", timeout=EVENT_S, headers=headers
    ) as client:

        @fuzz(0.05)
        @given(st.sampled_from(sorted(BODIES)), st.randoms(use_true_random=False))
        def send(path: str, rng: random.Random) -> None:
            content = mutate_text(json.dumps(BODIES[path]), rng)
            for _ in range(OUTAGES_FORGIVEN):  # as `Services.send` does
                answer = client.post(path, content=content)
                if answer.status_code != 503:
                    break
                time.sleep(1)
            assert answer.status_code in (200, 400, 404, 429), answer.text
            seen[answer.status_code] += 1

        with target.watched():
            send()
    assert seen[200] and seen[400]


def census() -> Counter[str]:
    """Counts what lives of ours, and of the loop's."""
    gc.collect()
    # asyncio itself keeps cancelled timers until they are many.
    loops = ("_asyncio.", "asyncio.queues", "asyncio.locks")
    parts = ("contract", "router", "scheduler", "worker", "rpc")
    ours = (*(f"signalbox_{part}." for part in parts), *loops)
    names = (f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    return Counter(name for name in names if name.startswith(ours))


def more_than(before: Counter[str]) -> dict[str, int]:
    """Returns how many more than 20 live now, by type."""
    return {name: n - before[name] for name, n in census().items() if n > before[name] + 20}


async def tasks_to_end(at_most: int) -> None:
    """Returns when no more tasks are left; after `EVENT_S` in any case, as a leak leaves them."""
    ends = time.monotonic() + EVENT_S
    while len(asyncio.all_tasks()) > at_most and time.monotonic() < ends:  # noqa: ASYNC110 (no event)
        await asyncio.sleep(0.05)


async def count_tasks() -> int:
    return len(asyncio.all_tasks())


def test_requests_of_any_kind_leave_nothing_in_memory(target: Target) -> None:
    rng = random.Random(1)
    methods = rng.choices(sorted(VALID), k=max(100, NUM_REQUESTS // 15))
    valid = [(method, rng.choice(VALID[method])) for method in methods]
    requests = valid + [(method, mutate(data, rng)) for method, data in valid]
    num_tasks = target.loop.run(count_tasks())

    def send_all(num_tasks: int) -> None:
        for method, data in requests:
            target.send(method, data)
        target.wait_until_idle()
        target.loop.run(tasks_to_end(num_tasks + 10))

    send_all(num_tasks)  # caches fill, pools grow
    send_all(num_tasks)
    before, before_mib = census(), resident_mib()
    send_all(before["_asyncio.Task"])
    ends = time.monotonic() + EVENT_S
    # A collection that another thread has begun makes gc.collect() do nothing.
    while (grown := more_than(before)) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not grown, "less than what one request in five leaves"
    assert resident_mib() - before_mib < 16
