"""Fields of other servers: what they mean here, and what says nothing there.

Each row of the table is asked for over HTTP with its default and with another value.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import BaseModel
from transformers import GenerationConfig

from signalbox_router.apis.openai.bodies.unknown_fields import check_unknown
from signalbox_router.apis.openai.requests import foreign_fields
from signalbox_router.apis.openai.requests.chat_types import ChatBody
from signalbox_router.apis.openai.requests.errors import NotServed
from signalbox_router.apis.openai.requests.foreign_fields import IGNORED, REFUSED, Foreign, Table
from signalbox_router.apis.openai.requests.pooling_types import EmbeddingBody
from signalbox_router.apis.openai.requests.types import Body, CompletionBody
from tests.router.apis.inference.test_chat import writing
from tests.router.apis.openai.clients import BODIES, HI, Http, make_http
from tests.router.apis.openai.requests.test_nulls import steady
from tests.router.apis.openai.test_answers import TOOL
from tests.router.generation.pooling.pooling_stack import CLASSIFIES, EMBEDS, SCORES
from tests.router.generation.pooling.test_http import serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEADER = "x-signalbox-ignored-fields"
Json = dict[str, Any]


class Place(NamedTuple):
    """Where the fields of a table stand in a body."""

    path: str
    table: Table
    body: Callable[[Json], Json]
    prefix: str = ""
    pooling: Any = None


def at_top(path: str, pooling: Any = None, **base: Any) -> Place:
    return Place(path, BODIES[path].FOREIGN, lambda fields: base | fields, pooling=pooling)


FUNCTION = TOOL["function"]
STRUCTURE = {"regex": "a+"}
PLACES = (
    at_top(COMPLETIONS, prompt="Hi"),
    at_top(CHAT, messages=HI),
    at_top("/v1/responses", input="Hi"),
    at_top("/tokenize", prompt="Hi"),
    at_top("/v1/embeddings", EMBEDS, input="Hi"),
    at_top("/pooling", EMBEDS, input="Hi"),
    at_top("/classify", CLASSIFIES, input="Hi"),
    at_top("/v1/score", SCORES, text_1="a", text_2="b"),
    at_top("/v1/rerank", SCORES, query="a", documents=["b", "c"]),
    at_top("/v1/embed", EMBEDS, texts=["Hi"]),
    Place(CHAT, foreign_fields.MESSAGE, lambda f: {"messages": [HI[0] | f]}, "messages[0]."),
    Place(CHAT, foreign_fields.TOOL, lambda f: {"messages": HI, "tools": [TOOL | f]}, "tools[0]."),
    Place(
        CHAT,
        foreign_fields.FUNCTION,
        lambda f: {"messages": HI, "tools": [TOOL | {"function": {"name": "x"} | f}]},
        "tools[0].function.",
    ),
    Place(
        CHAT,
        foreign_fields.PROMPT_CACHE_OPTIONS,
        lambda f: {"messages": HI, "prompt_cache_options": f},
        "prompt_cache_options.",
    ),
    Place(CHAT, foreign_fields.REASONING, lambda f: {"messages": HI, "reasoning": f}, "reasoning."),
    Place(
        COMPLETIONS,
        foreign_fields.STRUCTURED_OUTPUTS,
        lambda f: {"prompt": "Hi", "structured_outputs": STRUCTURE | f},
        "structured_outputs.",
    ),
)
OTHER_VALUES: Json = {
    "max_tokens": 5, "max_completion_tokens": 5, "repetition_penalty": 1.5, "n": 2,
    "guided_json": {"type": "array"}, "guided_grammar": 'root ::= "a"', "guided_regex": "a+",
    "temperature": False, "truncate_prompt_tokens": 2, "min_tokens": 3, "seed": 7, "stop": ["x"],
    "echo": True, "reasoning": "x", "name": "x", "parameters": {"type": "object"}, "prompt": "Hi",
    "add_special_tokens": False, "truncation_side": "left", "normalize": False, "dimensions": 2,
    "continue_final_message": True, "chat_template": "{{ messages[0].content }}",
    "instruction": "x", "top_n": 1, "use_activation": True, "return_documents": True,
    "thinking_token_budget": 5, "max_output_tokens": 5, "encoding_format": "base64",
    "embed_dtype": "int8",
}  # fmt: skip
"""A value of each field that rows mean, in the words of those rows."""


@contextlib.asynccontextmanager
async def place_server(place: Place, **fields: Any) -> AsyncIterator[Http]:
    make = make_http(**fields) if place.pooling is None else serving(place.pooling, **fields)
    async with make as http:
        yield http


async def asked(http: Http, place: Place, fields: Json) -> tuple[Any, list[Any]]:
    """Returns the answer to a body, and the requests that the scheduler got."""
    http.stack.scheduler.added.clear()
    answer = await http.raw.post(place.path, json=place.body(fields))
    adds = [_steady(add, fields) for add in http.stack.scheduler.added]
    return answer, sorted(adds, key=lambda add: list(add.prompt_token_ids))


def _steady(add: Any, fields: Json) -> Any:
    kept = type(add)()
    kept.CopyFrom(add)
    for name in ("handle", "request_id", "timeout_ns", "trace_context", "nonce", "age_ns"):
        kept.ClearField(name)
    if not any(value for name, value in fields.items() if "seed" in name):  # drawn at random
        kept.sampling_params.ClearField("seed")
    return kept


def other_value(row: Foreign) -> Any:
    """Returns a value that asks for something."""
    if not row.is_served:
        return not row.default if isinstance(row.default, bool) else {"x": 1}
    renamed = [foreign for foreign, ours in row.ours if ours is not None]
    return renamed[0] if renamed else OTHER_VALUES[row.does]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.path} {place.prefix}")
async def test_each_foreign_field_is_served_refused_or_says_nothing(place: Place) -> None:
    table = place.table
    async with place_server(place) as http:
        plain, without = await asked(http, place, {})
        assert plain.status_code == 200 and HEADER not in plain.headers
        most = max(len(row.nothing) for row in table.values())
        for fields in (
            dict.fromkeys(table),
            {name: row.default for name, row in table.items()},
            *({name: row.nothing[i] for name, row in table.items() if row.nothing[i:]}
              for i in range(most)),
        ):  # fmt: skip
            answer, requests = await asked(http, place, fields)
            assert answer.status_code == 200 and HEADER not in answer.headers, answer.text
            assert steady(answer.json()) == steady(plain.json()) and requests == without
        for name, row in table.items():
            if row.is_served:
                value = other_value(row)
                answer, requests = await asked(http, place, {name: value})
                ours, expected = await asked(http, place, {row.does: row.as_ours(value)})
                assert (answer.status_code, requests) == (ours.status_code, expected), answer.text
                assert HEADER not in answer.headers
                if row.does == "instruction":  # of a model with a template
                    assert answer.json()["error"]["param"] == name
                else:
                    assert steady(answer.json()) == steady(ours.json()), answer.text
        refused = [name for name, row in table.items() if row.does == REFUSED]
        for name in refused[:3]:
            answer, requests = await asked(http, place, {name: other_value(table[name])})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, place.prefix + name)
            assert requests == []


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.path} {place.prefix}")
def test_what_is_not_served_is_refused_by_name_or_reported(place: Place) -> None:
    class Owner(Body):
        FOREIGN = place.table

    assert not place.table.keys() & BODIES[place.path].model_fields.keys() or place.prefix
    for name, row in place.table.items():
        if row.is_served:
            continue
        body = Owner.model_validate({name: other_value(row)})
        if row.does == IGNORED:
            assert check_unknown(body, refuses=False) == [name]
            continue
        with pytest.raises(NotServed) as refusal:
            check_unknown(body, refuses=False)
        server = row.server.partition(":")[0]
        assert refusal.value.param == name and server in refusal.value.message


async def test_a_served_field_has_the_checks_and_the_error_of_ours_under_its_own_name() -> None:
    async with make_http(unknown_fields="refuse") as http:
        for path, fields, param in (
            (COMPLETIONS, {"n_predict": 0}, "n_predict"),
            (CHAT, {"n_predict": 0}, "n_predict"),
            (CHAT, {"num_predict": "5"}, "num_predict"),
            (CHAT, {"max_new_tokens": 5, "max_completion_tokens": 6}, "max_new_tokens"),
            (CHAT, {"max_new_tokens": 5, "max_tokens": 6}, "max_new_tokens"),
            (CHAT, {"max_new_tokens": 5, "n_predict": 6}, "n_predict"),
            (COMPLETIONS, {"repeat_penalty": 11}, "repeat_penalty"),
            (COMPLETIONS, {"do_sample": False, "temperature": 1}, "do_sample"),
            (COMPLETIONS, {"json_schema": {"type": "x"}}, "json_schema"),
            (COMPLETIONS, {"format": "xml"}, "format"),
            (COMPLETIONS, {"regex": "("}, "regex"),
            (COMPLETIONS, {"ebnf": "root ::= x"}, "ebnf"),
            (COMPLETIONS, {"grammar": 5}, "grammar"),
            (COMPLETIONS, {"regex": "a", "json_schema": {}}, "response_format"),
            (CHAT, {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
             "enable_thinking"),
            (CHAT, {"reasoning": {"effort": "low"}, "reasoning_effort": "no"}, "reasoning.effort"),
            (CHAT, {"reasoning": {"efort": "low"}}, "reasoning.efort"),
            (COMPLETIONS, {"stream_interval": 0}, "stream_interval"),
            (COMPLETIONS, {"truncation_side": "middle"}, "truncation_side"),
            (COMPLETIONS, {"Mirostat": 2}, "Mirostat"),  # the same letters as a known name
            (CHAT, {"numPredict": 5}, "numPredict"),
        ):  # fmt: skip
            body = {"messages": HI} if path == CHAT else {"prompt": "Hi"}
            answer = await http.raw.post(path, json=body | fields)
            assert answer.status_code == 400, fields
            assert answer.json()["error"]["param"] == param, answer.text
        neutral = {"n_predict": -1, "max_tokens": 5, "n_cmpl": 1, "n": 2, "mirostat": 0}
        answer = await http.raw.post(COMPLETIONS, json={"prompt": "Hi", **neutral})
        assert answer.status_code == 200 and len(answer.json()["choices"]) == 2
        (add,) = http.stack.scheduler.added
        assert add.max_tokens == 5


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "json_object", "schema": {"type": "array"}}},
         "json_schema", '{"type": "array"}'),
        ({"response_format": {"type": "json_schema", "schema": {"type": "array"}}},
         "json_schema", '{"type": "array"}'),
        ({"response_format": {"type": "json_object", "value": {"type": "array"}}},
         "json_schema", '{"type": "array"}'),
        ({"response_format": {"type": "json_object", "schema": {}}}, "json_object", None),
        ({"response_format": {"type": "json", "value": '{"type": "array"}'}},
         "json_schema", '{"type": "array"}'),
        ({"response_format": {"type": "json_schema", "value": {"name": "x", "schema": {
            "type": "array"}}}}, "json_schema", '{"type": "array"}'),
        ({"response_format": {"type": "regex", "value": "a+"}}, "regex", "a+"),
        ({"format": "json"}, "json_schema", '{"type": "object"}'),
        ({"structured_outputs": {"json": {"type": "array"}, "whitespace_pattern": None,
                                 "disable_any_whitespace": False, "_backend": None}},
         "json_schema", '{"type": "array"}'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_structures_of_other_servers_reach_the_worker(
    http: Http, path: str, fields: Json, kind: str, value: str
) -> None:
    body = {"messages": HI} if path == CHAT else {"prompt": "Hi"}
    answer = await http.raw.post(path, json=body | fields)
    assert answer.status_code == 200 and HEADER not in answer.headers, answer.text
    (add,) = http.stack.scheduler.added
    output = add.sampling_params.structured_output
    assert output.WhichOneof("constraint") == kind
    assert value is None or getattr(output, kind) == value


async def test_a_structure_that_is_not_understood_is_refused_by_name(http: Http) -> None:
    schema = {"type": "array"}
    for fields, param in (
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": None}}, "structured_outputs"),
        ({"structured_outputs": {"schema": schema}}, "structured_outputs.schema"),
        ({"structured_outputs": {"jsn": schema}}, "structured_outputs.jsn"),
        ({"structured_outputs": {"regex": "a", "x": 1}}, "structured_outputs.x"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"response_format": {"type": "text", "schema": schema}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": schema}}},
         "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "schema": schema, "value": schema}},
         "response_format.value"),
        ({"response_format": {"type": "json_schema", "value": schema}}, "response_format.value"),
        ({"response_format": {"type": "regex"}}, "response_format.value"),
        ({"response_format": {"type": "regex", "value": schema}}, "response_format.value"),
        ({"response_format": {"type": "regex", "value": "("}}, "response_format.value"),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": schema, "x": 1}}},
         "response_format.json_schema.x"),
    ):  # fmt: skip
        for path, body in ((COMPLETIONS, {"prompt": "Hi"}), (CHAT, {"messages": HI})):
            answer = await http.raw.post(path, json=body | fields)
            assert answer.status_code == 400, fields
            assert answer.json()["error"]["param"] == param, answer.text
    assert http.stack.scheduler.added == []


async def test_values_that_ask_for_nothing_are_taken(http: Http) -> None:
    neutral = {
        "length_penalty": 1.0, "early_stopping": False, "logits_processors": [],
        "mm_processor_kwargs": {}, "kv_transfer_params": {}, "options": {}, "vllm_xargs": {},
        "guided_decoding_backend": "auto", "best_of": 1, "logprob_token_ids": [],
    }  # fmt: skip
    for path, body in ((COMPLETIONS, {"prompt": "Hi"}), (CHAT, {"messages": HI})):
        fields = neutral if path == COMPLETIONS else neutral | {"functions": [], "documents": []}
        for logprobs in ({}, {"logprobs": False, "top_logprobs": 0}, {"top_logprobs": 0}):
            more = logprobs if path == CHAT else {}
            answer = await http.raw.post(path, json=body | fields | more)
            assert answer.status_code == 200 and HEADER not in answer.headers, answer.text
    answer = await http.raw.post(CHAT, json={"messages": HI, "top_logprobs": 1})
    assert answer.json()["error"]["param"] == "top_logprobs"


@pytest.mark.parametrize("prompt", ["one two three", [65, 66, 67, 68]])
async def test_truncation_keeps_the_side_that_is_asked_for(http: Http, prompt: Any) -> None:
    whole = (await http.raw.post("/tokenize", json={"prompt": "one two three"})).json()["tokens"]
    whole = whole if isinstance(prompt, str) else prompt
    for side, kept in ((None, whole[-3:]), ("left", whole[-3:]), ("right", whole[:3])):
        body = {"prompt": prompt, "truncate_prompt_tokens": 3, "truncation_side": side}
        answer = await http.raw.post(COMPLETIONS, json={**body, "echo": True, "logprobs": 0})
        add = http.stack.scheduler.added[-1]
        assert list(add.prompt_token_ids) == kept, answer.text
        if isinstance(prompt, str) and side == "right":
            text = (await http.raw.post("/detokenize", json={"tokens": kept})).json()["prompt"]
            assert prompt.startswith(answer.json()["choices"][0]["text"].removesuffix("ok"))
            assert text.removeprefix("<s>") + "ok" == answer.json()["choices"][0]["text"]
    body = {"messages": HI, "truncate_prompt_tokens": 3}
    full = (await http.raw.post("/tokenize", json={"messages": HI})).json()["tokens"]
    for side, kept in (("left", full[-3:]), ("right", full[:3])):
        await http.raw.post(CHAT, json=body | {"truncation_side": side})
        assert list(http.stack.scheduler.added[-1].prompt_token_ids) == kept


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_its_reasoning_has_no_other_trace_of_it(stream: bool) -> None:
    said = "<think>secret</think>Hi"
    async with make_http(writing(said), reasoning_parser="qwen3") as http:
        body = {"messages": HI, "stream": stream, "return_token_ids": True}
        answers = [
            await http.raw.post(CHAT, json=body | shows)
            for shows in (
                {"include_reasoning": False},
                {"include_reasoning": True},
                {"reasoning": {}},
                {"reasoning": {"exclude": True}},
            )
        ]
        shown = [one.text.count('"reasoning":"') for one in answers]
        assert shown == [0, *[len("secret") if stream else 1] * 2, 0]
        num_events = [one.text.count("data: ") for one in answers]
        assert num_events[0] < num_events[1] or not stream
        assert '"token_ids":[' not in answers[0].text
        assert '"token_ids":[' in answers[1].text
        assert "reasoning_content" not in answers[0].text


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_both_names_of_an_earlier_turns_reasoning_reach_the_template(
    http: Http, name: str
) -> None:
    turn = {"role": "assistant", "content": "a", name: "because"}
    template = "{{ messages[1].reasoning_content }}"
    body = {"messages": [*HI, turn, *HI], "chat_template": template}
    tokens = (await http.raw.post("/tokenize", json=body)).json()["tokens"]
    text = (await http.raw.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
    assert text == "because"


async def test_thinking_is_a_variable_of_the_template(http: Http) -> None:
    template = "{{ enable_thinking }} {{ reasoning_effort }}"
    body = {"messages": HI, "chat_template": template}
    fields = {"enable_thinking": False, "reasoning_effort": "low"}
    prompts = [
        (await http.raw.post("/tokenize", json=body | more)).json()["tokens"]
        for more in (
            fields,
            {"chat_template_kwargs": fields},
            {"enable_thinking": False, "reasoning": {"effort": "low"}},
        )
    ]
    await http.raw.post(CHAT, json=body | fields)
    sent = list(http.stack.scheduler.added[0].prompt_token_ids)
    assert prompts == [sent, sent, sent]
    text = (await http.raw.post("/detokenize", json={"tokens": sent})).json()["prompt"]
    assert text == "False low"
    body["chat_template"] = "{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }}"
    for effort, expected in (("none", "False False none"), ("high", "True True high")):
        await http.raw.post(CHAT, json=body | {"reasoning_effort": effort})
        sent = list(http.stack.scheduler.added[-1].prompt_token_ids)
        text = (await http.raw.post("/detokenize", json={"tokens": sent})).json()["prompt"]
        assert text == expected


@pytest.mark.parametrize(
    ("body", "params"),
    [
        (CompletionBody, completion_create_params.CompletionCreateParamsBase),
        (ChatBody, chat_params.CompletionCreateParamsBase),
        (EmbeddingBody, embedding_create_params.EmbeddingCreateParams),
    ],
)
def test_no_field_of_openais_sdk_is_unknown(body: type[Body], params: Any) -> None:
    assert not unknown_to(body, params.__annotations__.keys())


def unknown_to(body: type[BaseModel], names: Any) -> set[str]:
    known = {field.alias or name for name, field in body.model_fields.items()}
    return set(names) - known - body.FOREIGN.keys()  # type: ignore[attr-defined]


def test_transformers_fields_are_known_with_its_defaults() -> None:
    defaults: Json = GenerationConfig._get_default_generation_params()
    table = CompletionBody.FOREIGN
    for name in defaults.keys() & table.keys():
        row, value = table[name], defaults[name]
        if name != "do_sample":  # TGI samples by default; to say false is to ask for no sampling
            assert row.asks_for_nothing(value), name
    assert not unknown_to(CompletionBody, defaults)
