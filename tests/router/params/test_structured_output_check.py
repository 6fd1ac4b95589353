"""What cannot be compiled is refused at the door, within a bound, while the loop goes on."""

import asyncio
import json
import time
from typing import Any

import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.structured_output import grammar
from signalbox_contract.structured_output.grammar_cost import UNMEASURED, GrammarCost
from signalbox_router.params import structured_output_check
from signalbox_router.params.params_validation import check_sampling_values
from signalbox_router.params.structured_output_check import (
    MAX_BYTES,
    MAX_CHOICES,
    MAX_RULES_CHARS,
    GrammarChecker,
    check_structured_output,
)
from signalbox_router.parsers.call_rules import call_rule
from signalbox_router.prompt.chat.conversation import Tool
from tests.router.fakes import IM_END, make_tokenizer, token

NESTED = '{"type":"array","items":' * 2000 + "{}" + "}" * 2000
SELF = json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})
IN_TURN = json.dumps(
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
)
COSTLY = json.dumps({"type": "integer", "multipleOf": 9_999_991})


def field_refused(constraint: tuple[str, ...]) -> str:
    with pytest.raises(InvalidArgument) as caught:
        check_sampling_values({"structured_output": constraint})
    return caught.value.field


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        (("",), ""),
        (("choice",), ".choice"),
        (("choice", "yes", ""), ".choice"),
        (("choice", *map(str, range(1025))), ".choice"),
        (("regex", ""), ".regex"),
        (("json_schema", " " * MAX_BYTES + "{}"), ".json_schema"),
        (("grammar", "é" * (MAX_BYTES // 2 + 1)), ".grammar"),
    ],
)
def test_a_constraint_of_no_use_is_refused_by_its_form(
    constraint: tuple[str, ...], field: str
) -> None:
    assert field_refused(constraint) == f"sampling_params.structured_output{field}"


@pytest.mark.parametrize(
    "constraint",
    [("json_object",), ("choice", "a", "b"), ("regex", "x" * MAX_BYTES), ("json_schema", "{")],
)
def test_form_alone_says_nothing_about_the_content(constraint: tuple[str, ...]) -> None:
    check_structured_output(constraint)


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (("json_schema", "{"), "line 1 column 2"),
        (("json_schema", "[1]"), "schema"),
        (("json_schema", '{}}, {"json_schema": {}'), "Extra data"),
        (("json_schema", NESTED), "recursion"),
        (("json_schema", SELF), "nothing conforms"),
        (("json_schema", IN_TURN), "nothing conforms"),
        (("json_schema", '{"$ref": "http://127.0.0.1:9/x.json"}'), "not fetch"),
        (("json_schema", '{"uniqueItems": true}'), "uniqueItems"),
        (("regex", "(?=a)b"), "look-around"),
        (("regex", "(" * 5000 + ")" * 5000), "regex"),
        (("grammar", "root = 1"), ""),
        (("grammar", "(" * 5000), ""),
    ],
)
def test_what_cannot_be_compiled_is_found_out(constraint: tuple[str, ...], reason: str) -> None:
    fault = grammar.find_fault(constraint)
    assert fault is not None
    assert reason in fault
    assert "\n" not in fault


@pytest.mark.parametrize(
    "constraint",
    [("regex", "(a+)+b"), ("regex", "((a|b)*c(a|b){50})*x"), ("choice", 'a "b"\n', "é", "\\")],
)
def test_what_other_engines_stumble_over_compiles(constraint: tuple[str, ...]) -> None:
    assert grammar.find_fault(constraint) is None


async def test_a_costly_constraint_is_given_up_while_the_loop_goes_on() -> None:
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            start = time.monotonic()
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - start)

    ticking = asyncio.create_task(tick())
    checker = GrammarChecker()
    with pytest.raises(InvalidArgument, match=r"takes more than.*multipleOf"):
        await checker.prepare(("json_schema", COSTLY))
    assert len(gaps) > 2  # a loop that had waited would have turned once or twice
    ticking.cancel()


async def test_an_answer_is_remembered() -> None:
    checker = GrammarChecker()
    good, bad = ("regex", "a+"), ("regex", "(a")
    await checker.prepare(good)
    with pytest.raises(InvalidArgument, match=r"sampling_params\.structured_output\.regex"):
        await checker.prepare(bad)
    checker._try = None  # type: ignore[assignment,method-assign]  # no process is asked again
    await checker.prepare(good)
    with pytest.raises(InvalidArgument, match="unclosed group"):
        await checker.prepare(bad)


