"""Compiles structured outputs by llguidance, and measures what compiling one costs.

The router refuses what cannot be compiled and the worker compiles the rest, so both need this. A
client's schema may cost any time and memory, so the router runs `main` in a short-lived process
with limits that the kernel enforces (`signalbox_rpc.lifetime.limited_program`). It imports no more
of ours than rewrites schemas, to start fast.
"""

import json
import re
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from signalbox_contract.structured_output.schema.rewriting import rewrite

_MAX_REASON_CHARS = 300
_MAX_SEARCH_NS = 1_000_000_000
"""CPU time to find out which definition of a schema is at fault."""
WHITESPACE = r"( |\n {0,16}|\n\t{0,4})"
"""Text allowed between the tokens of JSON: a space, or a line break with its indentation. Without
this bound some models would write spaces for ever."""
_SHORT_ESCAPES = 'nrbtf\\"'
"""Escapes without \\uXXXX, which llguidance lets a free key spell a declared one with. Strings then
have no control characters but those with an escape of their own, unless the schema itself has."""
_EMPTY = re.compile(
    r"\AUnsatisfiable .*?while processing json-schema:///#/\$defs/([\w.-]+)", re.DOTALL
)
"""llguidance's message for a definition to which nothing conforms, with its name."""
_MAX_EMPTY = 16
"""Definitions to which nothing conforms that are found out one by one."""
_NEEDS_LONG_ESCAPE = re.compile("[\x00-\x07\x0b\x0e-\x1f]")

_DEFINITION = re.compile(
    r"^\s*[!?]*([\w-]+)(?:\.-?\d+|\[[^]\n]*\]|\{[^}\n]*\}|::\w+)?\s*(::=|:)", re.MULTILINE
)
"""Name of a rule and what follows it: `::=` in GBNF, and `:` in Lark, where modifiers may be around
the name."""
SCHEMA_RULE = re.compile(r"^(\w+: %json )(.*)$", re.MULTILINE)
"""A rule of a tool format that is a JSON schema; its JSON has no line breaks."""
_LARK_RULE = re.compile(r'^(\w+: %lark )(".*")$', re.MULTILINE)
"""A rule of a tool format that is a grammar of a client's, as a string of JSON."""
_LARK_LITERAL = re.compile(
    r"//.*|#.*|\"(?:\\.|[^\"\\])*\"|/(?:\\.|[^/\\])+/|'(?P<single>(?:\\.|[^'\\])*)'"
)
"""A comment, a string, a regular expression, or a string in single quotes."""

_MAX_ITEMS_IN_ROW = 20_000
"""Rules that may apply at one place of a text. llguidance's default of 2,000 is too few for an
object of 450 optional properties, which fails only once its first bracket has been drawn. The CPU
time of masks is bounded apart from this."""


class GrammarError(ValueError):
    """The constraint cannot be compiled, or nothing conforms to it."""


def compile_grammar(
    constraint: tuple[str, ...], tokenizer: LLTokenizer, *, max_lexer_states: int | None = None
) -> LLMatcher:
    """Returns a matcher before its first token. Raises GrammarError.

    Args:
        max_lexer_states: bounds how far masks let the grammar grow; None is llguidance's default.
    """
    limits = LLParserLimits(
        verbose_errors=False,
        max_items_in_row=_MAX_ITEMS_IN_ROW,
        max_lexer_states=max_lexer_states,
    )
    empty: set[str] = set()
    while True:
        try:
            text = _grammar(constraint, empty)
        except (ValueError, RecursionError) as error:
            raise GrammarError(_one_line(str(error))) from None
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
        if not matcher.is_error():
            break
        # llguidance gives up at a definition to which nothing conforms, also if none is needed.
        found = _EMPTY.search(matcher.get_error())
        if found is None or found[1] in empty or len(empty) == _MAX_EMPTY:
            raise GrammarError(_one_line(matcher.get_error()))
        empty.add(found[1])
    probe = matcher.deep_copy()
    probe.compute_bitmask()
    if probe.is_error() and not probe.get_error().startswith("NoExtension"):
        raise GrammarError(_one_line(probe.get_error()))
    if probe.is_error() or (probe.is_stopped() and not probe.is_accepting()):
        raise GrammarError("nothing conforms to it")
    return matcher


