"""Replaces the first tokens of a rendered conversation by those that the previous turn had there.

A model may write a text with other tokens than the tokenizer, and a chat template may change the
white space around an answer. Therefore, where the text of a continued conversation equals that of
the previous turn, it gets the kept tokens, so that the prefix cache finds all of them. This ends at
the first control token or text that differs, such as reasoning that the template leaves out.
"""

from array import array
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import NamedTuple

_WHITE_SPACE = b" \t\r\n"
_RUN = 1024
"""Tokens that are compared at once while all are equal."""


class KeptTokens(NamedTuple):
    """The prompt and the answer of an earlier turn."""

    token_ids: Sequence[int]
    answers: Sequence[tuple[int, int]] = ()
    """Start and end of each answer of a model, ascending; white space in them may differ."""

    def continued(self, prompt: Sequence[int], answer: Sequence[int]) -> "KeptTokens":
        """Returns the tokens of the next turn, whose prompt may begin with these."""
        num_same = num_equal(self.token_ids, prompt)
        answers = [(start, min(end, num_same)) for start, end in self.answers if start < num_same]
        token_ids = array("i", prompt)
        if answer:
            answers.append((len(token_ids), len(token_ids) + len(answer)))
        token_ids.extend(answer)
        return KeptTokens(token_ids, answers)


NO_TOKENS = KeptTokens(())


class Respelled(NamedTuple):
    """A prompt whose first tokens are kept ones."""

    token_ids: list[int]
    positions: tuple[int, ...]


def respelled(
    kept: KeptTokens,
    token_ids: list[int],
    positions: tuple[int, ...],
    *,
    bytes_of: Callable[[int], bytes],
    controls: Collection[int],
) -> Respelled:
    """Returns a prompt, and positions in it, with kept tokens in place of those of equal text.

    Args:
        controls: ids of control tokens, which equal only themselves and no text.
    """
    num_kept, num_new = _Comparison(kept, token_ids, bytes_of, controls).run()
    moved = num_kept - num_new
    return Respelled(
        [*kept.token_ids[:num_kept], *token_ids[num_new:]],
        tuple(one + moved if one >= num_new else one for one in positions),
    )


def num_equal(these: Sequence[int], those: Sequence[int]) -> int:
    """Returns how many tokens at the start of both are equal."""
    start = 0
    while (run := these[start : start + _RUN]) and [*run] == [*those[start : start + _RUN]]:
        start += len(run)
    pairs = zip(these[start:], those[start:], strict=False)
    return start + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class _Comparison:
    """Reads kept and new tokens in parallel while their texts are equal."""

    def __init__(
        self,
        kept: KeptTokens,
        token_ids: Sequence[int],
        bytes_of: Callable[[int], bytes],
        controls: Collection[int],
    ) -> None:
        self._kept, self._new = kept.token_ids, token_ids
        self._bytes_of, self._controls = bytes_of, controls
        self._answers = iter((*kept.answers, (len(kept.token_ids), len(kept.token_ids))))
        self._answer = next(self._answers)
        self._i = self._j = num_equal(kept.token_ids, token_ids)
        self._left = self._right = b""
        """Bytes of the last kept and the last new token that are not matched yet."""
        self._is_loose = False

    def run(self) -> tuple[int, int]:
        """Returns the numbers of kept and of new tokens whose texts are equal."""
        found = (self._i, self._j)
        while self._advance():
            if not (self._left or self._right):
                found = (self._i, self._j)
        return found

    def _advance(self) -> bool:
        """Reads a token of the side that is behind, or one of each; False if nothing more can be
        equal."""
        i, j = self._i, self._j
        takes_kept, takes_new = not self._left, not self._right
        if (takes_kept and i == len(self._kept)) or (takes_new and j == len(self._new)):
            return False
        if takes_kept and takes_new and self._kept[i] == self._new[j]:
            self._i, self._j = i + 1, j + 1
            return True
        if takes_kept:
            self._is_loose = self._in_answer(i)
        is_control = takes_kept and self._kept[i] in self._controls
        is_new_control = takes_new and self._new[j] in self._controls
        if takes_kept and not is_control:
            self._left, self._i = self._bytes_of(self._kept[i]), i + 1
        if takes_new and not is_new_control:
            self._right, self._j = self._bytes_of(self._new[j]), j + 1
        if (is_control or is_new_control) and self._i == i and self._j == j:
            return False
        return self._match()

    def _in_answer(self, i: int) -> bool:
        while i >= self._answer[1] and i < len(self._kept):
            self._answer = next(self._answers)
        return i >= self._answer[0]

    def _match(self) -> bool:
        """Removes equal bytes from both sides; False if the rest differs."""
        left, right = self._left, self._right
        while True:
            if self._is_loose:
                left, right = left.lstrip(_WHITE_SPACE), right.lstrip(_WHITE_SPACE)
            if not (left and right):
                self._left, self._right = left, right
                return True
            num_same = num_equal(left, right)
            if not num_same:
                return False
            left, right = left[num_same:], right[num_same:]
