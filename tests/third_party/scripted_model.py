"""Serves a model that calls the tools of clients as a script says.

The demo model is too small to finish a loop of calls and results.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anyio.from_thread import start_blocking_portal

from tests.agents.families import CHATML
from tests.agents.stack import scripted_stack
from tests.third_party.clients.demo_tools import (
    CITIES,
    FORM,
    FORM_QUESTION,
    MODEL,
    QUESTION,
    THOUGHT,
    TOOL,
    WEATHER,
)

_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_NAME = re.compile(r'"function": \{"name": "(\w+)"')
FINAL = "final_answer"
"""Tool by which the agents of smolagents end."""


def answer(prompt: str) -> str:
    """Returns two calls at once, then the text of their results; to FORM_QUESTION, FORM."""
    tools = _NAME.findall(prompt)
    if FORM_QUESTION in prompt:
        return _call(tools[0], **FORM) if tools else json.dumps(FORM)
    turns = prompt.rpartition(QUESTION)[2]
    results = _RESULT.findall(turns)
    if not results:  # some agents give results as a text of the user
        results = [result for result in WEATHER.values() if result in turns]
    if not results:
        calls = "\n".join(_call(TOOL, city=city) for city in CITIES)
        return f"<think>\n{THOUGHT}\n</think>\n\n{calls}"
    said = " ".join(results)
    return _call(FINAL, answer=said) if FINAL in tools else said


def _call(name: str, **arguments: Any) -> str:
    text = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{text}\n</tool_call>"


@contextmanager
def serving_scripted_model() -> Iterator[str]:
    """Yields the URL of the HTTP API, without a path."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            scripted_stack(CHATML, answer, num_workers=1, name=MODEL)
        ) as stack,
    ):
        yield stack.url
