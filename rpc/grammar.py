"""What a structured output is to llguidance, which compiles it; also a process that tries to.

The router refuses what cannot be compiled and the worker compiles the rest, so both need this. A
client's schema may cost any time and memory, so the router runs this file as a short-lived process
with limits that the kernel enforces. Imports nothing of ours, to start fast and isolated.
"""

import json
import re
import resource
import sys
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

CPU_LIMIT_S = 3
MEMORY_LIMIT_BYTES = 1 << 30
_MAX_REASON_CHARS = 300
_WHITESPACE = r"( |\n {0,16}|\n\t{0,4})"
"""Between the tokens of JSON: a space, or a line's indentation. Some models would else go on with
spaces for ever."""
_SHORT_ESCAPES = 'nrbtf\\"'
"""Escapes without \\uXXXX, which llguidance lets a free key spell a declared one with. Strings then
have no control characters but those with an escape of their own, unless the schema itself has."""
_NEEDS_LONG_ESCAPE = re.compile("[\x00-\x07\x0b\x0e-\x1f]")


class GrammarError(ValueError):
    """The constraint cannot be compiled, or nothing conforms to it."""


def compile_grammar(constraint: tuple[str, ...], tokenizer: LLTokenizer) -> LLMatcher:
    """Returns a matcher before its first token. Raises GrammarError."""
    try:
        text = _grammar(constraint)
    except (ValueError, RecursionError) as error:
        raise GrammarError(_one_line(str(error))) from None
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if matcher.is_error():
        raise GrammarError(_one_line(matcher.get_error()))
    probe = matcher.deep_copy()
    probe.compute_bitmask()
    if probe.is_error() and not probe.get_error().startswith("NoExtension"):
        raise GrammarError(_one_line(probe.get_error()))
    if probe.is_error() or (probe.is_stopped() and not probe.is_accepting()):
        raise GrammarError("nothing conforms to it")
    return matcher


def _grammar(constraint: tuple[str, ...]) -> str:
    kind, *texts = constraint
    match kind:
        case "json_schema":
            return _of_schema(texts[0])
        case "json_object":
            return _of_schema('{"type": "object"}')
        case "choice":
            return grammar_from("choice", json.dumps(texts))
        case "regex":
            return grammar_from("regex", texts[0])
        case "grammar":
            return grammar_from("grammar", texts[0])
    raise GrammarError(f"{kind!r} is no kind of structured output")


def _of_schema(schema: str) -> str:
    parsed = json.loads(schema)  # what is not JSON would be pasted into llguidance's own
    if not isinstance(parsed, dict):  # true or false, which takes no options
        return LLMatcher.grammar_from_json_schema(schema)
    options: Any = {"whitespace_pattern": _WHITESPACE}
    if _has_free_keys(parsed) and not _NEEDS_LONG_ESCAPE.search(_strings_of(parsed)):
        options["json_allowed_escapes"] = _SHORT_ESCAPES
    return LLMatcher.grammar_from_json_schema(schema, overrides=options)


def _has_free_keys(value: object) -> bool:
    """Returns whether some object may have keys beside those that it declares."""
    if isinstance(value, dict):
        if value.get("properties") and value.get("additionalProperties") is not False:
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
    """A vocabulary of the bytes: enough to tell whether something compiles."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<eos>")
    special_token_ids = (256,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def find_fault(constraint: tuple[str, ...]) -> str | None:
    """Says in one line why a constraint cannot be compiled; None if it can be."""
    try:
        compile_grammar(constraint, LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257))
    except GrammarError as error:
        return str(error)
    return None


def _limit_this_process() -> None:
    for kind, limit in (
        (resource.RLIMIT_CPU, CPU_LIMIT_S),
        (resource.RLIMIT_AS, MEMORY_LIMIT_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


if __name__ == "__main__":
    _limit_this_process()
    sys.stdout.write(json.dumps({"fault": find_fault(tuple(json.load(sys.stdin)))}))
