"""Joins tokens of texts with the special tokens that the tokenizer puts around them.

The tokenizer itself could cut texts to a length, but its setting for that is shared by all calls.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Segments(NamedTuple):
    """Tokens of a prompt of one or two texts."""

    token_ids: list[int]
    num_first: int
    """Leading tokens that have token type 0; 0 if all have."""


class Affixes(NamedTuple):
    """Special tokens around and between texts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    num_between_first: int | None
    """Tokens of `between` that have token type 0; None if all tokens have."""

    @classmethod
    def of_one(cls, backend: Any) -> "Affixes":
        """Returns those around a text that is alone."""
        return cls._of(backend.encode_batch([_text(backend)], add_special_tokens=True)[0])

    @classmethod
    def of_pair(cls, backend: Any, *, has_token_types: bool) -> "Affixes":
        """Returns those around a pair of texts."""
        text = _text(backend)
        found = cls._of(backend.encode_batch([(text, text)], add_special_tokens=True)[0])
        return found if has_token_types else found._replace(num_between_first=None)

    @classmethod
    def _of(cls, encoding: Any) -> "Affixes":
        texts, ids, types = encoding.sequence_ids, encoding.ids, encoding.type_ids
        first = [i for i, text in enumerate(texts) if text == 0]
        second = [i for i, text in enumerate(texts) if text == 1]
        last = second or first
        between = range(first[-1] + 1, second[0]) if second else range(0)
        has_types = bool(second) and types[second[0]] == 1 and not any(types[: first[-1] + 1])
        return cls(
            before=tuple(ids[: first[0]]),
            between=tuple(ids[i] for i in between),
            after=tuple(ids[last[-1] + 1 :]),
            num_between_first=sum(types[i] == 0 for i in between) if has_types else None,
        )

    def join(
        self, *texts: Sequence[int], max_tokens: int | None = None, keeps_end: bool = False
    ) -> Segments:
        """Returns the tokens of one or two texts with the special ones.

        Args:
            max_tokens: cuts the texts to so many tokens in all, special ones included.
            keeps_end: whether their last tokens are kept instead of the first.
        """
        if max_tokens is not None:
            num_special = len(self.before) + len(self.between) + len(self.after)
            texts = cut_longest(texts, max(0, max_tokens - num_special), keeps_end=keeps_end)
        first, *rest = texts
        token_ids = [*self.before, *first]
        num_first = 0
        for second in rest:
            if self.num_between_first is not None:
                num_first = len(token_ids) + self.num_between_first
            token_ids += [*self.between, *second]
        return Segments([*token_ids, *self.after], num_first)


def _text(backend: Any) -> str:
    """Returns a text that has tokens; a vocabulary may lack letters, and one for unknown text."""
    texts: tuple[str, ...] = ("a", *backend.get_vocab(with_added_tokens=False))
    return next(text for text in texts if backend.encode(text, add_special_tokens=False).ids)


def cut_longest(
    texts: tuple[Sequence[int], ...], most: int, *, keeps_end: bool
) -> tuple[Sequence[int], ...]:
    """Cuts one or two texts to `most` tokens in all, the longer one first."""
    lengths = [len(text) for text in texts]
    if sum(lengths) > most:
        if len(texts) == 2:
            short = min(*lengths, most // 2)
            is_first_short = lengths[0] <= lengths[1]
            lengths = [short, most - short] if is_first_short else [most - short, short]
        else:
            lengths = [most]
    return tuple(
        text[len(text) - min(length, len(text)) :] if keeps_end else text[:length]
        for text, length in zip(texts, lengths, strict=True)
    )
