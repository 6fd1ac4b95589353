"""Reasoning in text, whatever its pieces; over gRPC and HTTP, before text and tool calls."""

import json
from collections.abc import Iterable
from typing import Any
from unittest.mock import sentinel

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signalbox.client.terminal_answer import show
from signalbox.llm.requests.conversations import messages_of
from signalbox_client import AsyncClient
from signalbox_contract.errors import InvalidArgument
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.parsers.reasoning_formats import FORMATS
from signalbox_router.parsers.reasoning_reader import (
    MAX_HELD_SPACE,
    Reasoning,
    ReasoningParser,
    reasoning_reader,
)
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.tokenization.detokenizer import MARK
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Delta
from tests.router.apis.inference.test_chat import (
    ASSISTANT,
    CALL,
    TEMPLATE,
    WEATHER,
    ask,
    chat_stack,
    make_chat,
    message,
    prompt_of,
    writing,
)
from tests.router.apis.openai.clients import make_http
from tests.router.fakes import (
    IM_END,
    IM_START,
    bytewise_ids,
    finished,
    make_files,
    make_model,
    make_tokenizer,
    step,
    token,
)
from tests.router.stack import Outputs

THINKS = TEMPLATE + "{# <think> </think> #}"
OPENS = TEMPLATE + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}{# </think> #}"
THOUGHT = "\nIt is Paris.\n\nI am < sure. </thin"


def make_parser(name: str = "qwen3", *, within: bool = False) -> ReasoningParser:
    return ReasoningParser(FORMATS[name].start, FORMATS[name].end, begins_within=within)


def read(pieces: Iterable[str], name: str = "qwen3", *, within: bool = False) -> tuple[str, str]:
    parser = make_parser(name, within=within)
    splits = [parser.push(piece) for piece in pieces] + [parser.flush()]
    return "".join(one.reasoning for one in splits), "".join(one.text for one in splits)


CASES = [
    ("qwen3", False, "<think>\nWell.\n</think>\n\nParis.\n", "Well.", "Paris.\n"),
    ("qwen3", False, f" \n<think>{THOUGHT}</think>Paris.", THOUGHT.strip(), "Paris."),
    ("qwen3", False, "<think>\n\n</think>\n\nParis.", "", "Paris."),
    ("qwen3", False, "Paris.", "", "Paris."),
    ("qwen3", False, "  <thin", "", "  <thin"),
    ("qwen3", False, "<thinking> a </think>", "", "<thinking> a </think>"),
    ("qwen3", False, "Well <think>a</think> b", "", "Well <think>a</think> b"),
    ("qwen3", False, "<think>never closed </thi", "never closed </thi", ""),
    ("qwen3", False, "<think>a</think> b</think> <think>", "a", "b</think> <think>"),
    ("qwen3", True, "Well.</think>Paris.", "Well.", "Paris."),
    ("deepseek_r1", True, "<think>Well.</think>Paris.", "Well.", "Paris."),
    ("mistral", False, "[THINK]a[1][/THINK]b", "a[1]", "b"),
    ("seed_oss", False, "<seed:think>a</seed:think>b", "a", "b"),
    ("granite", False, "Here is my thought process: a\nHere is my response: b", "a", "b"),
]


def test_a_word_after_the_marker_is_no_reasoning() -> None:
    reasoning = Reasoning(FORMATS["gemma4"], is_open=False, is_continued=False, may_begin=True)
    reader = reasoning_reader(reasoning, make_model(), is_last=True)
    deltas = [Delta(index=0, text=char) for char in "<|channel>thought\nHm.\n<channel|>Yes"]
    for delta in deltas:
        reader.read(Update(sentinel.request, [delta], None))
    read = ["".join(parts) for parts in zip(*((d.reasoning, d.text) for d in deltas), strict=True)]
    assert read == ["Hm.", "Yes"]


@pytest.mark.parametrize(("name", "within", "text", "reasoning", "content"), CASES)
def test_reasoning_is_found_however_the_text_is_split(
    name: str, within: bool, text: str, reasoning: str, content: str
) -> None:
    assert read([text], name, within=within) == (reasoning, content)
    assert read(text, name, within=within) == (reasoning, content)
    for split in range(1, len(text)):
        pieces = [text[:split], text[split:]]
        assert read(pieces, name, within=within) == (reasoning, content)


@settings(max_examples=200)
@given(
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<", "/", " ", "\n", "a", "think>"])),
    within=st.booleans(),
)
def test_any_text_splits_the_same_and_invents_nothing(pieces: list[str], within: bool) -> None:
    text = "".join(pieces)
    reasoning, content = read([text], within=within)
    assert read(pieces, within=within) == (reasoning, content)
    assert read(text, within=within) == (reasoning, content)
    assert content in text
    assert reasoning in text


def test_reasoning_streams_as_it_comes() -> None:
    parser = make_parser()
    assert parser.push("<think>\nWell") == ("Well", "")
    assert parser.push(", so </th") == (", so", "")
    assert parser.push("ink>\n") == ("", "")
    assert parser.push("Yes") == ("", "Yes")
    assert parser.push(" ") == ("", " ")


def test_no_more_white_space_is_held_back_than_stated() -> None:
    space = [" "] * (3 * MAX_HELD_SPACE)
    parser = make_parser()
    shown = [len(parser.push(one).text) for one in space]
    assert shown == [0] * MAX_HELD_SPACE + [MAX_HELD_SPACE + 1] + [1] * (2 * MAX_HELD_SPACE - 1)

    parser = make_parser(within=True)
    assert parser.push("a") == ("a", "")
    lengths = [len(parser.push(one).reasoning) for one in space]
    assert sum(lengths) >= 2 * MAX_HELD_SPACE
    assert parser.push("b</think>c") == (" " * (len(space) - sum(lengths)) + "b", "c")


async def split_of(text: str, request: pb.ChatRequest | None = None, **options: Any) -> Any:
    """Returns the reasoning, the text and the names of calls over gRPC."""
    async with chat_stack(text, **options) as stack:
        deltas = await ask(stack, request or make_chat())
        calls = [call.name for delta in deltas for call in delta.tool_calls if call.id]
        reasoning = "".join(delta.reasoning for delta in deltas)
        return reasoning, "".join(delta.text for delta in deltas), calls


ANSWER = "<think>\nWell.\n</think>\n\nParis."


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (ANSWER, {"template": THINKS}, ("Well.", "Paris.", [])),
        ("Well.\n</think>\nParis.", {"template": OPENS}, ("Well.", "Paris.", [])),
        (ANSWER, {"template": TEMPLATE}, ("", ANSWER, [])),
        (ANSWER, {"template": THINKS, "reasoning_parser": "none"}, ("", ANSWER, [])),
        (ANSWER, {"reasoning_parser": "qwen3"}, ("Well.", "Paris.", [])),
        ("W</think>P", {"reasoning_parser": "deepseek_r1"}, ("W", "P", [])),
        ("W</think>P", {"reasoning_parser": "qwen3"}, ("", "W</think>P", [])),
    ],
)
async def test_the_model_or_a_setting_chooses(
    text: str, options: dict[str, Any], expected: Any
) -> None:
    assert await split_of(text, **options) == expected


