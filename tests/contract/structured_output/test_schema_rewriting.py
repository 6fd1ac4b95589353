"""What JSON schemas admit once they are rewritten for llguidance, against jsonschema."""

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from signalbox_contract.structured_output.grammar import find_fault
from tests.contract.structured_output.matching import admits, walk

Schema = dict[str, Any]
INT, TEXT = {"type": "integer"}, {"type": "string"}
TAGGED = {
    name: {"type": "object", "properties": {"tag": {"const": name}, **more}, "required": ["tag"]}
    for name, more in (("cat", {"name": TEXT}), ("dog", {"age": INT}))
}
SECRETS = ("password", "byte", "binary", "path", "url", "color", "int64", "uri-reference")


def constraint(schema: object) -> tuple[str, str]:
    return ("json_schema", json.dumps(schema))


def refs(*names: str) -> list[Schema]:
    return [{"$ref": f"#/$defs/{name}"} for name in names]


def obj(*names: str, **more: Any) -> Schema:
    return {"type": "object", "properties": dict.fromkeys(names, INT)} | more


SHARED = obj("a", properties={"a": INT, "b": TEXT, "c": TEXT})
CLOSED = {"additionalProperties": False}
CASES: list[tuple[Schema, list[Any], list[Any]]] = [
    # oneOf: branches by reference; branches that overlap exclude each other.
    ({"oneOf": refs("cat", "dog"), "$defs": TAGGED},
     [{"tag": "cat", "name": "x"}, {"tag": "dog", "age": 1}], [{"tag": "dog", "age": "x"}, {}]),
    ({**obj("a", "b"), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
     [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}, {}]),
    ({"oneOf": [{"enum": ["a", "ab"]}, {}]}, ["", "b", "abc", 1, [], None], ["a", "ab"]),
    ({"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]},
     [2, 6], [3, 5]),
    ({"oneOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"b": TEXT}}]},
     [{"a": "x"}, {"b": 1}], [1, {}, {"a": None}, {"a": "x", "b": 1}]),
    ({"oneOf": [obj("a", **CLOSED), obj("b", **CLOSED)]}, [{"a": 1}, {"b": 1}], [{}, {"c": 1}]),
    ({"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]},
     ["ax", "b"], ["c"]),
    ({"oneOf": [{**SHARED, "required": ["b"]}, {**SHARED, "required": ["c"]}]},
     [{"a": 1, "b": "x"}, {"c": "x"}], [{"b": "x", "c": "x"}, {"a": "x", "c": "x"}, {"a": 1}]),
    ({"allOf": [{"required": ["tag"]}, {"oneOf": [{"properties": one["properties"]}
      for one in TAGGED.values()]}], "type": "object"},
     [{"tag": "cat", "name": "x"}], [{"tag": "dog", "age": "x"}, {}, {"tag": "cow"}]),
    # format is an annotation where llguidance does not enforce it.
    *[({"type": "string", "format": name}, ["anything at all"], [1]) for name in SECRETS],
    ({"format": "uuid", "type": "string"}, ["123e4567-e89b-12d3-a456-426614174000"], ["x"]),
    # Keys.
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INT},
     [{}, {"a": 1}, {"a": 1, "b": 2}], [{"c": 1}, {"a": "x"}]),
    ({"type": "object", "propertyNames": {"$ref": "#/$defs/n"}, "additionalProperties": INT,
      "$defs": {"n": {"pattern": "^[a-c]+$"}}}, [{"abc": 1}], [{"d": 1}, {"a": "x"}]),
    ({"type": "object", "propertyNames": {"type": "array", "pattern": "a"}}, [{}], [{"a": 1}]),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    ({"type": "object", "propertyNames": {"anyOf": [{"const": "k"}, {"pattern": "^x-"}]}},
     [{"k": 1, "x-1": 2}], [{"a": 1}]),
    ({**obj("a"), "patternProperties": {".*": {"minimum": 3}}, "propertyNames": {"pattern": "^."}},
     [{"a": 3, "b": 4}, {"b": "x"}], [{"a": 2}, {"b": 2}, {"": 3}]),
    ({**obj("a", "b"), "minProperties": 1}, [{"a": 1}, {"b": 1}, {"c": 1}], [{}]),
    ({**obj("a", "b"), "dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}],
     [{"a": 1}]),
    ({**obj("a", "b"), "dependencies": {"a": ["b"], "b": {"properties": {"c": TEXT}}}},
     [{"a": 1, "b": 1}, {"b": 1, "c": "x"}, {"c": 1}], [{"a": 1}, {"b": 1, "c": 1}]),
    ({**obj("a"), "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
    # Counts that are whole numbers written as fractions.
    ({"type": "array", "maxItems": 2.0, "minItems": 1.0}, [[1], [1, 2]], [[], [1, 2, 3]]),
    ({"type": "string", "maxLength": 2.0}, ["ab"], ["abc"]),
    # if, then and else, together and alone.
    ({**obj("n"), "properties": {"kind": TEXT, "n": INT}, "required": ["kind"],
      "if": {"properties": {"kind": {"const": "big"}}},
      "then": {"properties": {"n": {"minimum": 9}}},
      "else": {"properties": {"n": {"maximum": 8}}}},
     [{"kind": "big", "n": 9}, {"kind": "bi", "n": 1}, {"kind": "bigger", "n": 8}],
     [{"kind": "big", "n": 8}, {"kind": "small", "n": 9}]),
    ({"type": "integer", "if": {"minimum": 3}}, [1, 5], ["x"]),
    ({"type": "integer", "then": {"minimum": 3}, "else": False}, [1, 5], ["x"]),
    ({"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 5}}, [1, 5], [6]),
    # not.
    ({"type": "string", "not": {"enum": ["a", "ab", ""]}}, ["b", "aba", "aa"], ["a", "ab", ""]),
    ({"not": {"type": ["object", "null"]}}, [1, "x", []], [{}, None]),
    ({**obj("a", "b"), "not": {"required": ["a", "b"]}}, [{}, {"a": 1}], [{"a": 1, "b": 1}]),
    ({"not": {"anyOf": refs("x"), "minLength": 2}, "$defs": {"x": TEXT}}, [1, "a"], ["ab"]),
    # Dialects and references.
    ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "minimum": 1,
      "exclusiveMinimum": True}, [1.5], [1]),
    ({"items": [INT, TEXT], "additionalItems": False}, [[], [1], [1, "x"]], [["x"], [1, "x", 1]]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
      "prefixItems": [TEXT], "items": INT}, [[1]], [["x"]]),
    ({"properties": {"a": {"$ref": "#n"}}, "$defs": {"n": {"$anchor": "n", **INT}}},
     [{"a": 1}], [{"a": "x"}]),
    ({"type": "object", "properties": {"next": {"type": "object", "$ref": "#"}, "v": INT}},
     [{"next": {"next": {}, "v": 1}}], [{"next": {"v": "x"}}, {"next": 1}]),
    ({"type": "string", "pattern": "^[[a]$"}, ["[", "a"], ["[a", "b"]),
    ({"type": "string", "pattern": r'^a[^"]$'}, ["a\\", "ab"], ['a"', "a"]),
    ({"type": "string", "pattern": r"^a[^\\/]*$"}, ['a"', "abc"], ["a\\", "a/", "ab\\c"]),
    ({"x-guidance": {"lenient": True}, **INT}, [1], ["x"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "fitting", "others"), CASES)
def test_a_keyword_admits_what_jsonschema_accepts_and_nothing_else(
    schema: Schema, fitting: list[Any], others: list[Any]
) -> None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema)
    for value in (*fitting, *others):
        is_valid = value in fitting
        assert find_fault(constraint(schema)) is None
        if schema.get("format") != "uuid" and "dependencies" not in schema:
            listed = isinstance(schema.get("items"), list)  # a dialect before 2020-12
            assert listed or validator.is_valid(value) is is_valid, value
        assert admits(constraint(schema), json.dumps(value)) is is_valid, value


CHARS = "a1_ \t\n\x1c\x1f\x7f\x85\xa0\ufeff\u3000é²٣̈[]^-&"


@pytest.mark.parametrize("end", ["", "-", "é"])
@pytest.mark.parametrize("name", [*"sSdDwW"])
def test_a_class_of_characters_matches_no_more_than_in_python(name: str, end: str) -> None:
    for pattern in (rf"^\{name}$", rf"^[\{name}{end}]$", rf"^[^\{name}{end}]$", rf"^[\\\{name}]$"):
        schema = {"type": "string", "pattern": pattern}
        validator = jsonschema.Draft202012Validator(schema)
        admitted = {
            char
            for char in CHARS
            if admits(constraint(schema), json.dumps(char, ensure_ascii=False))
        }
        assert admitted <= {char for char in CHARS if validator.is_valid(char)}, pattern
        common = {char for char in "a1_ " if validator.is_valid(char)}
        assert common == admitted & {*"a1_ "}, pattern
    anything = constraint({"type": "string", "pattern": rf"^[\{name}\{name.swapcase()}]$"})
    assert all(admits(anything, json.dumps(char, ensure_ascii=False)) for char in "a\x85\ufeffé")


END = 1 << 63
WHOLE_BOUNDS: list[tuple[Schema, list[int], list[int]]] = [
    ({"minimum": -END, "maximum": END - 1}, [0, END - 1, 1024 - END], [END]),
    ({"minimum": 0, "maximum": 2**64 - 1}, [0, END - 1], [-1, 2**64]),
    ({"minimum": 0, "exclusiveMaximum": 2**64}, [0, END - 1], [-1, 2**64]),
    ({"minimum": -END, "exclusiveMaximum": END}, [0, END - 1], [END]),
    ({"minimum": -9.223372036854775808e18, "maximum": 9.223372036854775807e18}, [0], [10**19]),
    ({"minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308}, [0, 10**18], []),
    ({"minimum": 10**18}, [10**18, END - 1], [10**18 - 1]),
    ({"exclusiveMaximum": 1 - 10**18}, [-(10**18)], [1 - 10**18]),
    ({"minimum": 2**53, "exclusiveMaximum": 2**53 + 3}, [2**53, 2**53 + 1], [2**53 + 3]),
    ({"minimum": 2**53 - 1.0, "maximum": 2**62}, [2**53 - 1, 2**62], [2**53 - 2, 2**62 + 1]),
    ({"exclusiveMinimum": 1.0, "maximum": 3.5}, [2, 3], [1, 4]),
    ({"enum": [2**60, END - 1, -(2**61), 7.0]}, [2**60, END - 1, -(2**61), 7], [2**60 + 1]),
]


@pytest.mark.parametrize(("bounds", "inside", "outside"), WHOLE_BOUNDS)
def test_bounds_of_whole_numbers_are_exact_up_to_the_ends_of_64_bits(
    bounds: Schema, inside: list[int], outside: list[int]
) -> None:
    schema = {"type": "integer", **bounds}
    for value in (*inside, *outside):
        assert admits(constraint(schema), str(value)) is (value in inside), value


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        *[({**INT, key: 2**53 + 1}, key) for key in ("minimum", "maximum")],
        *[({**INT, key: 2**53 + 2}, key) for key in ("exclusiveMinimum", "exclusiveMaximum")],
        *[({"type": "number", key: 2**60}, key) for key in ("minimum", "maximum")],
        ({"type": "number", "exclusiveMinimum": 2.0**53}, "exclusiveMinimum"),
        ({"minimum": 0.30000000000000004}, "minimum"),
        ({**INT, "minimum": END}, "minimum"),
        ({**INT, "maximum": -END - 1}, "maximum"),
        ({"const": 1234567890123456789}, "const"),
        ({"const": {"id": [1234567890123456789]}}, "const"),
        ({"enum": [1, 1234567890123456789]}, "enum"),
        ({"const": 10**19}, "const"),
        ({"const": 1e300}, "const"),
        ({"allOf": [{"multipleOf": 65536}, {"multipleOf": 65537}]}, "multipleOf"),
        ({"maxItems": 1.5}, "maxItems"),
        ({"minLength": -1}, "minLength"),
        ({"uniqueItems": True}, "uniqueItems"),
        ({"contains": INT}, "contains"),
        ({"minProperties": 2}, "minProperties"),
        ({"unevaluatedProperties": False, "allOf": [obj("a")]}, "unevaluatedProperties"),
        ({"unevaluatedItems": False, "anyOf": [{"prefixItems": [INT]}, {}]}, "unevaluatedItems"),
        ({"propertyNames": {"pattern": "^a", "maxLength": 2}}, "propertyNames"),
        ({"propertyNames": {"oneOf": [{"const": "a"}, {"pattern": "^a"}]}}, "propertyNames"),
        ({"not": {"pattern": "a"}}, "not"),
        ({"if": {"items": INT}, "then": {"maxItems": 1}}, "if"),
        ({"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]},
         "oneOf"),
        ({"required": True}, "required"),
        ({"type": "any"}, "type"),
        ({"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": "a"},
                                         "y": {"$id": "y", "$dynamicAnchor": "a"}}}, "$dynamicRef"),
        ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "uniqueItems"),
    ],
)  # fmt: skip
def test_what_has_no_exact_form_is_refused_by_its_keyword(schema: Schema, keyword: str) -> None:
    fault = find_fault(constraint(schema))
    assert fault is not None
    assert f'"{keyword}"' in fault


def test_formats_are_enforced_that_llguidance_knows_and_no_others() -> None:
    for name in {*jsonschema.FormatChecker.checkers, *SECRETS, "hostname", "uri"}:
        schema = {"type": "string", "format": name}
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        is_known = not LLMatcher.validate_grammar(grammar)
        assert admits(constraint(schema), json.dumps("~ no format's ~")) is not is_known, name


def test_the_same_keywords_are_taken_where_they_say_nothing() -> None:
    for schema in (
        {"uniqueItems": False, "contains": INT, "minContains": 0, "unevaluatedItems": True},
        {"type": "string", "uniqueItems": True, "minimum": 2**53 + 1, "contains": INT},
        {"type": "array", "maxItems": 1, "uniqueItems": True},
        {"properties": {"a": {"multipleOf": 65536}, "b": {"multipleOf": 65537}}},
        {"$defs": {"unused": {"uniqueItems": True}}, "$ref": "#/$defs/used%31"}
        | {"$defs": {"used1": INT, "unused": {"uniqueItems": True}}},
    ):
        assert find_fault(constraint(schema)) is None, schema


def number(rng: random.Random) -> float:
    return rng.choice([
        rng.randint(-30, 30), rng.randint(-(10**12), 10**12), round(rng.uniform(-9, 9), 3),
        rng.choice([-1, 1]) * 2 ** rng.randint(50, 66), rng.uniform(-3, 3), 1e19, -END, END - 1,
    ])  # fmt: skip


def random_schema(rng: random.Random, depth: int = 2) -> Any:
    """A schema of any keywords, most of which contradict each other seldom enough."""

    def below() -> Any:
        return random_schema(rng, depth - 1)

    scalars = [None, True, 0, 1, 2.5, "a", "ab", ""]
    names = ["a", "b", "c"]
    schema: Schema = {"type": rng.choice(["object", "array", "integer", "number", "string"])}
    optional: dict[str, tuple[float, Any]] = {
        "type": (0.2, lambda: rng.choice([["string", "null"], ["object", "integer"], "boolean"])),
        "enum": (0.1, lambda: rng.sample(scalars, 3)),
        "minimum": (0.1, lambda: number(rng)),
        "exclusiveMaximum": (0.1, lambda: number(rng)),
        "maxLength": (0.1, lambda: rng.choice([1, 2.0])),
        "pattern": (0.05, lambda: rng.choice(["^a", "b$"])),
        "format": (0.05, lambda: "byte"),
    }  # fmt: skip
    if depth:
        optional |= {
            "properties": (0.6, lambda: {name: below() for name in rng.sample(names, 2)}),
            "required": (0.3, lambda: rng.sample(names, 1)),
            "additionalProperties": (0.3, lambda: rng.choice([False, below()])),
            "propertyNames": (0.1, lambda: rng.choice([{"enum": ["a", "c"]}, {"pattern": "^a"}])),
            "minProperties": (0.1, lambda: 1),
            "dependentRequired": (0.1, lambda: {rng.choice(names): [rng.choice(names)]}),
            "dependentSchemas": (0.1, lambda: {rng.choice(names): below()}),
            "items": (0.4, below),
            "maxItems": (0.3, lambda: 2.0),
            "oneOf": (0.2, lambda: [below() for _ in range(2)]),
            "anyOf": (0.1, lambda: [below() for _ in range(2)]),
            "allOf": (0.1, lambda: [below()]),
            "not": (0.1, below),
            "if": (0.15, below),
            "then": (0.15, below),
            "else": (0.1, below),
        }
    for keyword in rng.sample([*optional], len(optional)):
        chance, make = optional[keyword]
        if rng.random() < chance:
            schema[keyword] = make()
    return schema


def random_value(rng: random.Random, depth: int = 2) -> Any:
    match rng.randrange(4 if depth else 2):
        case 0 | 1:
            return rng.choice([None, True, 0, 1, 2.5, 9, "a", "ab", "", "b"])
        case 2:
            return [random_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {name: random_value(rng, depth - 1) for name in "abc" if rng.random() < 0.4}


def test_what_masks_admit_of_random_schemas_is_what_jsonschema_accepts() -> None:
    rng = random.Random(40)
    num_drawn = num_taken = 0
    for _ in range(250):
        schema = random_schema(rng)
        validator = jsonschema.Draft202012Validator(schema)
        values = [random_value(rng) for _ in range(10)]
        fault = find_fault(constraint(schema))
        if fault is not None:
            is_empty = "Unsatisfiable" in fault or "nothing conforms" in fault
            assert not is_empty or not any(map(validator.is_valid, values)), (schema, fault)
            continue
        for _ in range(2):
            text = walk(constraint(schema), rng, max_bytes=600)
            if text is not None:
                assert validator.is_valid(json.loads(text)), (schema, text)
                num_drawn += 1
        for value in values:
            is_admitted = admits(constraint(schema), json.dumps(value))
            assert validator.is_valid(value) or not is_admitted, (schema, value)
            if not isinstance(value, dict | list):  # keys come in one order
                assert is_admitted or not validator.is_valid(value), (schema, value)
            num_taken += is_admitted
    assert num_drawn > 120
    assert num_taken > 60


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [obj(*(f"{i}{j}" for j in range(3))) for i in range(300)]},
        {"oneOf": [{"pattern": f"^{'a' * i}"} for i in range(300)]},
        {"$ref": "#/$defs/0", "$defs": {str(i): {"allOf": refs(str(i + 1), str(i + 1))}
                                        for i in range(40)} | {"40": INT}},
        {"$ref": "#/$defs/0", "$defs": {str(i): {"not": {"anyOf": refs(str(i + 1), str(i + 1))}}
                                        for i in range(40)} | {"40": INT}},
    ],
)  # fmt: skip
def test_work_on_a_schema_that_grows_without_end_is_bounded(schema: Schema) -> None:
    fault = find_fault(constraint(schema))
    assert fault is not None
    assert "steps" in fault or '"oneOf"' in fault
