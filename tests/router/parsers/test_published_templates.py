"""Calls as the published templates of a format's models write them, which the format reads back.

The templates are no part of this repository: TEMPLATES names the sdist that has them, which
`make test-templates` downloads.
"""

import os
import re
import tarfile
from contextlib import closing
from functools import cache
from pathlib import PurePath

import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_router.parsers import tool_call_formats
from signalbox_router.prompt.chat.chat_template import ChatTemplate
from signalbox_router.prompt.chat.conversation import Conversation, Message, Thinking, ToolCall
from signalbox_router.prompt.chat.provenance import plain
from signalbox_router.prompt.chat.thinking_form import DEFAULT, EFFORTS, form_of
from tests.router.parsers.format_examples import ADD, NAMES, PARIS, TOOLS, Calls, examples
from tests.router.parsers.test_formats import make_parser, read, tokenizer_of

SDIST = os.environ.get("TEMPLATES", "")
ASKED = "What is it?"
CALLS = [("get_weather", PARIS), ("add", ADD)]
VARIABLES_OF_EFFORT = re.compile(
    r"(reasoning_effort|thinking_(effort|mode|budget)) +(==|is (not )?defined|not in|in)"
)
DESCRIBED = [
    tool._replace(description="It helps.", parameters=tool.parameters or {"properties": {}})
    for tool in TOOLS
]
"""Some templates take no tool without a description and parameters."""
PUBLISHED = [(name, template) for name in NAMES for template in examples(name).published]
DETECTED = [(name, template) for name in NAMES for template in examples(name).detected]
pytestmark = pytest.mark.skipif(not SDIST, reason="TEMPLATES names no sdist; make test-templates")


@cache
def sources() -> dict[str, str]:
    """Returns the templates by their file names."""
    with tarfile.open(SDIST) as archive:
        members = [one for one in archive if one.name.endswith(".jinja")]
        texts = {PurePath(one.name).stem: archive.extractfile(one) for one in members}
        return {name: file.read().decode() for name, file in texts.items() if file is not None}


def make_template(name: str) -> ChatTemplate:
    return ChatTemplate(sources()[name], special_tokens={"bos_token": "<s>", "eos_token": "</s>"})


def rendered(template: ChatTemplate, calls: Calls) -> str:
    made = [ToolCall(f"abcdefg{i:02}", *call) for i, call in enumerate(calls)]
    messages = [Message("user", ASKED), Message("assistant", "", made)]
    messages += [Message("tool", "3", tool_call_id=call.id, name=call.name) for call in made]
    conversation = Conversation(messages=messages, tools=DESCRIBED)
    return plain(template.render(conversation, max_bytes=1 << 20)).rpartition(ASKED)[2]


@pytest.mark.parametrize(("name", "template"), PUBLISHED)
def test_calls_of_a_published_template_are_read_back(name: str, template: str) -> None:
    with closing(make_template(template)) as by_template:
        try:
            num_calls, text = 2, rendered(by_template, CALLS)
        except InvalidArgument:  # some take one call in a message
            num_calls, text = 1, rendered(by_template, CALLS[:1])
    num_calls = 1 if examples(name).single else num_calls
    for cut in range(len(text)):
        pieces = [text[:cut], text[cut:]]
        _, calls = read(make_parser(examples(name).format_), pieces)
        assert calls == CALLS[:num_calls], text


@pytest.mark.parametrize(("name", "template"), PUBLISHED + DETECTED)
def test_a_published_template_tells_the_format(name: str, template: str) -> None:
    vocabulary, _ = tokenizer_of(name, has_markers=True)
    assert tool_call_formats.detect(sources()[template], vocabulary) is examples(name).format_


def test_every_effort_is_one_that_a_published_template_takes() -> None:
    told = {name: one for name, one in sources().items() if VARIABLES_OF_EFFORT.search(one)}
    assert {name for name, source in told.items() if form_of(source) is DEFAULT} == set()
    for source in told.values():
        by_template = ChatTemplate(source, special_tokens={"bos_token": "", "eos_token": ""})
        for effort in EFFORTS:
            asked = Conversation(messages=[Message("user", "Hi")], thinking=Thinking(effort=effort))
            text = plain(by_template.render(asked, max_bytes=1 << 20))
            assert "Reasoning: " not in text or re.search("Reasoning: (low|medium|high)", text)
        by_template.close()


def test_a_template_without_a_format_of_its_own_is_none_of_another() -> None:
    vocabulary, _ = tokenizer_of("json", has_markers=False)
    known = {template for _, template in PUBLISHED + DETECTED}
    chosen = {
        name: tool_call_formats.detect(source, vocabulary)
        for name, source in sources().items()
        if "tools" in source and name not in known
    }
    assert [name for name, format_ in chosen.items() if not format_.is_generic] == []
