"""Structured outputs on a worker: what a sequence may draw follows from its tokens alone."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.forks import Fork
from signalbox_contract.structured_output.grammar import GrammarError
from signalbox_contract.structured_output.scope import WHOLE, Scope
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.runner.loading.byte_tokenizer import END_OF_SEQUENCE_ID
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.sampling import compiled_grammar
from signalbox_worker.sampling.compiled_grammar import CompiledGrammar, Grammar
from signalbox_worker.sampling.grammar_masks import DraftedOutput, Masks, draft_masks, step_masks
from signalbox_worker.sampling.grammars import Grammars
from signalbox_worker.sampling.token_constraints import Mask
from tests.gpu_worker.builders import make_new, make_runner, make_step, make_table

Constraint = tuple[str, ...]
PROMPT = [72, 105]


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = make_grammars()
    yield grammars
    grammars.close()


def make_grammars() -> Grammars:
    runner = SimulatedRunner()
    return Grammars(runner.model, tokenizer_json=runner.tokenizer_files()["tokenizer.json"])


def ids(text: str) -> np.ndarray:
    """The simulated tokenizer has a token for each byte."""
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def allowed(mask: Mask | None) -> set[int]:
    assert mask is not None
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def letters(text: str) -> set[int]:
    return set(ids(text).tolist())


@pytest.mark.parametrize(
    ("constraint", "output", "expected"),
    [
        (("regex", "ab?"), "", letters("a")),
        (("regex", "ab?"), "a", letters("b") | {END_OF_SEQUENCE_ID}),
        (("regex", "ab?"), "ab", {END_OF_SEQUENCE_ID}),
        (("choice", "yes", "no", 'a "quoted"\n choice é'), "", letters("yna")),
        (("choice", "yes", "no", 'a "quoted"\n choice é'), 'a "quoted"\n choice ', {0xC3}),
        (("choice", "yes", "no"), "yes", {END_OF_SEQUENCE_ID}),
        (("grammar", 'root ::= "x" root | "y"'), "x", letters("xy")),
        (("grammar", 'start: "x" start | "y"'), "xy", {END_OF_SEQUENCE_ID}),
        (("grammar", '\n  ?start: x\n\n  ?x: "a" ("," X)*\n  X: /[b-d]/\n'), "a,", letters("bcd")),
        (("grammar", '// rule: a\n!rule[lazy]: "::=" "x"'), "::=", letters("x")),  # Lark, no start
        (("grammar", "rule: 'it\\'s \"' /'[ab]'/ // don't"), "it's \"'", letters("ab")),
        (
            ("grammar", "%import common.INT\nstart: INT -> n"),
            "7",
            letters("0123456789") | {END_OF_SEQUENCE_ID},
        ),
        (("grammar", '# x: y\nroot ::=\n  a ": "\na ::= "start: "'), "start: ", letters(":")),
        (("json_schema", json.dumps({"const": 12})), "1", letters("2")),
        (("json_object",), "{}", {END_OF_SEQUENCE_ID}),
    ],
)
def test_what_may_follow_is_what_conforms(
    grammars: Grammars, constraint: Constraint, output: str, expected: set[int]
) -> None:
    found = allowed(grammars.grammar(constraint).mask(ids(output)))
    assert found & set(range(259)) == expected | found & letters(" \t\r\n")
    assert (END_OF_SEQUENCE_ID in found) == (END_OF_SEQUENCE_ID in expected)


def test_a_grammar_that_reads_at_once_stands_where_one_that_reads_on_does(
    grammars: Grammars,
) -> None:
    constraint = ("json_schema", json.dumps({"type": "object", "properties": {"a": {"enum": [1]}}}))
    output = ids('{"a": 1}')
    reading_on = grammars.grammar(constraint)
    for length in range(len(output) + 1):
        at_once = reading_on.fork()
        expected = allowed(at_once.mask(output[:length]))
        assert allowed(reading_on.mask(output[:length])) == expected, length


ANSWER = Scope(opening_token_ids=(ord("{"),), closing_token_ids=(ord("}"),))
"""Of a model that may begin with reasoning in braces."""
OPEN = Scope(is_open=True, closing_token_ids=(ord("}"),), marker_token_ids=(ord("a"),))
SHORT = Scope(is_open=True, closing_token_ids=(ord("}"),), max_reasoning_tokens=2)
CALLS = Scope(marker_token_ids=(ord("a"),), is_repeated=True, is_leading=False, is_required=False)
REASONED = replace(CALLS, closing_token_ids=(ord("}"),), max_reasoning_tokens=2, is_open=True)
CHANNELS = replace(CALLS, is_leading=True, is_required=True)
HEADERS = replace(
    CHANNELS,
    marker_token_ids=(ord("a"), ord("c")),
    is_required=False,
    closing_token_ids=(ord("}"),),
    max_reasoning_tokens=2,
    reasoning_token_ids=(ord("a"), ord("b")),
)
MUST_END = replace(HEADERS, is_required=True)
"""Reasoning follows each `ab`, and free text each `ac`; neither may begin otherwise."""
ANYTHING = None
NO_END = set(range(259)) - {END_OF_SEQUENCE_ID}


@pytest.mark.parametrize(
    ("scope", "output", "expected"),
    [
        (ANSWER, "", letters("a{")),
        (ANSWER, "a", letters("b")),
        (ANSWER, "{", NO_END),
        (ANSWER, "{abab", NO_END),
        (ANSWER, "{x}", letters("a")),
        (ANSWER, "{x}ab", {END_OF_SEQUENCE_ID}),
        (OPEN, "", NO_END),
        (OPEN, "x}", letters("a")),
        (OPEN, "xa", letters("b")),  # a call ends the reasoning
        (SHORT, "x", NO_END),
        (SHORT, "xx", letters("}")),
        (SHORT, "xx}", letters("a")),
        (SHORT, "}a", letters("b")),
        (CALLS, "", ANYTHING),
        (CALLS, "xa", letters("b")),
        (CALLS, "xab", ANYTHING),
        (CALLS, "xab ya", letters("b")),
        (REASONED, "xx", letters("}")),
        (REASONED, "x}xx", ANYTHING),
        (REASONED, "xa", letters("b")),
        (REASONED, "xabxxx", ANYTHING),
        (CHANNELS, "", letters("a")),
        (CHANNELS, "abx", NO_END),
        (CHANNELS, "abxa", letters("b")),
        (HEADERS, "", letters("a")),
        (HEADERS, "a", letters("bc")),
        (HEADERS, "abx", ANYTHING),
        (HEADERS, "abxx", letters("}")),
        (HEADERS, "abx}", letters("a")),
        (HEADERS, "abx}abx", letters("}")),  # of all reasoning together
        (HEADERS, "abxx}", letters("a")),
        (HEADERS, "abxx}a", letters("c")),  # no more of it
        (HEADERS, "abxx}acxxxx", ANYTHING),
        (HEADERS, "acab", ANYTHING),
        (MUST_END, "abx", NO_END),
        (MUST_END, "abx}acx", ANYTHING),
    ],
)
def test_a_constraint_holds_where_it_applies(
    grammars: Grammars, scope: Scope, output: str, expected: set[int] | None
) -> None:
    """The same mask whether the output is read token by token, at once, or by a fork."""
    pattern = "a[bc]" if scope.reasoning_token_ids else "ab"
    reading_on = grammars.grammar(("regex", pattern), scope=scope)
    tokens = ids(output)
    masks = [reading_on.mask(tokens[:length]) for length in range(len(tokens) + 1)]
    masks += [one.mask(tokens) for one in (reading_on.fork(), reading_on)]
    reading_on.begin_again()
    for mask in (*masks[len(tokens) :], reading_on.mask(tokens)):
        assert (None if mask is None else allowed(mask) & set(range(259))) == expected


def test_free_text_needs_no_matcher(grammars: Grammars) -> None:
    never = Future[CompiledGrammar]()  # is never compiled
    free = Grammar(never, CALLS, vocab_size=300, eos_token_ids=(END_OF_SEQUENCE_ID,))
    bounded = grammars.grammar(None, scope=SHORT)
    masks = step_masks(
        {1: (free, ids("xyz")), 2: (bounded, ids("x}yz")), 3: (bounded.fork(), ids("xx"))}
    )
    assert allowed(masks.found.pop(3)) == letters("}")
    assert not (masks.found or masks.refused or masks.cpu_ns)


def test_tokens_after_the_end_are_not_read(grammars: Grammars) -> None:
    grammar = grammars.grammar(("regex", "ab?"))
    output = np.array([*ids("a"), END_OF_SEQUENCE_ID, 7, 7], dtype=np.int32)
    assert allowed(grammar.mask(output)) == {END_OF_SEQUENCE_ID}


END = "\0"
"""Stands for the end of the sequence."""


def with_ends(text: str) -> np.ndarray:
    return np.where(ids(text), ids(text), END_OF_SEQUENCE_ID).astype(np.int32)


CODE = ("regex", "[a-f]{3}-[0-9]{3}")


@pytest.mark.parametrize(
    ("scope", "constraint", "output", "drafts", "num_admitted"),
    [
        (WHOLE, CODE, "", "abc-123", 7),
        (WHOLE, CODE, "ab", "c-x1", 2),
        (WHOLE, CODE, "ab", "x-12", 0),
        (WHOLE, CODE, "abc-12", f"3{END}{END}", 3),
        (WHOLE, CODE, "abc-12", f"3{END}4", 2),
        (WHOLE, CODE, "abc-123", f"{END}", 1),
        (WHOLE, ("json_object",), '{"a', '": [1, 2}', 8),
        (ANSWER, ("regex", "ab?"), "", "{xy}ab", 6),
        (ANSWER, ("regex", "ab?"), "{x", "}c", 1),
        (CALLS, ("regex", "ab?"), "xy", "abxab", 5),
        (CALLS, ("regex", "a[bc]d"), "a", "bdzacdxaxx", 8),
    ],
)
def test_drafts_are_read_ahead_and_leave_no_trace(
    grammars: Grammars,
    scope: Scope,
    constraint: Constraint,
    output: str,
    drafts: str,
    num_admitted: int,
) -> None:
    def fresh(text: str) -> Mask | None:
        return grammars.grammar(constraint, scope=scope).mask(with_ends(text))

    def same(one: Mask | None, other: Mask | None) -> bool:
        return (one is None) is (other is None) and (one is None or np.array_equal(one, other))

    grammar, both = grammars.grammar(constraint, scope=scope), with_ends(output + drafts)
    for _ in range(2):
        assert grammar.num_admitted(both, len(drafts)) == num_admitted
        before = grammar.mask(with_ends(output))
        assert same(before, fresh(output))
        known = Masks({} if before is None else {1: before}, {}, {})
        (found,) = draft_masks({1: DraftedOutput(grammar, both, len(drafts))}, known).values()
        expected = [fresh(output + drafts[: i + 1]) for i in range(num_admitted)]
        assert len(found) == num_admitted
        assert all(map(same, found, expected))
    if num_admitted:
        assert same(grammar.mask(with_ends(output + drafts[:1])), expected[0])


def test_a_grammar_that_is_compiled_anew_ahead_begins_again(grammars: Grammars) -> None:
    compiled = grammars.prepare(CODE)
    grammar = grammars.grammar(CODE)
    grammar.mask(ids("ab"))
    with grammar.ahead():
        grammar.mask(ids("abc"))
        assert compiled.result().renew()
        grammar.mask(ids("abc-"))
    assert allowed(grammar.mask(ids("ab"))) == letters("abcdef")


def test_a_matcher_that_cannot_go_back_begins_again(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_grammar, "_roll_back", lambda matcher, num_tokens: False)
    grammar = grammars.grammar(CODE)
    assert grammar.num_admitted(ids("abc-12"), 4) == 4
    assert allowed(grammar.mask(ids("ab"))) == letters("abcdef")


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (("regex", "(a"), "unclosed group"),
        (("json_schema", "{"), "structured output cannot be compiled"),
        (("json_schema", "false"), "schema is false"),
        (("json_schema", '{"$ref": "http://127.0.0.1:9/x.json"}'), "not fetch"),
        (("json_schema", '{"$ref": "#"}'), "nothing conforms"),
        (("grammar", 'start: start "x"'), "nothing conforms"),
        (("sonnet", "x"), "no kind of structured output"),
    ],
)
def test_what_cannot_be_compiled_says_why(
    grammars: Grammars, constraint: Constraint, reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason):
        grammars.grammar(constraint).mask(ids(""))


def test_a_worker_without_a_tokenizer_says_so() -> None:
    grammars = Grammars(SimulatedRunner().model, tokenizer_json=b"")
    with pytest.raises(GrammarError, match="tokenizer cannot be read"):
        grammars.grammar(("regex", "a")).mask(ids(""))
    grammars.close()


def draw_to_the_end(table: SequenceTable, runner: SimulatedRunner, seq_id: int) -> list[int]:
    """Decodes until the end of the sequence; returns all that was drawn."""
    tokens: list[int] = []
    for step_id in range(2, 40):
        outcome = table.append_tokens(
            runner.execute(table.apply(make_step(step_id, running={seq_id: 1})))
        )
        assert not outcome.failures
        tokens += outcome.token_ids.tolist()
        if END_OF_SEQUENCE_ID in tokens:
            break
    return tokens


PARAMS = SamplingParams(temperature=1.0, seed=3, structured_output=("regex", "[a-f]{3}-[0-9]{3}"))
LATE = replace(PARAMS, constraint_scope=replace(SHORT, max_reasoning_tokens=4))


def whole_output(
    runner: SimulatedRunner, table: SequenceTable, params: SamplingParams
) -> list[int]:
    new = make_new(1, PROMPT, [0, 1, 2, 3, 4, 5], params=params)
    first = table.append_tokens(runner.execute(table.apply(make_step(1, new=[new]))))
    return [*first.token_ids.tolist(), *draw_to_the_end(table, runner, 1)]


@pytest.mark.parametrize("num_known", [2, 5, 6])
@pytest.mark.parametrize("params", [PARAMS, LATE], ids=["whole", "late"])
def test_a_sequence_that_resumes_goes_on_where_it_was(
    grammars: Grammars, params: SamplingParams, num_known: int
) -> None:
    runner = make_runner()
    whole = whole_output(runner, make_table(runner, grammars), params)
    assert re.fullmatch("[a-f]{3}-[0-9]{3}", bytes(whole[-8:-1]).decode())
    assert (ord("}") in whole[:5]) is (params is LATE)
    assert whole[-1] == END_OF_SEQUENCE_ID
    table = make_table(runner, make_grammars())  # of another worker
    tokens = [*PROMPT, *whole[:num_known]]
    resumed = make_new(
        9, tokens, [6, 7, 8, 9, 10, 11], params=params, num_prompt_tokens=len(PROMPT)
    )
    first = table.append_tokens(runner.execute(table.apply(make_step(1, new=[resumed]))))
    rest = [*first.token_ids.tolist(), *draw_to_the_end(table, runner, 9)]
    assert [*whole[:num_known], *rest] == whole
    table.check()


@pytest.mark.parametrize(
    "scope", [WHOLE, Scope(opening_token_ids=(ord("n"),), closing_token_ids=(ord("o"),))]
)
def test_branches_go_their_own_ways(grammars: Grammars, scope: Scope) -> None:
    runner = make_runner()
    table = make_table(runner, grammars)
    params = SamplingParams(
        temperature=1.0, seed=5, structured_output=("choice", "yes", "no"), constraint_scope=scope
    )
    new = make_new(1, PROMPT, [0, 1, 2, 3], params=params, num_samples=2)
    drawn = table.append_tokens(
        runner.execute(table.apply(make_step(1, new=[new])))
    ).token_ids.tolist()
    assert set(drawn) <= letters("yn")
    forks = [Fork(1, 1, 0, ord("y")), Fork(1, 2, 1, ord("n"))]
    step = make_step(2, forks=forks, running={1: 1, 2: 1})
    first, second = table.append_tokens(runner.execute(table.apply(step))).token_ids.tolist()
    assert first == ord("e")
    assert (second == ord("o")) is (scope is WHOLE)  # otherwise the second branch reasons
    table.check()


def test_a_sequence_whose_constraint_fails_is_alone(grammars: Grammars) -> None:
    runner = make_runner()
    table = make_table(runner, grammars)
    bad = SamplingParams(structured_output=("regex", "(a"))
    new = [make_new(1, PROMPT, [0], params=bad), make_new(2, PROMPT, [1])]
    outcome = table.append_tokens(runner.execute(table.apply(make_step(1, new=new))))
    assert [*outcome.failures] == [1]
    assert "unclosed group" in outcome.failures[1].message
    assert outcome.seq_ids.tolist() == [2]
    table.check()


def test_allowed_tokens_hold_beside_a_grammar(grammars: Grammars) -> None:
    runner = make_runner()
    table = make_table(runner, grammars)
    params = SamplingParams(
        structured_output=("regex", "[a-z]"), allowed_token_ids=(ord("q"), ord("Q"))
    )
    new = make_new(1, PROMPT, [0], params=params)
    outcome = table.append_tokens(runner.execute(table.apply(make_step(1, new=[new]))))
    assert outcome.token_ids.tolist() == [ord("q")]
