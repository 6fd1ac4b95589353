"""What is refused, with which code and in which words."""

import json
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signalbox_protos.scheduler.v1 import scheduler_pb2
from tests.router.apis.openai.clients import HI, Http, make_http
from tests.router.apis.openai.test_answers import TOOL
from tests.router.fakes import ids_of, make_backend, request_finished, step
from tests.router.stack import Outputs

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def refused(http: Http, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    """Returns the status and the error, which has OpenAI's fields."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await http.raw.post(path, content=content)
    (error,) = answer.json().values()
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert isinstance(error["type"], str)
    assert answer.headers["x-request-id"]
    return answer.status_code, error


BAD_COMPLETIONS: list[tuple[Any, str | None]] = [
    (b"", None),
    (b"{", None),
    (b"\xff\xfe", None),
    (b'{"prompt": "\\ud800"}', None),
    (b"[" * 100_000, None),
    (b'{"a":' * 100_000, None),
    ([], None),
    ("text", None),
    ({}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": ["a"] * 1025}, "prompt"),
    ({"prompt": "a" * 100_000}, "prompt"),
    ({"prompt": "a", "temperature": "hot"}, "temperature"),
    ({"prompt": "a", "temperature": 2.5}, "temperature"),
    (b'{"prompt": "a", "temperature": NaN}', "temperature"),
    ({"prompt": "a", "temperature": 1e300}, "temperature"),
    ({"prompt": "a", "top_p": 0}, "top_p"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 2**40}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
    ({"prompt": "a", "max_tokens": True}, "max_tokens"),
    ({"prompt": "a", "n": 0}, "n"),
    ({"prompt": "a", "n": 1000}, "n"),
    ({"prompt": "a", "seed": 2**64}, "seed"),
    ({"prompt": "a", "seed": -(2**64)}, "seed"),
    ({"prompt": "a", "stop": [""]}, "stop"),
    ({"prompt": "a", "stop": ["x"] * 65}, "stop"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias"),
    ({"prompt": "a", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ({"prompt": "a", "length_penalty": 0.5}, "length_penalty"),
    ({"prompt": "a", "response_format": {"type": "json_schema"}},
     "response_format.json_schema"),
    ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format.type"),
    ({"prompt": "a", "guided_regex": "x", "guided_choice": ["x"]}, "response_format"),
    ({"prompt": "a", "response_format": {"type": "json_schema",
                                         "json_schema": {"schema": {"type": "x"}}}},
     "response_format.json_schema.schema"),
    ({"prompt": "a", "structured_outputs": {"json": {"type": "x"}}}, "structured_outputs.json"),
    ({"prompt": "a", "structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"prompt": "a", "guided_regex": "("}, "guided_regex"),
    ({"prompt": "a", "guided_json": {"type": "x"}}, "guided_json"),
    ({"prompt": "a", "guided_choice": [""]}, "guided_choice"),
    ({"prompt": "a", "guided_choice": ["b"], "use_beam_search": True}, "guided_choice"),
    ({"prompt": "a", "use_beam_search": True, "best_of": 99}, "best_of"),
    ({"prompt": "a", "use_beam_search": True, "n": 33}, "n"),
    ({"prompt": "a", "use_beam_search": True, "length_penalty": 9.0}, "length_penalty"),
    ({"prompt": "a", "echo": True, "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "echo": True, "prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt": "a", "stop_token_ids": [10**9]}, "stop_token_ids"),
    ({"prompt": "a", "min_tokens": 9, "max_tokens": 5}, "min_tokens"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "nonsense": 1}, "nonsense"),
    ({"prompt": "a", "request_id": "a\nb"}, "request_id"),
    ({"prompt": "a", "request_id": "東京"}, "request_id"),
    ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    ({"prompt": "a", "priority": 10**6}, "priority"),
]  # fmt: skip


async def test_a_bad_completion_is_a_400_that_names_the_field() -> None:
    async with make_http(unknown_fields="refuse") as http:
        for body, param in BAD_COMPLETIONS:
            status, error = await refused(http, COMPLETIONS, body)
            assert (status, error["type"]) == (400, "invalid_request_error"), body
            assert error["param"] == param, body
            assert param is None or param in error["message"], "the message names it as well"
        assert http.stack.scheduler.added == []


@pytest.mark.parametrize(
    ("path", "fields", "allowed"),
    [
        (COMPLETIONS, {"max_tokens": 10**30}, f"[1, {2**32 - 1}]"),
        (COMPLETIONS, {"n": 10**30}, "[1, 64]"),
        (COMPLETIONS, {"seed": 10**30}, "[0, "),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "[0, 20]"),  # of another API's field
    ],
)
async def test_a_number_past_its_type_is_refused_with_both_bounds(
    http: Http, path: str, fields: dict[str, Any], allowed: str
) -> None:
    body = {"messages": HI} if path == CHAT else {"prompt": "a"}
    _, error = await refused(http, path, body | fields)
    assert allowed in error["message"]
    assert http.stack.scheduler.added == []


async def test_every_key_that_is_no_token_is_named(http: Http) -> None:
    biases = {"good": 1, "5": 1, "bad": 1}
    _, error = await refused(http, COMPLETIONS, {"prompt": "a", "logit_bias": biases})
    assert "['good', 'bad']" in error["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": [5] * 2048}, "prompt"),
        (COMPLETIONS, {"prompt": "a b " * 2000}, "prompt"),
        (COMPLETIONS, {"prompt": "a" * 1_000_000}, "prompt"),
        (COMPLETIONS, {"prompt": [5] * 2000, "max_tokens": 49}, "max_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "a b " * 2000}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 1_000_000}]}, "messages"),
        (CHAT, {"messages": HI, "max_completion_tokens": 2048}, "max_completion_tokens"),
    ],
)
async def test_an_overflow_of_the_context_is_named_as_clients_know_it(
    http: Http, path: str, fields: dict[str, Any], param: str
) -> None:
    status, error = await refused(http, path, fields)
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "maximum context length is 2048 tokens. Please reduce the length" in error["message"]
    assert http.stack.scheduler.added == []


async def test_a_body_that_no_window_bounds_is_no_overflow() -> None:
    async with make_http(max_model_len=1 << 20) as http:
        body = {"prompt": "a" * (5 << 20)}
        _, error = await refused(http, COMPLETIONS, body)
        assert (error["code"], error["param"]) == (None, "prompt")


SCHEMA = {"type": "nonsense"}
PREDICTED = {"type": "content", "content": "a"}
BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages[0].x"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"functions": [TOOL["function"]]}, "functions"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [TOOL, {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
      "tool_choice": "required"}, "tools[1].function.parameters"),
    ({"messages": [*HI, {"role": "assistant", "tool_calls": [
        {"id": "a", "function": {"name": "f", "arguments": "[" * 513}}]}]},
     "messages[1].tool_calls[0].function.arguments"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "required", "use_beam_search": True,
      "chat_template": "No tools."}, "use_beam_search"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
     "tool_choice.function.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {"name": "get_weather"}}},
     "tool_choice.custom.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]}}},
     "tool_choice.allowed_tools.tools[0].function.name"),
    ({"tools": [TOOL, {"type": "custom", "custom": {"name": "a b"}}]}, "tools[1].custom.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "a", "format": {"type": "grammar"}}}]},
     "tools[0].custom.format.grammar"),
    ({"tools": [{"type": "custom", "custom": {"name": "a", "format": {"type": "grammar",
        "grammar": {"syntax": "regex", "definition": "(?=a)b"}}}}], "tool_choice": "required"},
     "tools[0].custom.format.grammar.definition"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"chat_template": "{% if %}"}, "chat_template"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": 10**400}}, "chat_template_kwargs"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 10**6}, "max_completion_tokens"),
    ({"max_tokens": 10**6}, "max_tokens"),
    ({"prediction": "a"}, "prediction"),
    ({"prediction": {"content": "a"}}, "prediction.type"),
    ({"prediction": {"type": "content", "content": [{"type": "image_url"}]}},
     "prediction.content[0].type"),
    ({"prediction": PREDICTED, "speculation": False}, "prediction"),
    ({"prediction": PREDICTED, "use_beam_search": True}, "prediction"),
    ({"prediction": {"type": "content", "content": "ab" * 3000}}, "prediction"),
    ({"prediction": {"type": "content", "content": "a" * 100_000}}, "prediction"),
]  # fmt: skip


async def test_a_bad_chat_is_a_400_that_names_the_field() -> None:
    async with make_http(unknown_fields="refuse") as http:
        for fields, param in BAD_CHATS:
            status, error = await refused(http, CHAT, {"messages": HI, **fields})
            assert (status, error["param"]) == (400, param), fields
            assert param in error["message"], "the message names it as well"
        assert http.stack.scheduler.added == []


async def test_an_image_is_refused_by_the_name_of_its_part() -> None:
    async with make_http() as http:
        body = {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
        _, error = await refused(http, CHAT, body)
        assert error["message"] == (
            "messages[0].content[0].type: 'text' is served, and not 'image_url'"
        )


UNIONS: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"tool_choice": {"type": "function"}}, "tool_choice.function", "Field required"),
    (CHAT, {"tool_choice": {"type": "function", "function": {"name": 5}}},
     "tool_choice.function.name", "Input should be a valid string"),
    (CHAT, {"tool_choice": 5}, "tool_choice",
     "Input should be 'none', 'auto' or 'required' or an object"),
    (CHAT, {"stop": {}}, "stop", "Input should be a valid string or a valid array"),
    (CHAT, {"messages": [{"role": "user", "content": {}}]}, "messages[0].content",
     "Input should be a valid string or a valid array"),
    (CHAT, {"guided_json": 5}, "guided_json", "Input should be an object or a valid string"),
    (COMPLETIONS, {"prompt": {}}, "prompt", "Input should be a valid string or a valid array"),
    (COMPLETIONS, {"prompt": [5, "a"]}, "prompt[1]", "Input should be a valid integer"),
    (COMPLETIONS, {"prompt": [[5], "a"]}, "prompt[1]", "Input should be a valid array"),
    ("/v1/rerank", {"query": "a", "documents": [{}]}, "documents[0].text", "Field required"),
    ("/v1/rerank", {"query": "a", "documents": [{"text": "a"}, 5]}, "documents[1]",
     "Input should be a valid string or an object"),
]  # fmt: skip


async def test_a_value_of_several_types_is_named_as_the_client_wrote_it(http: Http) -> None:
    for path, fields, param, message in UNIONS:
        body = {"messages": HI} if path == CHAT else {}
        status, error = await refused(http, path, body | fields)
        assert (status, error["param"]) == (400, param)
        assert error["message"] == f"{param}: {message}"


@pytest.mark.parametrize("token_id", [-1, make_backend().get_vocab_size(), 2**32, 10**30])
async def test_an_id_outside_the_vocabulary_is_told_its_range(http: Http, token_id: int) -> None:
    for path, fields, param in (
        (COMPLETIONS, {"prompt": [token_id]}, "prompt"),
        (COMPLETIONS, {"prompt": [[5], [5, token_id]]}, "prompt"),
        (COMPLETIONS, {"stop_token_ids": [token_id]}, "stop_token_ids"),
        (COMPLETIONS, {"allowed_token_ids": [5, token_id]}, "allowed_token_ids"),
        (COMPLETIONS, {"logit_bias": {str(token_id): 1}}, "logit_bias"),
        (COMPLETIONS, {"logprobs": 1, "logprob_token_ids": [token_id]}, "logprob_token_ids"),
        ("/detokenize", {"tokens": [5, token_id]}, "tokens"),
    ):
        body = {"prompt": "a"} | fields if path == COMPLETIONS else fields
        status, error = await refused(http, path, body)
        assert (status, error["param"]) == (400, param)
        size = make_backend().get_vocab_size()
        known = f"ids in [0, {size}), others are out of vocabulary"
        assert error["message"] == f"{param}: allowed: {known}; given: {token_id}"
    assert http.stack.scheduler.added == []


async def test_the_reason_comes_before_what_the_client_wrote(http: Http) -> None:
    long = "x" * 5000
    for fields, reason in (
        ({"stop": long}, "stop: allowed: strings of 1 to 1024 bytes; given: 'xxx"),
        ({"cache_salt": long}, "cache_salt: allowed: at most 128 bytes; given: 'xxx"),
        ({"logit_bias": {long: 1}}, "logit_bias: allowed: keys that are ids in [0, "),
        ({"guided_regex": "(" + long}, "guided_regex: at 1("),
        ({"service_tier": long}, "service_tier: 'auto' or 'default' is served, and not 'xxx"),
    ):
        _, error = await refused(http, COMPLETIONS, {"prompt": "a"} | fields)
        assert error["message"].startswith(reason)
        assert len(error["message"]) < 600


@pytest.mark.parametrize("length", [0, -2, 2049, 2**32, 10**30])
async def test_a_truncation_beyond_the_window_is_refused(http: Http, length: int) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HI})):
        status, error = await refused(http, path, body | {"truncate_prompt_tokens": length})
        assert (status, error["param"]) == (400, "truncate_prompt_tokens")
        assert "allowed: [1, 2048]" in error["message"]
    assert http.stack.scheduler.added == []
    await http.complete(extra_body={"truncate_prompt_tokens": 2048})


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ('{"prompt": "a", "prompt": "b"}', "prompt"),
        ('{"prompt": "a", "n": 1, "n": 1}', "n"),
        ('{"prompt": "a", "logit_bias": {"5": 1, "5": -1}}', "5"),
        ('{"prompt": "a", "structured_outputs": {"json": {"type": "object", "type": 1}}}', "type"),
        (f'{{"prompt": "a", "user": "x", "user": "{"y" * 10_000}"}}', "user"),
    ],
)
async def test_a_key_that_comes_twice_is_refused_by_name(
    http: Http, content: str, key: str
) -> None:
    answer = await http.raw.post(COMPLETIONS, content=content)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, key)
    assert "twice" in error["message"]
    assert http.stack.scheduler.added == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FIELDS = st.sampled_from(
[
        "prompt", "messages", "temperature", "n", "stop", "logit_bias", "stream_options", "tools",
        "tool_choice", "response_format", "seed", "max_tokens", "logprobs", "top_k", "echo",
        "chat_template_kwargs", "stop_token_ids", "structured_outputs", "user", "bad_words",
    ]
)  # fmt: skip


def random_bodies() -> list[tuple[str, dict[str, Any]]]:
    bodies: list[tuple[str, dict[str, Any]]] = []

    @settings(max_examples=50, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(FIELDS, JSON, max_size=3), st.booleans())
    def collect(body: dict[str, Any], is_chat: bool) -> None:
        path = CHAT if is_chat else COMPLETIONS
        bodies.append((path, {"messages": HI} | body if is_chat else {"prompt": "a"} | body))

    collect()
    return bodies


async def test_no_body_is_an_internal_error() -> None:
    bodies = random_bodies()  # which takes longer than a router may stand still
    async with make_http() as http:
        for path, body in bodies:
            answer = await http.raw.post(path, content=json.dumps(body))
            assert answer.status_code in (200, 400), (body, answer.text)


async def test_a_failing_test_shows_the_exception_behind_a_500() -> None:
    with pytest.raises(AssertionError) as caught:
        async with make_http() as http:
            http.stack.router.generator.generate = None  # type: ignore[method-assign, assignment]
            await refused(http, CHAT, {"messages": HI})
            raise AssertionError("a test that fails for it")
    assert "NoneType" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, {"messages": HI, "model": "other"}, 404),
        (COMPLETIONS, {"prompt": "a", "model": "other"}, 404),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404),
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": HI}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [10**30]}, 400),
        ("/v1/nothing", {}, 404),
        ("/v1/models", {}, 405),
        (COMPLETIONS, {"prompt": "a" * 2000, "user": "x" * 300_000}, 413),
        (CHAT, {"messages": HI, "structured_outputs": {"regex": "(a"}}, 400),
    ],
)
async def test_other_refusals_have_their_codes(path: str, body: Any, status: int) -> None:
    async with make_http(max_http_body_bytes=200_000) as http:
        found, error = await refused(http, path, body)
        assert found == status
        if status == 404 and "model" in body:
            assert (error["param"], error["code"]) == ("model", "model_not_found")


def failing(code: int, **fields: Any) -> Any:
    def script(add: scheduler_pb2.Request) -> Outputs:
        yield step(requests=[request_finished(add.handle, code=code, message="why", **fields)])

    return script


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("code", "status", "headers"),
    [
        (1, 499, {}),
        (4, 504, {}),
        (8, 429, {"x-should-retry": "false"}),
        (13, 500, {}),
        (14, 503, {}),
    ],
)
async def test_a_request_that_fails_in_the_queue_has_its_status(
    code: int, status: int, headers: dict[str, str], is_streamed: bool
) -> None:
    async with make_http(failing(code)) as http:
        answer = await http.raw.post(CHAT, json={"messages": HI, "stream": is_streamed})
        assert answer.status_code == status
        assert answer.json()["error"]["message"] == "why"
        assert headers.items() <= dict(answer.headers).items()


async def test_a_server_that_is_full_says_when_to_come_back() -> None:
    async with make_http(failing(8, retry_after_ns=1_500_000_000)) as http:
        with pytest.raises(openai.RateLimitError) as caught:
            await http.chat()
        assert caught.value.response.headers["retry-after"] == "2"


async def test_a_live_request_id_is_a_conflict() -> None:
    def begin(add: scheduler_pb2.Request) -> Outputs:
        yield step((add.handle, 0, ids_of("one")))

    async with make_http(begin) as http:
        create: Any = http.sdk.completions.create
        fields = {"model": "tiny", "prompt": "a", "extra_body": {"request_id": "mine"}}
        stream = await create(stream=True, **fields)
        assert (await anext(aiter(stream))).id == "cmpl-mine"
        with pytest.raises(openai.ConflictError):
            await create(**fields)
        await stream.close()


async def test_a_failure_in_the_middle_is_an_event() -> None:
    def script(add: scheduler_pb2.Request) -> Outputs:
        yield step((add.handle, 0, ids_of("one")))
        yield from failing(14)(add)

    async with make_http(script) as http:
        answer = await http.raw.post(COMPLETIONS, json={"prompt": "a", "stream": True})
        *_, error, done, _ = answer.text.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["type"] == (
            "service_unavailable_error"
        )
        assert done == "data: [DONE]"
        with pytest.raises(openai.APIError, match="why"):
            await http.completion_chunks()


async def test_a_bug_is_a_500_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_http(has_bugs=True) as http:
        monkeypatch.setattr(http.stack.router.generator, "generate", None)
        status, error = await refused(http, CHAT, {"messages": HI})
        assert (status, error["type"]) == (500, "internal_error")
        assert "NoneType" not in error["message"]


async def test_a_base_url_without_its_version_is_told(http: Http) -> None:
    answers = [await http.raw.get(path) for path in ("/nothing", "/v1/nothing")]
    messages = [answer.json()["error"]["message"] for answer in answers]
    assert ["is below /v1; /docs" in message for message in messages] == [True, False]


async def test_a_long_path_is_not_repeated(http: Http) -> None:
    answer = await http.raw.get("/" + "a" * 20_000)
    assert answer.status_code == 404
    assert len(answer.content) < 1024
