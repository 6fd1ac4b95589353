"""One sequence of a request, from token ids to the text that its client sees."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_router.params.generation_params import GenerationParams
from signalbox_router.prompt.tokenization.detokenizer import Detokenizer
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_router.requests.request_output import Delta, Finish, FinishReason
from signalbox_router.requests.stop_strings import Pattern, StopStringScanner, compile_patterns


class _Read(NamedTuple):
    """Result of reading a run of tokens; the tokens after a stop string are dropped."""

    text: str
    num_kept: int
    stop: str | None


class OutputSequence:
    """Collects tokens, detokenises them when read, and checks for the end of the sequence."""

    __slots__ = (
        "_detokenizer",
        "_hidden",
        "_params",
        "_scanner",
        "_stop_token_ids",
        "_unread",
        "_unread_logprobs",
        "ended",
        "finished",
        "index",
        "num_tokens",
        "token_ids",
    )

    def __init__(
        self,
        index: int,
        *,
        params: GenerationParams,
        detokenizer: Detokenizer,
        patterns: Sequence[Pattern],
        hidden: Mapping[int, str],
    ) -> None:
        """Makes a sequence without tokens.

        Args:
            hidden: spelling of each special token that has no text, if stop strings are to see it.
        """
        self.index = index
        self.num_tokens = 0
        """Tokens that were read and kept."""
        self.token_ids: list[int] = []
        """All tokens so far, read or not; up to a stop string if one has ended the sequence."""
        self.ended: Finish | None = None
        """End of the sequence according to the scheduler."""
        self.finished: Finish | None = None
        """End of the sequence as sent to the client."""
        self._params = params
        self._stop_token_ids = frozenset(params.sampling.stop_token_ids)
        self._detokenizer = detokenizer
        self._hidden = hidden
        self._scanner = StopStringScanner(patterns) if patterns else None
        self._unread: list[int] = []
        self._unread_logprobs: list[TokenLogprobs] = []

    def add(self, token_ids: list[int], logprobs: list[TokenLogprobs]) -> None:
        if self.finished is None:
            self.token_ids += token_ids
            self._unread += token_ids
            self._unread_logprobs += logprobs

    def end(self, finish: Finish) -> None:
        """Stores the end that the scheduler has reported; the last tokens were added before."""
        if finish.reason is FinishReason.STOP and self._params.ignore_eos:
            # The client has listed the end-of-sequence token among its own stop tokens.
            finish = finish._replace(reason=FinishReason.STOP_TOKEN)
        self.ended = finish

    def read(self) -> Delta | None:
        """Returns the new output for the client, or None."""
        if self.finished is not None:
            return None
        if self._scanner is None and self.ended is None:
            return self._read_running()
        token_ids, self._unread = self._unread, []
        logprobs, self._unread_logprobs = self._unread_logprobs, []
        text, num_kept, stop = self._read_tokens(token_ids)
        self.num_tokens += num_kept
        if stop is None and self.ended is not None:
            rest, stop = self._read_rest()
            text += rest
        if stop is not None:
            self.finished = Finish(FinishReason.STOP_STRING, stop=stop)
            del self.token_ids[self.num_tokens :]
            text += stop if self._params.include_stop_str_in_output else ""
        else:
            self.finished = self.ended
        if not token_ids and not text and self.finished is None:
            return None
        return Delta(
            index=self.index,
            text=text,
            token_ids=token_ids[:num_kept],
            logprobs=logprobs[:num_kept],
            finish=self.finished,
        )

    def _read_running(self) -> Delta | None:
        """Reads the usual case: text without stop strings, in the middle of a sequence."""
        token_ids, self._unread = self._unread, []
        if not token_ids:
            return None
        logprobs, self._unread_logprobs = self._unread_logprobs, []
        self.num_tokens += len(token_ids)
        text = self._text_of(token_ids)
        return Delta(index=self.index, text=text, token_ids=token_ids, logprobs=logprobs)

    def _read_tokens(self, token_ids: list[int]) -> _Read:
        if self._scanner is None:
            return _Read(self._text_of(token_ids), len(token_ids), None)
        parts = []
        for num_kept, token_id in enumerate(token_ids, start=1):
            armed = self.num_tokens + num_kept >= self._params.sampling.min_tokens
            text = self._text_of([token_id])
            hidden = self._hidden.get(token_id, "") if not text else ""
            if hidden and token_id not in self._stop_token_ids:
                scan = self._scanner.push(hidden, armed=armed, hidden=True)
            else:
                scan = self._scanner.push(text, armed=armed)
            parts.append(scan.text)
            if scan.stop is not None:
                return _Read("".join(parts), num_kept, scan.stop)
        return _Read("".join(parts), len(token_ids), None)

    def _text_of(self, token_ids: list[int]) -> str:
        """Returns the tokens' text; a token that ended the sequence has none unless the client
        asks."""
        ends = bool(token_ids) and token_ids[-1] in self._stop_token_ids
        if ends and not self._params.include_stop_str_in_output:
            token_ids = token_ids[:-1]
        return self._detokenizer.push(token_ids)

    def _read_rest(self) -> tuple[str, str | None]:
        rest = self._detokenizer.flush()
        if self._scanner is None:
            return rest, None
        scan = self._scanner.push(rest, armed=self.num_tokens >= self._params.sampling.min_tokens)
        return scan.text + self._scanner.flush(), scan.stop


def make_branches(
    params: GenerationParams,
    *,
    prompt_token_ids: Sequence[int],
    tokenizer: Tokenizer,
    kept_token_ids: frozenset[int] = frozenset(),
) -> list[OutputSequence]:
    hidden = _hidden_tokens(params, tokenizer.vocabulary.special_tokens, kept_token_ids)
    patterns = compile_patterns(params.stop, hidden.values())
    return [
        OutputSequence(
            index,
            params=params,
            patterns=patterns,
            hidden=hidden,
            detokenizer=tokenizer.vocabulary.make_detokenizer(
                prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                kept_token_ids=kept_token_ids,
            ),
        )
        for index in range(params.num_sequences)
    ]


def _hidden_tokens(
    params: GenerationParams, special_tokens: Mapping[int, str], kept_token_ids: frozenset[int]
) -> Mapping[int, str]:
    """Returns the special tokens that have no text; none unless a stop string holds one."""
    if not params.stop or not params.skip_special_tokens:
        return {}
    stops = "\n".join(params.stop)
    if all(i in kept_token_ids for i, token in special_tokens.items() if token in stops):
        return {}
    return {i: token for i, token in special_tokens.items() if i not in kept_token_ids}
