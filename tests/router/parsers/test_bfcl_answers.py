"""BFCL's possible answers as calls of each format, which come back equal.

A published template of the format's models writes them, else the form of its documented examples.
BFCL, the Berkeley Function-Calling Leaderboard, is no part of this repository: BFCL names the wheel
that has it, which `make test-templates` downloads.
"""

import ast
import json
import os
import random
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from typing import Any, NamedTuple

import jsonschema
import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_router.prompt.chat.chat_template import ChatTemplate
from signalbox_router.prompt.chat.conversation import Tool
from tests.router.parsers.format_examples import NAMES, Calls, examples
from tests.router.parsers.test_formats import read
from tests.router.parsers.test_published_templates import SDIST, make_template, rendered

WHEEL = os.environ.get("BFCL", "")
CATEGORIES = (
    "simple_python", "simple_java", "simple_javascript", "multiple", "parallel",
    "parallel_multiple", "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple",
)  # fmt: skip
NUM_OF_EACH_KIND = 2
pytestmark = pytest.mark.skipif(
    not (WHEEL and SDIST), reason="BFCL or TEMPLATES names no file; make test-templates"
)


class Answer(NamedTuple):
    """The tools that one task offers, and the calls that answer it."""

    tools: list[Tool]
    calls: Calls


def as_schema(value: Any, types: dict[str, str]) -> Any:
    """Returns the JSON Schema of one in BFCL's types; what is null by default may be null."""
    if isinstance(value, list):
        return [as_schema(one, types) for one in value]
    if not isinstance(value, dict):
        return value
    schema = {key: as_schema(one, types) for key, one in value.items()}
    if isinstance(name := value.get("type"), str):
        is_nullable = "default" in value and value["default"] is None
        own = types.get(name, "string")
        schema["type"] = [own, "null"] if is_nullable else own
    return schema


def first_of(value: Any, *, is_choice: bool) -> Any:
    """Returns a value with the first that is not empty of each list of alternatives in it."""
    if is_choice and isinstance(value, list) and value:
        return first_of(next((one for one in value if one != ""), ""), is_choice=False)
    if isinstance(value, dict):
        return {key: first_of(one, is_choice=True) for key, one in value.items()}
    return [first_of(one, is_choice=False) for one in value] if isinstance(value, list) else value


@cache
def answers() -> list[Answer]:
    """Returns the answers that conform to the schemas of their tools."""
    found = []
    with zipfile.ZipFile(WHEEL) as wheel:

        def lines(path: str) -> Iterator[Any]:
            return map(json.loads, wheel.read(f"bfcl_eval/data/{path}.json").splitlines())

        assignment = ast.parse(wheel.read("bfcl_eval/constants/type_mappings.py")).body[0]
        assert isinstance(assignment, ast.Assign)
        types = ast.literal_eval(assignment.value)
        for category in CATEGORIES:
            tasks = {task["id"]: task["function"] for task in lines(f"BFCL_v4_{category}")}
            for one in lines(f"possible_answer/BFCL_v4_{category}"):
                schemas = {
                    tool["name"]: as_schema(tool["parameters"], types) for tool in tasks[one["id"]]
                }
                calls = [
                    (name, first_of(arguments, is_choice=True))
                    for call in one["ground_truth"]
                    for name, arguments in call.items()
                ]
                if all(conforms(arguments, schemas[name]) for name, arguments in calls):
                    tools = [Tool(name, "", schema) for name, schema in schemas.items()]
                    found.append(Answer(tools, calls))
    return found


def conforms(arguments: Any, schema: Any) -> bool:
    try:
        jsonschema.validate(arguments, schema)
    except (jsonschema.ValidationError, jsonschema.SchemaError):
        return False
    return True


def kinds(value: Any, depth: int = 0) -> Iterator[str]:
    """Yields what is special about a value and its parts: type, depth, signs, emptiness."""
    is_empty = value in ("", [], {})
    yield f"{type(value).__name__} {'empty' if is_empty else min(depth, 3)}"
    if isinstance(value, str):
        yield from (one for one in "\"'\\<>&\n" if one in value)
        yield "ASCII" if value.isascii() else "Unicode"
    for part in value.values() if isinstance(value, dict) else value if type(value) is list else ():
        yield from kinds(part, depth + 1)


