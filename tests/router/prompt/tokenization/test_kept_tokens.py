"""A conversation begins with the tokens that an earlier turn had, where it says the same."""

import random
from collections.abc import Sequence

import pytest

from signalbox_router.prompt.tokenization.kept_tokens import NO_TOKENS, KeptTokens, respelled

END, OTHER = 0, 1
CONTROLS = (END, OTHER)
Piece = str | int


class Pieces:
    """A vocabulary of whatever texts tests use; numbers are control tokens."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def ids(self, *pieces: Piece) -> list[int]:
        return [
            piece if isinstance(piece, int) else self._ids.setdefault(piece, 2 + len(self._ids))
            for piece in pieces
        ]

    def bytes_of(self, token_id: int) -> bytes:
        return next(text for text, number in self._ids.items() if number == token_id).encode()

    def respelled(
        self,
        prompt: Sequence[Piece],
        answer: Sequence[Piece],
        new: Sequence[Piece],
        positions: tuple[int, ...] = (),
    ) -> tuple[list[int], tuple[int, ...]]:
        kept = NO_TOKENS.continued(self.ids(*prompt), self.ids(*answer))
        return respelled(
            kept,
            self.ids(*new),
            positions,
            bytes_of=self.bytes_of,
            controls=CONTROLS,
        )


@pytest.mark.parametrize(
    ("answer", "new", "expected"),
    [
        (["he", "llo", END], ["hello", END, "!"], ["he", "llo", END, "!"]),
        (["he", "llo"], ["hello", END, "!"], ["he", "llo", END, "!"]),
        (["he", "l"], ["hello", END], ["he", "l"]),  # nothing is cut inside a new token
        (["a", " \n", END], ["a", END, "!"], ["a", " \n", END, "!"]),
        (["a", END], ["a", "\n", END, "!"], ["a", END, "!"]),
        (['{"a":', "1}", END], ['{"a": 1}', END, "!"], ['{"a":', "1}", END, "!"]),
        (["x", "y", END], ["xy", OTHER], ["x", "y", OTHER]),  # the end is written in another way
        (["x", "y", END], ["z", END], ["z", END]),
        ([], ["z"], ["z"]),
    ],
)
def test_an_answer_keeps_its_tokens(
    answer: list[Piece], new: list[Piece], expected: list[Piece]
) -> None:
    pieces = Pieces()
    found, _ = pieces.respelled(["Hi", OTHER], answer, ["Hi", OTHER, *new])
    if answer == ["he", "l"]:  # the last border of both is before the answer
        expected = ["hello", END]
    assert found == pieces.ids("Hi", OTHER, *expected)


def test_white_space_of_a_prompt_is_not_that_of_an_answer() -> None:
    pieces = Pieces()
    found, _ = pieces.respelled(["1 ", "0", END], ["a"], ["10", END, "a"])
    assert found == pieces.ids("10", END, "a")


def test_a_control_token_is_no_text_that_spells_it() -> None:
    pieces = Pieces()
    found, _ = pieces.respelled(["a", END], ["b", "c"], ["a", "0", "bc"])
    assert found == pieces.ids("a", "0", "bc")


def test_positions_behind_the_kept_tokens_move() -> None:
    pieces = Pieces()
    new = ["s", OTHER, "hello", END, "Q", OTHER]
    found, positions = pieces.respelled(["s", OTHER], ["he", "l", "lo", END], new, (1, 4, 5))
    assert len(found) == 8
    assert positions == (1, 6, 7)


def test_any_two_ways_to_cut_a_text_give_the_kept_one() -> None:
    draw = random.Random(5)

    def cut(text: str) -> list[Piece]:
        places = sorted(draw.sample(range(1, len(text)), draw.randrange(len(text) - 1)))
        return [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]

    for _ in range(200):
        pieces = Pieces()
        text = "".join(draw.choice("ab \n") for _ in range(draw.randrange(2, 20)))
        prompt, answer, new = cut(text), cut(text), cut(text)
        found, _ = pieces.respelled(
            [*prompt, END], [*answer, END], [*prompt, END, *new, END, OTHER]
        )
        assert found == pieces.ids(*prompt, END, *answer, END, OTHER)


def test_the_answers_of_all_turns_stay_known() -> None:
    first = NO_TOKENS.continued([5, 6], [7, 8])
    second = first.continued([5, 6, 7, 8, 9], [10])
    assert [*second.token_ids] == [5, 6, 7, 8, 9, 10]
    assert second.answers == [(2, 4), (5, 6)]
    assert first.continued([5, 6, 7, 1], [2]) == KeptTokens(
        first.continued([5, 6, 7, 1], [2])[0], [(2, 3), (4, 5)]
    )