async def test_calls_are_read_behind_reasoning_and_not_within() -> None:
    chat = make_chat(tools=[WEATHER])
    text = f"<think>Maybe {CALL}?</think>\n{CALL}"
    assert await split_of(text, chat, template=THINKS) == (f"Maybe {CALL}?", "", ["get_weather"])


START, END, OPENING = (MARK + one for one in ("<think>", "</think>", "<tool_call>"))


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (f"{START}They write </think>.{END}Yes", "They write </think>.", "Yes"),
        (f"{START}They write <tool_call>.{END}Yes", "They write <tool_call>.", "Yes"),
        ("<think>a</think>b", "", "<think>a</think>b"),
        (f"{START}Well. {OPENING}call", "Well.", f"{OPENING}call"),
        (f"{START}Well.{OPENING}call{END}Yes", "Well.", f"{OPENING}callYes"),
        (f"{START}a{START}b{END}c{END}", "a<think>b", f"c{END}"),
    ],
)
def test_a_marker_that_is_a_token_counts_as_its_token_alone(
    text: str, reasoning: str, content: str
) -> None:
    pieces = [f"{MARK}{one}" if i else one for i, one in enumerate(text.split(MARK))]
    for split in ([text], pieces):
        parser = ReasoningParser(START, END, begins_within=False, calls=[OPENING])
        found = [*map(parser.push, split), parser.flush()]
        assert "".join(one.reasoning for one in found) == reasoning
        assert "".join(one.text for one in found) == content