def _grammar(constraint: tuple[str, ...], empty: Collection[str] = ()) -> str:
    kind, *texts = constraint
    match kind:
        case "json_schema":
            return _of_schema(texts[0], empty)
        case "json_object":
            return _of_schema('{"type": "object"}')
        case "choice":
            return grammar_from("choice", json.dumps(texts))
        case "regex":
            return grammar_from("regex", texts[0])
        case "grammar":
            return _of_rules(texts[0])
        case "rules":
            return _whole(_rewritten(texts[0], empty), *texts[1:])
    raise GrammarError(f"{kind!r} is no kind of structured output")


def _whole(rules: str, *answer: str) -> str:
    """Returns the grammar of rules in Lark, in which `@answer` is a constraint, if there is one."""
    if not answer:
        return grammar_from("lark", rules)
    grammar = _grammar(answer)
    is_lark = not grammar.startswith("{")
    one = {"lark_grammar": grammar} if is_lark else json.loads(grammar)["grammars"][0]
    return json.dumps({"grammars": [{"lark_grammar": rules}, {**one, "name": "answer"}]})


def _rewritten(rules: str, empty: Collection[str]) -> str:
    """Returns rules in Lark with what stands in rules of its own as llguidance takes it: schemas,
    and grammars of clients."""
    rules = SCHEMA_RULE.sub(lambda rule: f"{rule[1]}{json.dumps(_schema(rule[2], empty))}", rules)
    return _LARK_RULE.sub(lambda rule: f"{rule[1]}{{\n{_lark(json.loads(rule[2]))}\n}}", rules)


def _of_rules(text: str) -> str:
    """Returns the rules in Lark; the first definition tells Lark from GBNF, which is converted."""
    definitions = _DEFINITION.findall(text)
    if not definitions or definitions[0][1] == "::=":
        return grammar_from("gbnf", text)
    return grammar_from("lark", _lark(text))


def _lark(text: str) -> str:
    """Returns a client's rules as llguidance takes them: as in vLLM, those without a rule `start`
    start with their first one, and single quotes are double ones."""
    names = [name for name, _ in _DEFINITION.findall(text)] or ["start"]
    text = _LARK_LITERAL.sub(_double_quoted, text)
    return text if "start" in names else f"start: {names[0]}\n{text}"


def _double_quoted(literal: re.Match[str]) -> str:
    """Returns a literal of Lark; one in single quotes gets double quotes."""
    if literal["single"] is None:
        return literal[0]
    changed = {"\\'": "'", '"': '\\"'}
    text = re.sub(r"\\.|\"", lambda one: changed.get(one[0], one[0]), literal["single"])
    return f'"{text}"'


def _of_schema(schema: str, empty: Collection[str] = ()) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(_schema(schema, empty)))


def _schema(schema: str, empty: Collection[str]) -> Any:
    """Returns a schema as llguidance takes it, with options."""
    parsed = rewrite(json.loads(schema), empty=empty)
    if not isinstance(parsed, dict):  # true or false, which takes no options
        return parsed
    options: Any = {"whitespace_pattern": WHITESPACE}
    if _has_free_keys(parsed) and not _NEEDS_LONG_ESCAPE.search(_strings_of(parsed)):
        options["json_allowed_escapes"] = _SHORT_ESCAPES
    return {**parsed, "x-guidance": options}


def _has_free_keys(value: object) -> bool:
    """Returns whether an object may have keys beside the declared ones."""
    if isinstance(value, dict):
        declares = value.get("properties") or value.get("patternProperties")
        if declares and value.get("additionalProperties") is not False:
            return True
        value = [*value.values()]
    return isinstance(value, list) and any(map(_has_free_keys, value))


