"""Conversations in this process: OpenAI's dictionaries, rendered as a router renders them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from signalbox import LLM, EngineArgs, SamplingParams
from tests.signalbox.llm.make import GREEDY, assert_at_rest, make_llm

HI = [{"role": "user", "content": "Hi"}]
SHOUT = "{% for m in messages %}{{ m.content | upper }}!{% endfor %}"
TOOLS_TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}: {{ tool.function.description }}]"
    "{% endfor %}{% for m in messages %}{{ m.role }}={{ m.content }}"
    "{% for call in m.tool_calls or [] %}<{{ call.function.name }}"
    " {{ call.function.arguments.city }}>{% endfor %}"
    "{{ m.tool_call_id or '' }};{% endfor %}{{ mood or '' }}"
)
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells it"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with make_llm() as llm:
        yield llm


def prompt_of(llm: LLM, messages: Any = HI, **options: Any) -> str:
    short = SamplingParams(temperature=0, max_tokens=1)
    (output,) = llm.chat(messages, short, use_tqdm=False, **options)
    assert output.prompt is not None
    return output.prompt


def test_a_template_of_the_callers_is_used_instead(llm: LLM) -> None:
    assert prompt_of(llm, chat_template=SHOUT) == "HI!"
    assert prompt_of(llm) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_an_engine_may_have_a_template_instead_of_the_models(tmp_path: Path) -> None:
    (tmp_path / "shout.jinja").write_text(SHOUT)
    for name, expected in ((tmp_path / "shout.jinja", "HI!"), ("zephyr", "<|user|>\nHi")):
        config = EngineArgs("m.gguf", chat_template=str(name)).core_config()
        assert config.chat_template is not None
        with make_llm(config) as llm:
            prompt = prompt_of(llm)
            assert prompt.startswith(expected)
            rendered = llm.get_tokenizer().apply_chat_template(
                HI, tokenize=False, add_generation_prompt=True
            )
            assert rendered == prompt
            assert_at_rest(llm.llm_engine)
    with pytest.raises(ValueError, match=r"chat_template is 'absent': no file .* chatml"):
        EngineArgs("m.gguf", chat_template="absent").core_config()


@pytest.mark.parametrize(
    "arguments", ['{"city": "Rome"}', {"city": "Rome"}, '{"city": "Rome", "da']
)
def test_tools_calls_and_results_are_rendered(llm: LLM, arguments: Any) -> None:
    call = {**CALL, "function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "no", "tool_call_id": "c1"},
    ]
    text = prompt_of(
        llm,
        messages,
        chat_template=TOOLS_TEMPLATE,
        tools=[TOOL],
        chat_template_kwargs={"mood": "calm"},
    )
    assert text == "[weather: Tells it]user=Rain?;assistant=<weather Rome>;tool=noc1;calm"


def test_a_template_without_tools_is_told_of_them_in_words(llm: LLM) -> None:
    text = prompt_of(llm, tools=[TOOL])
    assert text.startswith("<|im_start|>system\nYou may call functions.")
    assert '"name": "weather", "description": "Tells it"}' in text


def test_a_last_message_that_is_continued_is_left_open(llm: LLM) -> None:
    messages = [*HI, {"role": "assistant", "content": "Well, I"}]
    text = prompt_of(llm, messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nWell, I")


@pytest.mark.parametrize(
    ("messages", "options", "named"),
    [
        ([[]], {}, r"messages\[0\]"),
        ([{"role": "user", "content": "a", "mood": 1}], {}, r"messages\[0\]: 'mood'"),
        ([{"role": "wizard", "content": "a"}], {}, "role is 'wizard'"),
        ([{"role": "user", "content": None}], {}, "content"),
        ([{"role": "tool", "content": "a", "tool_call_id": 5}], {}, "tool_call_id is 5"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            {},
            r"messages\[0\]\.tool_calls\[0\]",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": 5}}]}],
            {},
            "arguments must be an object",
        ),
        (HI, {"tools": [{"name": "weather"}]}, r"tools\[0\]"),
        (HI, {"tools": [TOOL, TOOL], "chat_template": SHOUT}, r"tools\[1\]\.name"),
        (HI, {"continue_final_message": True}, "add_generation_prompt"),
        (HI, {"chat_template": "{% if %}"}, "chat_template"),
        (HI, {"chat_template": "{{ 1 // 0 }}"}, "messages"),
        (HI, {"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
    ],
)
def test_what_cannot_be_rendered_is_refused_by_name(
    llm: LLM, messages: Any, options: dict[str, Any], named: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        llm.chat(messages, GREEDY, use_tqdm=False, **options)
    assert not llm.llm_engine.has_unfinished_requests()


def test_each_conversation_may_have_a_priority(llm: LLM) -> None:
    outputs = llm.chat([HI, HI], GREEDY, use_tqdm=False, priority=[5, -5])
    assert len(outputs) == 2
    with pytest.raises(ValueError, match="priority"):
        llm.chat(HI, GREEDY, use_tqdm=False, priority=10_000)
