"""Prompts and their right answers, made of the pages and modules of this tree.

How much of an answer can be copied is a property of the work, and a model with made-up weights
copies nothing. So the answers here are those of a good model, and a model that counts
(`benchmarks.harness.random_checkpoint --counting`) gets prompts from which as much can be copied.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import count, cycle, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from signalbox_worker.runner.loading.model_source import source_at

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
OUTPUT_TOKENS = 128
MOST_PROMPT_TOKENS = 640
COUNTED = 100_000
"""Token ids that a model counts through; any dense model of `random_checkpoint` has as many."""
_FIRST = 1000
"""Lowest id of an answer; lower ones may be special, and be banned where an answer may not end."""
_CHARS = 720
_KEY = 3
_CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_LEADS = ("The text says:", "It adds:", "It gives a reason:", "In its own words:", "It ends with:")
_TABLE = re.compile(r"(?:^\|.*\|\n){5,}", re.MULTILINE)


class Trace(NamedTuple):
    """Tokens of a prompt, and of the answer that is right."""

    prompt: list[int]
    output: list[int]


def traces(workload: str, number: int) -> list[Trace]:
    """Returns so many traces, in the demo model's tokens. Raises ValueError if there are fewer."""
    found = list(islice(WORKLOADS[workload](), number))
    if len(found) < number:
        raise ValueError(f"{workload} has {len(found)} traces, not {number}")
    return found


def copied(trace: Trace) -> list[bool | None]:
    """Returns for each token of the answer whether it followed the last occurrence of the three
    tokens before it; None if they have not occurred."""
    tokens, found = [*trace.prompt, *trace.output], list[bool | None]()
    followed = dict[tuple[int, ...], int]()
    for place in range(_KEY, len(tokens)):
        key, token = tuple(tokens[place - _KEY : place]), tokens[place]
        if place >= len(trace.prompt):
            found.append(followed[key] == token if key in followed else None)
        followed[key] = token
    return found


def counting(found: Sequence[bool | None], *, prompt_tokens: int, number: int) -> Trace:
    """Returns a trace of a model that counts, with as much to copy as `copied` has found in
    another trace.

    No token occurs twice in the answer. What can be copied is in the prompt: stretches that go on
    as the answer does, and end with another token.

    Args:
        prompt_tokens: of the prompt; it is longer if the stretches are.
        number: of the request; others have other tokens.
    """
    rng = np.random.default_rng(number)
    half = COUNTED // 2
    start = _FIRST + number * (len(found) + _KEY) % (half - len(found) - _FIRST)
    stretches, goes_on = list[int](), False
    for token, is_right in enumerate(found, start):
        if is_right is not None:
            others = rng.integers(half, COUNTED, 2).tolist()
            if not goes_on:
                stretches += [others[0], *range(token - _KEY, token)]
            stretches.append(token if is_right else others[1])
        goes_on = is_right is True
    spare = max(1, prompt_tokens - len(stretches) - _KEY)
    opening = rng.integers(half, COUNTED, spare).tolist()
    prompt = [*opening, *stretches, *range(start - _KEY, start)]
    return Trace(prompt, list(range(start, start + len(found))))


@cache
def _tokenizer() -> Tokenizer:
    files = source_at(DEMO, name=DEMO.name, is_dummy=False).tokenizer_files()
    return Tokenizer.from_str(files["tokenizer.json"].decode())


def _encoded(pairs: Iterable[tuple[str, str]]) -> Iterator[Trace]:
    encode = partial(_tokenizer().encode, add_special_tokens=False)
    for asked, answer in pairs:
        prompt = encode(asked).ids
        output = encode(answer).ids[:OUTPUT_TOKENS]
        if len(output) == OUTPUT_TOKENS and len(prompt) <= MOST_PROMPT_TOKENS:
            yield Trace(prompt, output)


def _pages() -> Iterator[str]:
    for path in sorted((ROOT / "docs").rglob("*.md")):
        yield path.read_text(encoding="utf-8")


def _passages(chars: int) -> Iterator[str]:
    """Yields pieces of the pages' prose."""
    for page in _pages():
        prose = "\n\n".join(part for part in page.split("\n\n") if part[:1].isalpha())
        yield from (prose[at : at + chars] for at in range(0, len(prose) - chars + 1, chars))


def _editing() -> Iterator[Trace]:
    def pairs() -> Iterator[tuple[str, str]]:
        for text in _passages(_CHARS):
            edited = text.replace("worker", "node")
            if edited != text:
                asked = "Repeat this text with 'node' for 'worker', and change nothing else."
                yield _CHAT.format(f"{text}\n\n{asked}"), edited

    return _encoded(pairs())


def _extraction() -> Iterator[Trace]:
    def pairs() -> Iterator[tuple[str, str]]:
        for table in (found for page in _pages() for found in _TABLE.findall(page)):
            lines = [line.strip("|\n ").split("|") for line in table.splitlines()[:9]]
            names, _, *rows = ([cell.strip() for cell in line] for line in lines)
            fields = {name: {"type": "string"} for name in names}
            schema = {"type": "array", "items": {"type": "object", "properties": fields}}
            text = "\n".join("; ".join(row) for row in rows)
            asked = f"{text}\n\nWrite this as JSON that fits the schema {json.dumps(schema)}"
            answer = [dict(zip(names, row, strict=False)) for row in rows]
            yield _CHAT.format(asked), json.dumps(answer, ensure_ascii=False)

    return _encoded(pairs())


def _code() -> Iterator[Trace]:
    paths = sorted((ROOT / "scheduler_svc").rglob("*.py"))
    texts = (path.read_text(encoding="utf-8") for path in paths)
    return _encoded((text[: 2 * _CHARS], text[2 * _CHARS : 3 * _CHARS]) for text in texts)


def _summary() -> Iterator[Trace]:
    def pairs() -> Iterator[tuple[str, str]]:
        for text in _passages(2 * _CHARS):
            leads = cycle(_LEADS)
            sentences = re.split(r"(?<=\.)\s+", text)[1:-1:2]
            pairs_of = zip(leads, sentences, strict=False)
            quotes = (f'{lead} "{one}"' for lead, one in pairs_of)
            yield _CHAT.format(f"{text}\n\nSum this up, and quote it."), " ".join(quotes)

    return _encoded(pairs())


def _chat() -> Iterator[Trace]:
    """The next part of a page, as an answer that shares words with its conversation."""
    passages = _passages(_CHARS)
    pairs = zip(passages, passages, strict=False)
    return _encoded((_CHAT.format(text), after) for text, after in pairs)


def _random() -> Iterator[Trace]:
    rng = np.random.default_rng(0)
    while True:
        prompt, output = rng.integers(0, 32_000, (2, OUTPUT_TOKENS)).tolist()
        yield Trace(prompt, output)


def _misled() -> Iterator[Trace]:
    """All that is found is followed by another token: the most that drafts can cost."""
    for number in count():
        yield counting([False] * OUTPUT_TOKENS, prompt_tokens=OUTPUT_TOKENS, number=number)


WORKLOADS: Mapping[str, Callable[[], Iterator[Trace]]] = {
    "editing": _editing,
    "extraction": _extraction,
    "code": _code,
    "summary": _summary,
    "chat": _chat,
    "random": _random,
    "misled": _misled,
}