@cache
def shortest() -> list[Answer]:
    """Returns a few of the shortest answers with each kind of argument, and with several calls."""
    by_length = sorted(answers(), key=lambda one: len(json.dumps(one.calls)))
    chosen, seen = [], dict[str, int]()
    for answer in by_length:
        own = {
            f"{len(answer.calls) > 1}",
            *(kind for _, one in answer.calls for kind in kinds(one)),
        }
        if any(seen.get(kind, 0) < NUM_OF_EACH_KIND for kind in own):
            chosen.append(answer)
            seen |= {kind: seen.get(kind, 0) + 1 for kind in own}
    return chosen


def keywords(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def of_gemma(value: Any) -> str:
    if isinstance(value, dict):
        inner = ",".join(f"{key}:{of_gemma(one)}" for key, one in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{','.join(map(of_gemma, value))}]"
    return f"<escape>{value}<escape>" if isinstance(value, str) else json.dumps(value)


class Form(NamedTuple):
    """How a format without a published template writes calls."""

    call: str
    separator: str = ", "
    before: str = ""
    after: str = ""
    arguments: Callable[[Any], str] = json.dumps


_JSON = '{{"name": "{}", "arguments": {}}}'
_LLAMA = '{{"name": "{}", "parameters": {}}}'
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
FORMS = {
    "deepseek_v3": Form(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>", "\n",
        *_DEEPSEEK,
    ),
    "deepseek_v31": Form(
        "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>", "", *_DEEPSEEK,
    ),
    "functiongemma": Form(
        "<start_function_call>call:{}{}<end_function_call>", "", arguments=of_gemma
    ),
    "granite": Form(_JSON, before="<|tool_call|>[", after="]"),
    "json": Form(_JSON, "; "),
    "llama4_json": Form(_LLAMA, "; "),
    "llama4_pythonic": Form("{}({})", before="[", after="]", arguments=keywords),
    "olmo3": Form(
        "{}({})", "\n", "<function_calls>\n", "\n</function_calls>", arguments=keywords
    ),
    "phi4_mini_json": Form(_JSON, before="<|tool_call|>[", after="]<|/tool_call|>"),
    "xlam": Form(_JSON, before="[", after="]"),
}  # fmt: skip


LOSSY = {"lfm2": '\\\\"'}
"""What the JSON of answers cannot have: a backslash at a text's end, where nothing is escaped."""


class Writer:
    """Writes calls in one format."""

    def __init__(self, name: str, templates: list[ChatTemplate]) -> None:
        self._templates = templates
        self._form = FORMS.get(name)
        self._is_single = examples(name).single

    def texts(self, calls: Calls) -> Iterator[tuple[str, Calls]]:
        """Yields texts and the calls in each: one text of all calls, or one of each."""
        if self._is_single and len(calls) > 1:
            for call in calls:
                yield from self.texts([call])
            return
        if self._form is not None:
            inner = (self._form.call.format(name, self._form.arguments(one)) for name, one in calls)
            yield f"{self._form.before}{self._form.separator.join(inner)}{self._form.after}", calls
            return
        self._templates.append(template := self._templates.pop(0))
        try:
            yield rendered(template, calls), calls
        except InvalidArgument:
            assert len(calls) > 1  # some take one call in a message
            for call in calls:
                yield rendered(template, [call]), [call]


def same(calls: Calls) -> str:
    return json.dumps(calls, sort_keys=True)  # as 1, 1.0 and true are equal in Python


@pytest.mark.parametrize("name", NAMES)
def test_answers_of_bfcl_are_read_back(name: str) -> None:
    """Each answer is read whole, a character at a time and cut at random; `shortest` at each place.

    To cut all of them at each place takes an hour.
    """
    rng, num_read = random.Random(name), 0
    is_shortest = {same(one.calls) for one in shortest()}
    with ExitStack() as stack:
        templates = [
            stack.enter_context(closing(make_template(one))) for one in examples(name).published
        ]
        writer = Writer(name, templates)
        for answer in answers():
            if name in LOSSY and LOSSY[name] in json.dumps(answer.calls):
                continue
            for text, calls in writer.texts(answer.calls):
                cuts = [*range(len(text))] if same(answer.calls) in is_shortest else []
                cuts.append(rng.randrange(len(text)))
                for pieces in ([text], text, *([text[:cut], text[cut:]] for cut in cuts)):
                    _, found = read(examples(name).format_.parser(answer.tools), pieces)
                    assert same(found) == same(calls), text
            num_read += 1
    assert num_read > 2000
