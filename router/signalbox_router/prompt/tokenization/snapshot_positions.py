"""Names positions of a conversation's prompt from which later requests are likely to go on.

They are the end of the system text and tools, and the end of what the clients and the model wrote,
behind which the template opens the answer. A worker with recurrent layers leaves snapshots there.
The positions are hints: where a tokenizer merges characters across one, it is a token off.
"""

from collections.abc import Awaitable, Callable
from itertools import islice

from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.chat.provenance import CLIENT, Text, plain, runs, writers_of

MAX_KNOWN = 256
"""Texts that prompts share whose numbers of tokens are kept."""
_MAX_RUNS = 4096
"""Runs of the clients' characters among which the first message is looked for."""
_SYSTEM_ROLES = frozenset({"system", "developer"})


class SnapshotPositions:
    """The positions for one tokenizer. It knows how many tokens the texts have that prompts share,
    so that only a system text which is new is tokenised another time."""

    def __init__(self) -> None:
        self._num_tokens: dict[tuple[int, int], int] = {}
        """Tokens of a text by its length and hash; the least recently used comes first."""

    async def find(
        self,
        conversation: Conversation,
        text: Text,
        *,
        num_tokens: int,
        encode: Callable[[Text], Awaitable[list[int]]],
    ) -> tuple[int, ...]:
        """Returns the positions in a prompt of so many tokens, ascending."""
        opening = conversation.opening_of(text) if conversation.add_generation_prompt else ""
        tail = await self._count(text[len(text) - len(opening) :], encode)
        head = await self._count(text[: end_of_system(conversation, text)], encode)
        return tuple(sorted({one for one in (head, num_tokens - tail) if 0 < one <= num_tokens}))

    async def _count(self, text: Text, encode: Callable[[Text], Awaitable[list[int]]]) -> int:
        if not text:
            return 0
        key = (len(text), hash(plain(text)))
        num_tokens = self._num_tokens.pop(key, None)
        if num_tokens is None:
            num_tokens = len(await encode(text))
            if len(self._num_tokens) >= MAX_KNOWN:
                del self._num_tokens[next(iter(self._num_tokens))]
        self._num_tokens[key] = num_tokens
        return num_tokens


def end_of_system(conversation: Conversation, text: Text) -> int:
    """Returns where the first message begins that is no system message, in characters of the
    rendered text; 0 if it is not there as it was sent."""
    others = (one for one in conversation.messages if one.role not in _SYSTEM_ROLES)
    first = next(others, None)
    wanted = next(iter(first.parts), "").strip() if first is not None else ""
    if not wanted:
        return 0
    characters = plain(text)
    for start, end in islice(runs(writers_of(text), CLIENT), _MAX_RUNS):
        if end - start >= len(wanted) and characters[start:end].strip() == wanted:
            return start
    return 0
