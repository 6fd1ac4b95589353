"""Log probabilities in the two shapes of OpenAI's API: for completions and for chats."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_router.prompt.tokenization.detokenizer import Detokenizer
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_router.requests.request_output import Delta, Echo

LEAST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON does not have."""
MAX_PROMPT_LOGPROBS = 1 << 18
"""Entries of prompts in one answer: 20 alternatives for each of 12,000 tokens."""


class Scored(NamedTuple):
    """A token and its log probability."""

    token_id: int
    logprob: float


class Tokens:
    """Writes tokens as OpenAI does: one that is not whole characters as "bytes:\\xe2\\x82"."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        """`as_ids` writes "token_id:7" instead, which vLLM's clients may request."""
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def bytes_of(self, token_id: int) -> bytes:
        return self._tokenizer.vocabulary.token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._tokenizer.vocabulary.special_tokens

    def text(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        content = self.bytes_of(token_id)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def scored(delta: Delta) -> Iterator[tuple[Scored, TokenLogprobs]]:
    """Yields the generated tokens of a delta, without those of an echoed prompt."""
    num_generated = len(delta.logprobs)
    generated = delta.token_ids[len(delta.token_ids) - num_generated :]
    for token_id, logprobs in zip(generated, delta.logprobs, strict=True):
        yield Scored(token_id, logprobs.logprob), logprobs


def top_of(logprobs: TokenLogprobs) -> list[Scored]:
    pairs = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
    return [Scored(*pair) for pair in pairs]


class CompletionLogprobs:
    """Log probabilities of one choice of a completion, with each token's offset in the text."""

    def __init__(self, tokens: Tokens, detokenizer: Detokenizer) -> None:
        """`detokenizer` must be in the state of the sequence before its first token."""
        self._tokens = tokens
        self._detokenizer = detokenizer
        self._num_chars = 0
        """Characters of the text that the client has received."""
        self._offset = 0
        self._least_offset = 0
        """Offset of the last token that the client has received."""

    def body(
        self,
        prompt: Iterable[tuple[int, TokenLogprobs | None]],
        delta: Delta,
        *,
        echo: Echo | None = None,
    ) -> dict[str, list[Any]]:
        """Returns the logprobs of a choice, or the part that an event adds to them.

        Args:
            prompt: the tokens of an echoed prompt; the first has no log probability.
            echo: the same prompt's text, which the delta's text begins with.
        """
        offsets: list[int] = []
        if echo is not None:
            offsets += echo.text_offsets
            self._offset = len(echo.text)
        entries: list[tuple[int, TokenLogprobs | None]] = list(prompt)
        entries += [(one.token_id, logprobs) for one, logprobs in scored(delta)]
        offsets += [self._advance(token_id) for token_id, _ in entries[len(offsets) :]]
        self._num_chars += len(delta.text)
        if delta.finish is not None:  # a stop string may have removed text, of tokens sent before
            most = max(self._num_chars, self._least_offset)
            offsets = [min(offset, most) for offset in offsets]
        self._least_offset = max(offsets, default=self._least_offset)
        return {
            "text_offset": offsets,
            "token_logprobs": [None if lp is None else _finite(lp.logprob) for _, lp in entries],
            "tokens": [self._tokens.text(token_id) for token_id, _ in entries],
            "top_logprobs": [self._top(token_id, lp) for token_id, lp in entries],
        }

    def _advance(self, token_id: int) -> int:
        offset = self._offset
        self._offset += len(self._detokenizer.push((token_id,)))
        return offset

    def _top(self, token_id: int, logprobs: TokenLogprobs | None) -> dict[str, float] | None:
        """Returns the token itself, which is first as in vLLM, and the alternatives.

        Of tokens with one text, that of the token itself or else the first has it as its name;
        the others have their ids.
        """
        if logprobs is None:
            return None
        by_id = {token_id: logprobs.logprob} | dict(top_of(logprobs))
        names = {self._tokens.text(one): one for one in reversed(by_id)}
        texts = {one: text for text, one in names.items()}
        return {
            texts.get(one, f"token_id:{one}"): _finite(logprob) for one, logprob in by_id.items()
        }


def chat_logprobs(tokens: Tokens, delta: Delta, *, adds_sampled: bool) -> dict[str, Any]:
    """Returns the logprobs of a chat's choice, or the part that an event adds to them.

    Args:
        adds_sampled: True if the top tokens, which the client has named, follow the sampled one.
    """
    content = []
    for one, logprobs in scored(delta):
        tops = top_of(logprobs)
        if adds_sampled:
            tops = [one, *(top for top in tops if top.token_id != one.token_id)]
        entry = _chat_entry(tokens, one)
        content.append({**entry, "top_logprobs": [_chat_entry(tokens, top) for top in tops]})
    return {"content": content, "refusal": None}


class PromptBudget:
    """Bounds the prompts' log probabilities in one answer: its JSON is encoded in one call, and
    all other streams wait meanwhile."""

    def __init__(self) -> None:
        self._left = MAX_PROMPT_LOGPROBS

    def spend(self, logprobs: Sequence[TokenLogprobs], *, num_choices: int = 1) -> None:
        """Raises InvalidArgument if the answer would have too many entries."""
        self._left -= num_choices * sum(1 + len(one.top_token_ids) for one in logprobs)
        if self._left < 0:
            raise InvalidArgument(
                "sampling_params.prompt_logprobs",
                "more entries than one answer holds",
                f"over HTTP at most {MAX_PROMPT_LOGPROBS} of all prompts and choices; a shorter"
                " prompt, a lower n, or gRPC, which sends them in parts",
            )


def prompt_logprobs(
    tokens: Tokens, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> list[dict[str, Any] | None]:
    """Returns the prompt's logprobs in vLLM's form: for each token but the first, itself and the
    likeliest by id."""
    bodies: list[dict[str, Any] | None] = [None]
    for token_id, entry in zip(token_ids[1:], logprobs, strict=True):
        ranked = {token_id: (entry.logprob, entry.rank)}
        for rank, one in enumerate(top_of(entry), start=1):
            ranked.setdefault(one.token_id, (one.logprob, rank))
        bodies.append(
            {
                str(one): {
                    "logprob": _finite(logprob),
                    "rank": rank,
                    "decoded_token": tokens.text(one),
                }
                for one, (logprob, rank) in ranked.items()
            }
        )
    return bodies


def _chat_entry(tokens: Tokens, one: Scored) -> dict[str, Any]:
    return {
        "token": tokens.text(one.token_id),
        "logprob": _finite(one.logprob),
        "bytes": list(tokens.bytes_of(one.token_id)),
    }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