async def test_what_is_remembered_has_a_bound_in_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_fault(constraint: tuple[str, ...], _: object) -> tuple[None, GrammarCost]:
        asked.append(constraint)
        return None, UNMEASURED

    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(structured_output_check, "MAX_REMEMBERED_CHARS", 3000)
    checker = GrammarChecker()
    monkeypatch.setattr(checker, "_try", no_fault)
    constraints = [("regex", char * 500) for char in "abc"]  # kept as asked, and as compiled
    for constraint in (*constraints, constraints[1], constraints[2]):
        await checker.prepare(constraint)
    assert asked == constraints
    await checker.prepare(constraints[0])  # was forgotten for the third
    assert asked == [*constraints, constraints[0]]


async def test_a_trial_measures_what_compiling_takes() -> None:
    checker = GrammarChecker()
    small = await checker.prepare(("regex", "a+"))
    large = await checker.prepare(("json_schema", make_multiple_of(60_013)))
    assert small.cost.cpu_ns > 0
    assert small.cost.peak_bytes < 8 << 20
    assert large.cost.cpu_ns > 10 * small.cost.cpu_ns
    assert large.cost.peak_bytes > small.cost.peak_bytes + (8 << 20)
    assert await checker.prepare(("json_schema", make_multiple_of(60_013))) == large


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"max_cpu_s": 0.01}, r"takes more than 0\.01 s"),
        ({"max_memory_bytes": 8 << 20}, "takes more than 8 MiB of memory"),
    ],
)
async def test_a_constraint_beyond_a_bound_is_refused_and_one_within_is_not(
    bounds: dict[str, Any], reason: str
) -> None:
    costly = ("json_schema", make_multiple_of(60_013))
    assert (await GrammarChecker().prepare(costly)).constraint == costly  # without the bound
    with pytest.raises(InvalidArgument, match=reason):
        await GrammarChecker(**bounds).prepare(costly)


@pytest.mark.parametrize(
    "constraint",
    [
        ("choice", *(f"choice {i:055}" for i in range(MAX_CHOICES))),
        ("regex", "x" * MAX_BYTES),
        ("json_schema", json.dumps({"enum": ["v" * 54 + f"{i:04}" for i in range(1057)]})),
    ],
)
async def test_constraints_as_large_as_may_be_are_within_the_bounds(
    constraint: tuple[str, ...],
) -> None:
    assert sum(map(len, constraint[1:])) > 0.95 * MAX_BYTES
    assert (await GrammarChecker().prepare(constraint)).cost.peak_bytes > 0


def make_multiple_of(divisor: int) -> str:
    """A schema of a few bytes that takes time and memory in proportion to the divisor."""
    return json.dumps({"type": "integer", "multipleOf": divisor})


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        (f'start: "x" {IM_END}', None),
        (f'start: "x" <[{token(IM_END)}]>', None),
        (f'start: "x" <[0-{token(IM_END)}]> "y"', None),
        ('start: "x" <|unheard_of|>', "unknown special token"),
        ('start: "x" <[999999]>', "too large"),
    ],
)
async def test_a_grammar_may_name_the_special_tokens_of_the_model(
    rules: str, fault: str | None
) -> None:
    vocabulary = make_tokenizer().vocabulary
    tried = GrammarChecker().prepare(("grammar", rules), vocabulary=vocabulary)
    if fault is None:
        assert (await tried).constraint == ("grammar", rules)
        return
    with pytest.raises(InvalidArgument, match=fault):
        await tried


async def test_a_tools_schema_within_rules_is_named() -> None:
    tool = Tool("f", "", {"properties": {"a": {"type": "string", "pattern": "(a"}}}, strict=True)
    rules = f"start: calls\ncalls: call\n{call_rule('call', [Tool('g'), tool], arguments_key='a')}"
    with pytest.raises(InvalidArgument, match=r"tools\[1\]\.parameters"):
        await GrammarChecker().prepare((), rules=rules)


async def test_rules_have_a_bound() -> None:
    with pytest.raises(InvalidArgument, match="tools"):
        await GrammarChecker().prepare((), rules="start: X" * MAX_RULES_CHARS)