async def test_what_is_constrained_follows_reasoning() -> None:
    chat = make_chat(tools=[WEATHER], tool_choice=pb.ToolChoice(tool="get_weather"))
    text = f"Well.\n</think>{CALL}"
    assert await split_of(text, chat, template=OPENS) == ("Well.", "", ["get_weather"])
    text = 'Well.\n</think>{"city": "a"}'
    plain = OPENS.replace("tools", "nothing")  # a model that is told of tools in words
    assert await split_of(text, chat, template=plain) == ("Well.", "", ["get_weather"])
    params = pb.SamplingParams(structured_output={"json_object": {}})  # type: ignore[arg-type]
    chat = make_chat(sampling_params=params)
    assert await split_of(text, chat, template=OPENS) == ("Well.", '{"city": "a"}', [])


async def test_a_prompt_that_closes_reasoning_has_none() -> None:
    closes = OPENS.replace("'<think>\n'", "'<think>\n\n</think>\n\n'")
    assert await split_of("Paris.", template=closes) == ("", "Paris.", [])
    closed = {"template": closes, "reasoning_parser": "deepseek_r1"}
    assert await split_of("Paris.", **closed) == ("", "Paris.", [])


OPENED = "<think>\nMaybe <b>Paris"


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        # The last message, which the answer continues: open, closed, and of the client alone.
        ([message(OPENED, ASSISTANT)], " or\n</think>\nYes", (" or", "Yes", [])),
        ([message(OPENED, ASSISTANT)], " or not", (" or not", "", [])),
        ([message("<think>\n", ASSISTANT)], "\n or</think>Yes", ("or", "Yes", [])),
        ([message(f"{OPENED}</think> So", ASSISTANT)], " it is", ("", " it is", [])),
        ([message(OPENED), message("So", ASSISTANT)], " it is", ("", " it is", [])),
        # The template, which begins the answer.
        (None, " or\n</think>\nYes", (" or", "Yes", [])),
    ],
)
async def test_reasoning_that_the_prompt_opens_goes_on_in_the_answer(
    prompt: list[pb.ChatMessage] | None, text: str, expected: Any
) -> None:
    if prompt is None:
        template = OPENS.replace("'<think>\n'", json.dumps(OPENED))
        chats = [make_chat(), make_chat(chat_template=template)]
        for chat, used in zip(chats, (template, THINKS), strict=True):
            assert await split_of(text, chat, template=used) == expected
        return
    chat = make_chat(message("Hi"), *prompt, continue_final_message=True)
    assert await split_of(text, chat, template=THINKS) == expected


async def test_text_of_the_client_opens_no_reasoning() -> None:
    chat = make_chat(message("What does <think> do"), add_generation_prompt=False)
    assert await split_of(
        "It opens", chat, template="{{ messages[-1].content }}{# </think> #}"
    ) == (
        "",
        "It opens",
        [],
    )


async def test_openai_clients_find_it_under_both_names() -> None:
    files = make_files(chat_template=THINKS)
    async with make_http(writing(ANSWER), files=files) as http:
        message = (await http.chat()).choices[0].message
        assert (message.content, message.reasoning) == ("Paris.", "Well.")
        assert message.reasoning_content == "Well."
        deltas = [chunk.choices[0].delta for chunk in await http.chat_chunks()]
        assert "".join(delta.content or "" for delta in deltas) == "Paris."
        for name in ("reasoning", "reasoning_content"):
            assert "".join(getattr(delta, name, None) or "" for delta in deltas) == "Well."


