"""Which objects of a schema close, against jsonschema, and what llguidance makes of them."""

import json
import random
import re
from typing import Any

import httpx2
import jsonschema
import pytest

from signalbox_contract.structured_output.grammar import compile_grammar, find_fault
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.params.closed_schema import close_schema
from signalbox_router.params.structured_output_check import closed_form
from tests.contract.structured_output import matching
from tests.contract.structured_output.matching import TOKENIZER, walk
from tests.router.apis.inference.test_chat import ask, chat_stack, make_chat

Schema = dict[str, Any]
NAMES = ("a", "b", "c", "d", "e")


def obj(*required: str, **properties: Any) -> Schema:
    """An open object."""
    schema: Schema = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


def closed(schema: Schema) -> Schema:
    result: Schema = json.loads(close_schema(json.dumps(schema)))
    return result


def fits(schema: Schema, instance: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(instance))


INT, TEXT = {"type": "integer"}, {"type": "string"}
BASE = obj("a", a=INT)
NODE = obj("v", v=INT, next={"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]})


def tagged(tag: str, **properties: Any) -> Schema:
    return obj("kind", kind={"const": tag}, **properties)


CASES: list[tuple[Schema, list[Any], list[Any]]] = [
    # The object itself, below it, and in lists.
    (BASE, [{"a": 1}], [{"a": 1, "z": 1}]),
    (obj(), [{}], [{"a": 1}]),
    (obj(x=BASE), [{}, {"x": {"a": 1}}], [{"x": {"a": 1, "z": 1}}]),
    ({"items": BASE}, [[{"a": 1}]], [[{"a": 1, "z": 1}]]),
    ({"type": "object", "additionalProperties": BASE},
     [{"q": {"a": 1}}], [{"q": {"a": 1, "z": 1}}]),
    ({**BASE, "patternProperties": {"^x": INT}}, [{"a": 1, "x1": 1}], [{"a": 1, "z": 1}]),
    # What is said is respected; so is an object without properties.
    ({"type": "object"}, [{"a": 1}], []),
    ({"type": "object", "required": ["a"]}, [{"a": 1, "z": 1}], []),
    ({**BASE, "additionalProperties": True}, [{"a": 1, "z": 1}], []),
    ({**BASE, "additionalProperties": TEXT}, [{"a": 1, "z": "1"}], [{"a": 1, "z": 1}]),
    ({**BASE, "unevaluatedProperties": TEXT}, [{"a": 1, "z": "1"}], [{"a": 1, "z": 1}]),
    # Closing must leave something: keys that are required, or counted.
    (obj("a", "b", a=INT), [{"a": 1, "b": "x"}], [{"a": 1}]),
    ({**BASE, "minProperties": 2}, [{"a": 1, "z": 1}], [{"a": 1}]),
    ({**obj(a=INT), "enum": [{"a": 1, "z": 1}]}, [{"a": 1, "z": 1}], []),
    # A part that is alone, as Pydantic 1 writes a reference with a description.
    ({"allOf": [{"$ref": "#/definitions/B"}], "definitions": {"B": BASE}},
     [{"a": 1}], [{"a": 1, "z": 1}]),
    ({"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
     [{"v": 1, "next": {"v": 2, "next": None}}], [{"v": 1, "next": {"v": 2, "z": 1}}]),
    # Parts of one object, however they come together, and what is used as one elsewhere.
    ({"allOf": [BASE, obj("b", b=TEXT)]}, [{"a": 1, "b": ""}], [{"a": 1}]),
    ({"$ref": "#/$defs/B", "properties": {"b": INT}, "$defs": {"B": BASE}},
     [{"a": 1, "b": 1}], [{"b": 1}]),
    ({"properties": {"x": {"$ref": "#/$defs/B"},
                     "y": {"allOf": [{"$ref": "#/$defs/B"}, obj(b=INT)]}},
      "$defs": {"B": {"$ref": "#/$defs/C"}, "C": BASE}},
     [{"x": {"a": 1}, "y": {"a": 1, "b": 2}}], [{"x": {"a": 1}, "z": 1}]),
    ({"if": obj("a", a={"const": 1}), "then": obj(b=INT), "else": obj(c=INT)},
     [{"a": 1, "b": 1}, {"c": 1}], [{"a": 1, "b": ""}]),
    (obj(x={"not": {"$ref": "#/$defs/B"}}) | {"$defs": {"B": BASE}},
     [{"x": 1}], [{"x": {"a": 1}}, {"z": 1}]),
    # Alternatives, unless something is said around them.
    ({"anyOf": [BASE, {"type": "null"}]}, [{"a": 1}, None], [{"a": 1, "z": 1}]),
    ({"anyOf": [BASE, obj("b", b=INT)]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}]),
    ({"anyOf": [BASE, {"type": "object"}]}, [{"a": 1}, {"z": 1}], []),
    ({**obj(k=INT), "anyOf": [BASE, obj("b", b=INT)]}, [{"k": 1, "a": 1}, {"b": 1}], [{"k": 1}]),
    ({"required": ["b"], "anyOf": [BASE]}, [{"a": 1, "b": 1}], [{"a": 1}]),
    ({"discriminator": {"propertyName": "kind"}, "oneOf": [{"$ref": "#/$defs/X"}, tagged("y")],
      "$defs": {"X": tagged("x", p=INT)}},
     [{"kind": "x", "p": 1}], [{"kind": "x", "q": 1}, {"kind": "y", "p": 1}]),
    # Nothing tells these apart: {"a": 1} fits both, and must not fit one alone.
    ({"oneOf": [BASE, obj(b=INT)]}, [{"a": 1, "b": ""}], [{"a": 1}]),
    # References that are no paths within the schema.
    ({"allOf": [{"$ref": "#named"}, BASE], "$defs": {"N": {"$anchor": "named", **obj(n=INT)}}},
     [{"a": 1, "n": 1, "z": 1}], []),
    ({"$id": "a", **obj(x={"$id": "b", **BASE})},
     [{"x": {"a": 1}}], [{"z": 1}, {"x": {"a": 1, "z": 1}}]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "fitting", "others"), CASES)
def test_an_object_is_closed_if_one_schema_says_its_keys(
    schema: Schema, fitting: list[Any], others: list[Any]
) -> None:
    result = closed(schema)
    for instance in fitting:
        assert fits(schema, instance)
        assert fits(result, instance), (instance, result)
    for instance in others:
        assert not fits(result, instance), (instance, result)


@pytest.mark.parametrize("text", ["{", "true", "[1]", '{"properties": 1}', "[" * 50_000])
def test_what_is_no_schema_comes_back_as_it_is(text: str) -> None:
    assert close_schema(text) == text


# Random schemas: `unevaluatedProperties` says what closing means.


def random_object(rng: random.Random, depth: int, composed: float) -> tuple[Schema, Schema]:
    """Returns an open object, and the same with unevaluatedProperties, for jsonschema."""
    schema, reference = random_part(rng, depth, composed)
    if "properties" in json.dumps(schema) or "$ref" in json.dumps(schema):
        reference["unevaluatedProperties"] = False
    return schema, reference


def random_value(rng: random.Random, depth: int, composed: float) -> tuple[Schema, Schema]:
    if depth and rng.random() < 0.4:
        return random_object(rng, depth - 1, composed)
    if rng.random() < 0.3:
        name = rng.choice(("P", "Q"))
        return {"$ref": f"#/$defs/{name}"}, {"$ref": f"#/$defs/{name}!"}
    return {"const": 1}, {"const": 1}


def random_part(rng: random.Random, depth: int, composed: float) -> tuple[Schema, Schema]:
    names = rng.sample(NAMES, rng.randint(1, 2))
    values = {name: random_value(rng, depth, composed) for name in names}
    schema, reference = obj(), obj()
    schema["properties"] = {name: value[0] for name, value in values.items()}
    reference["properties"] = {name: value[1] for name, value in values.items()}
    for keyword in ("allOf", "anyOf"):
        if depth and rng.random() < composed:
            parts = [random_part(rng, depth - 1, composed) for _ in range(2)]
            schema[keyword] = [part[0] for part in parts]
            reference[keyword] = [part[1] for part in parts]
    if rng.random() < composed / 2:
        schema["$ref"] = reference["$ref"] = f"#/$defs/{rng.choice('PQ')}"
    return schema, reference


def random_schema(rng: random.Random) -> tuple[Schema, Schema, bool]:
    """Returns a schema, its reference, and whether several schemas apply to one of its objects."""
    is_composed = rng.random() < 0.5
    schema, reference = random_object(rng, depth=2, composed=0.5 * is_composed)
    leaf = {name: {"const": 1} for name in rng.sample(NAMES, 2)}
    parts = {"P": obj(**leaf), "Q": obj(NAMES[-1], **{NAMES[-1]: {"const": 1}})}
    schema["$defs"] = parts
    wholes = {f"{key}!": {**part, "additionalProperties": False} for key, part in parts.items()}
    reference["$defs"] = parts | wholes
    return schema, reference, is_composed


def random_instance(rng: random.Random, depth: int = 2) -> Any:
    if depth == 0 or rng.random() < 0.3:
        return 1
    names = rng.sample((*NAMES, "z"), rng.randint(0, 3))
    return {name: random_instance(rng, depth - 1) for name in names}


def test_closing_refuses_what_unevaluated_properties_refuses() -> None:
    rng = random.Random(15)
    num_taken = num_refused = 0
    for _ in range(150):
        schema, reference, is_composed = random_schema(rng)
        result = closed(schema)
        validators = [jsonschema.Draft202012Validator(one) for one in (schema, reference, result)]
        for _ in range(40):
            instance = random_instance(rng, depth=3)
            is_open, is_wanted, is_closed = (one.is_valid(instance) for one in validators)
            assert is_open or not is_closed, (instance, schema)
            assert is_closed == is_wanted or is_composed, (instance, schema, result)
            # A branch may take no keys of another that fits as well.
            assert is_closed or not is_wanted or "anyOf" in json.dumps(schema), (instance, schema)
            num_taken += is_closed
            num_refused += is_open and not is_closed
    assert num_taken > 200
    assert num_refused > 200


def test_what_the_grammar_admits_validates() -> None:
    rng = random.Random(16)
    num_texts = 0
    for _ in range(60):
        schema, reference, is_composed = random_schema(rng)
        constraint = ("json_schema", json.dumps(schema))
        form = closed_form(constraint, disable_additional_properties=True)
        if find_fault(constraint) is not None:
            continue  # nothing conforms to this one, open or closed
        assert find_fault(form) is None, (schema, form)
        text = walk(form, rng)
        if text is None:
            continue
        assert fits(schema, json.loads(text)), (text, schema)
        assert is_composed or fits(reference, json.loads(text)), (text, schema)
        num_texts += 1
    assert num_texts > 30


def admits(schema: Schema, text: str) -> bool:
    return matching.admits(("json_schema", json.dumps(schema)), text)


SPELLINGS = {
    "a": ['"a"', '"\\u0061"'],
    "\n": ['"\\n"', '"\\u000a"', '"\\u000A"'],
    "\x1f": ['"\\u001f"', '"\\u001F"'],
    "é": ['"é"', '"\\u00e9"', '"\\u00E9"'],
    'q"\\': ['"q\\"\\\\"', '"q\\u0022\\u005c"'],
    "s/": ['"s/"', '"s\\/"'],
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("rest", ["additionalProperties", "patternProperties"])
def test_a_free_key_never_repeats_a_declared_one(name: str, rest: str) -> None:
    free = {"const": 2} if rest == "additionalProperties" else {"": {"const": 2}}
    schema = {**obj(**{name: {"const": 1} if rest == "additionalProperties" else True}), rest: free}
    assert admits(schema, '{"free":2}')
    first = SPELLINGS[name][0]
    for key in SPELLINGS[name]:
        assert json.loads(key) == name
        assert not admits(schema, f"{{{first}:1,{key}:2}}"), key
        assert not admits(schema, f'{{"free":2,{key}:2}}'), key


def test_a_text_may_still_be_one_that_only_an_escape_can_write() -> None:
    schema = {**obj("a", a={"const": "\x01"}), "additionalProperties": True}
    assert admits(schema, '{"a":"\\u0001"}')


def test_an_open_object_of_a_thousand_properties_goes_on_behind_its_bracket() -> None:
    many = obj(**{f"key{number}": TEXT for number in range(1000)})
    schema = json.dumps({**many, "additionalProperties": True})
    matcher = compile_grammar(("json_schema", schema), TOKENIZER)
    for byte in b'{"key1':
        assert matcher.consume_token(byte), matcher.get_error()


OPEN = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = pb.Tool(name="get_weather", parameters=json.dumps(OPEN))
"""Asked for by each API in its own way."""


async def schemas_sent(stack: Any) -> list[Schema]:
    """Returns the schemas that the scheduler gets, of a text and of a forced call."""
    params = pb.SamplingParams(
        structured_output=pb.StructuredOutput(json_schema=json.dumps(OPEN)), max_tokens=9
    )
    await stack.generate(text="Hi", sampling_params=params)
    chat = make_chat(tools=[TOOL], tool_choice=pb.ToolChoice(tool="get_weather"))
    await ask(stack, chat)
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": OPEN}}
    async with httpx2.AsyncClient(base_url=f"http://{stack.router.http.address}") as client:
        for extra in (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": OPEN}}},
            {"guided_json": OPEN},
            {"tools": [tool], "tool_choice": "required"},
        ):
            answer = await client.post("/v1/chat/completions", json=body | extra)
            assert answer.status_code == 200, answer.text
    outputs = [add.sampling_params.structured_output for add in stack.scheduler.added]
    schemas = [
        output.json_schema or re.findall("%json (.*)", output.rules)[0] for output in outputs
    ]
    found = map(json.loads, schemas)
    return [one.get("$defs", {}).get("tools.0.parameters", one) for one in found]


async def test_every_api_closes_and_a_switch_leaves_open() -> None:
    for closes in (True, False):
        async with chat_stack("{}", http_port=0, disable_additional_properties=closes) as stack:
            schemas = await schemas_sent(stack)
        assert len(schemas) == 5
        for schema in schemas:
            assert fits(schema, {"city": "Paris"})
            assert fits(schema, {"city": "Paris", "country": "France"}) is not closes