def _strings_of(value: object) -> str:
    """Returns all strings of a schema but the keys."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        return "".join(map(_strings_of, value))
    return value if isinstance(value, str) else ""


def _one_line(reason: str) -> str:
    return " ".join(reason.split())[:_MAX_REASON_CHARS]


class _Bytes:
    """A vocabulary of the bytes and of some special tokens: enough to tell whether something
    compiles."""

    bos_token_id = None

    def __init__(self, special_tokens: Mapping[int, str] = MappingProxyType({})) -> None:
        """`special_tokens` keep their ids; where one has that of a byte, the byte has another."""
        num_ids = max(max(special_tokens, default=0) + 1, 257 + len(special_tokens))
        self.tokens = [b""] * num_ids
        for token_id, text in special_tokens.items():
            self.tokens[token_id] = text.encode()
        free = (token_id for token_id in range(num_ids) if token_id not in special_tokens)
        for byte, token_id in zip(range(256), free, strict=False):
            self.tokens[token_id] = bytes([byte])
        self.eos_token_id = next(free)
        self.tokens[self.eos_token_id] = b"<eos>"
        self.special_token_ids = [self.eos_token_id, *special_tokens]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def find_fault(
    constraint: tuple[str, ...], special_tokens: tuple[tuple[int, str], ...] = ()
) -> str | None:
    """Says in one line why a constraint cannot be compiled; None if it can be.

    Args:
        special_tokens: those that the constraint names, with their ids.
    """
    return _fault(constraint, _tokenizer(special_tokens))


def _tokenizer(special_tokens: Iterable[tuple[int, str]]) -> LLTokenizer:
    vocabulary = _Bytes(dict(special_tokens))
    return LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens))


def _fault(constraint: tuple[str, ...], tokenizer: LLTokenizer) -> str | None:
    try:
        compile_grammar(constraint, tokenizer)
    except GrammarError as error:
        return str(error)
    return None


def faulty_definition(constraint: tuple[str, ...]) -> str:
    """Returns the first definition of a schema, or of one in rules, that cannot be compiled even
    alone, or ""."""
    kind, *texts = constraint
    schemas = [texts[0]] if kind == "json_schema" else []
    if kind == "rules":
        schemas += [rule[2] for rule in SCHEMA_RULE.finditer(texts[0])]
    end_ns = time.thread_time_ns() + _MAX_SEARCH_NS
    found = (_faulty_definition(schema, end_ns) for schema in schemas)
    return next(filter(None, found), "")


def _faulty_definition(schema: str, end_ns: int) -> str:
    try:
        document = json.loads(schema)
    except (ValueError, RecursionError):
        return ""
    definitions = document.get("$defs") if isinstance(document, dict) else None
    for name in definitions if isinstance(definitions, dict) else ():
        pointer = quote(name.replace("~", "~0").replace("/", "~1"))
        alone = {"$ref": f"#/$defs/{pointer}", "$defs": definitions}
        if find_fault(("json_schema", json.dumps(alone))) is not None:
            return str(name)
        if time.thread_time_ns() > end_ns:
            break
    return ""


def _try_out(
    constraint: tuple[str, ...], special_tokens: Iterable[tuple[int, str]]
) -> dict[str, Any]:
    """Compiles a constraint; returns its fault, and the CPU time and peak memory that it takes."""
    tokenizer = _tokenizer(special_tokens)
    start_ns, held = time.thread_time_ns(), _status_bytes("VmRSS")
    fault = _fault(constraint, tokenizer)
    return {
        "fault": fault,
        "definition": "" if fault is None else faulty_definition(constraint),
        "cpu_ns": time.thread_time_ns() - start_ns,
        "peak_bytes": max(0, _status_bytes("VmHWM") - held),
    }


def _status_bytes(name: str) -> int:
    """Returns an entry of this process's status, as the kernel counts it since the program began.

    `getrusage` would count what the process was before, a copy of the router.
    """
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))


def main() -> None:
    """Reads a constraint and the special tokens that it names, and writes its outcome, in JSON."""
    constraint, special_tokens = json.load(sys.stdin)
    sys.stdout.write(json.dumps(_try_out(tuple(constraint), special_tokens)))