async def test_the_python_client_has_it_and_the_terminal_shows_it_beside_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with chat_stack(ANSWER, template=THINKS) as stack, AsyncClient(stack.address) as client:
        answer = await client.chat("Capital of France?")
        assert (answer.reasoning, answer.text) == ("Well.", "Paris.")
        timed = await show(client.stream_chat("Hi"), address=stack.address, as_json=False)
        assert timed.answer.reasoning == "Well."
        shown = capsys.readouterr()
        assert shown.out == "Paris.\n"
        assert shown.err.startswith("Well.\n\n")
        await show(client.stream_chat("Hi"), address=stack.address, as_json=True)
        (output,) = json.loads(capsys.readouterr().out)["outputs"]
        assert (output["reasoning"], output["text"]) == ("Well.", "Paris.")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", None])
async def test_an_answer_without_text_may_be_sent_back(name: str | None) -> None:
    template = (
        "{% for m in messages %}[{{ m.reasoning_content or '-' }}{{ m.content }}]{% endfor %}"
    )
    fields = {} if name is None else {name: "Well."}
    expected = f"[-Hi][{fields.get(name or '', '-')}]"
    thought = message("", ASSISTANT, reasoning="" if name is None else "Well.")
    assert await prompt_of(make_chat(message("Hi"), thought), template=template) == expected
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, **fields}]
    async with make_http(files=make_files(chat_template=template)) as http:
        assert (await http.raw.post("/v1/chat/completions", json={"messages": talk})).is_success
        ids = http.stack.scheduler.added[0].prompt_token_ids
        assert await make_tokenizer().decode(ids, skip_special_tokens=False) == expected
    messages = messages_of(talk, field="messages")
    assert messages[1].reasoning == ("" if name is None else "Well.")
    Conversation(messages=messages).check()
    with pytest.raises(InvalidArgument, match=r"messages\[0\].content"):
        Conversation(messages=[messages[0]._replace(content=())]).check()


async def test_a_budget_and_a_structured_output_are_of_the_reasonings_tokens() -> None:
    """The special tokens <|im_start|> and <|im_end|> play the markers."""
    files = make_files(chat_template=THINKS)
    text = files["tokenizer.json"].decode()
    for name, marker in ((IM_START, "<think>"), (IM_END, "</think>")):
        text = text.replace(name, marker)
    files["tokenizer.json"] = text.encode()

    def script(add: scheduler_pb2.Request) -> Outputs:
        reasoning = [token(IM_START), *bytewise_ids("I write </think> now."), token(IM_END)]
        for ids in (reasoning[:4], [*reasoning[4:], *bytewise_ids("{}")]):
            yield step((add.handle, 0, ids))
        yield step(**finished(add.handle))

    async with make_http(script, files=files) as http:
        body = {"messages": [{"role": "user", "content": "Hi"}], "thinking_token_budget": 21}
        body["response_format"] = {"type": "json_object"}
        answer = (await http.raw.post("/v1/chat/completions", json=body)).json()
        message = answer["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("I write </think> now.", "{}")
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 21}
        params = http.stack.scheduler.added[0].sampling_params
        assert params.constraint_scope == common_pb2.ConstraintScope(
            opening_token_ids=[token(IM_START)],
            closing_token_ids=[token(IM_END)],
            max_reasoning_tokens=21,
            is_required=True,
            is_leading=True,
        )
        assert params.structured_output.HasField("json_object")
        enabled = {"thinking": {"type": "enabled", "budget_tokens": 1 << 70}, "max_tokens": 64}
        huge = {"messages": body["messages"], **enabled}
        assert (await http.raw.post("/v1/messages", json=huge)).status_code == 200
    async with make_http(files=make_files(chat_template=THINKS)) as http:
        refused = await http.raw.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "thinking_token_budget"
