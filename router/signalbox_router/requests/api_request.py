"""A request as decoded by one of the APIs, before it is checked or tokenised."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from signalbox_contract.errors import DeadlineExceeded
from signalbox_contract.pooling import Task
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.tokenization.kept_tokens import NO_TOKENS, KeptTokens
from signalbox_router.requests.output_buffer import Delivery

MAX_TIMEOUT_NS = (1 << 63) - 1
"""Longest timeout that the wire can hold; a client may set one of tens of thousands of years."""

TimeRemaining = Callable[[], float | None]
"""Returns the seconds until the RPC's deadline; None is unlimited."""


class PromptText(NamedTuple):
    text: str
    add_special_tokens: bool
    field: str = "text"
    """Name of the field in the client's API."""


class PromptTokens(NamedTuple):
    token_ids: list[int]
    field: str = "token_ids.ids"
    """Name of the field in the client's API."""


class PromptPair(NamedTuple):
    """A query, and a document that may answer it."""

    query: str
    document: str
    instruction: str | None = None
    """Instruction for the template of a reranker; None is the template's."""
    query_field: str = "queries"
    """Name of the query's field in the client's API."""
    document_field: str = "documents"


class PoolingRequest(NamedTuple):
    """Task and parameters of a request to a model that pools, beside the prompt."""

    task: Task
    prefix: str = ""
    """Text before a text prompt."""
    truncate_start: bool = False
    """True if truncation keeps the end of the prompt."""
    is_first: bool = True
    """True of one of the requests that a call makes of its inputs; the others are not refused
    because a key's tokens are used up."""


class PrefixQuery(NamedTuple):
    """A client's question about the prefix of its prompt, and the way its API names places."""

    answer_id: str = ""
    """Id of the answer, by which later requests name this one; empty if they cannot."""
    is_asked: bool = False
    """True if the answer is to say what broke the prefix."""
    compared_id: str | None = None
    """Id of the answer whose request the prompt is compared with; None is the session's last."""
    item: str = "messages[{}]"
    """Path of one of the client's messages by its index."""
    system: str = "system"
    """Path of a system prompt that is none of the messages."""
    places: Sequence[int] = ()
    """Index of each of the conversation's messages among the client's, -1 of the system prompt.
    Empty if they are the same."""

    def path_of(self, message: int) -> str:
        """Returns the path of a message of the conversation."""
        place = self.places[message] if self.places else message
        return self.system if place < 0 else self.item.format(place)


NO_QUERY = PrefixQuery()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A request as the client sent it."""

    prompt: PromptText | PromptTokens | PromptPair | Conversation
    request_id: str = ""
    """Id of the request; one is made if it is empty."""
    model: str = ""
    """Name of the model; empty is the served one."""
    priority: int = 0
    cache_salt: str = ""
    session_name: str = field(default="", repr=False)
    """Client's name for the session; empty if the body names none."""
    keep_ns: int = 0
    """Time for which the client asks that the prompt's prefix be kept; 0 if it asks for none."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The fields that are set, by proto name."""
    max_default_tokens: int | None = None
    """Default of an API for max_tokens, if `sampling` does not contain it."""
    cuts_max_tokens: bool = False
    """True if a max_tokens beyond the window is cut, and not refused."""
    prewarm: bool = False
    """True if the prompt is computed, so that later ones find it, and no token is drawn."""
    truncate_prompt_tokens: int | None = None
    """Tokens to keep of the prompt: its last; if it is pooled, its first, and -1 is all that
    fit."""
    truncate_end: bool = False
    """True if truncation keeps the first tokens of a prompt that is continued."""
    drops_turns: bool = False
    """True if the oldest turns of a conversation are left out that does not fit the window."""
    prefix_query: PrefixQuery = NO_QUERY
    kept_tokens: KeptTokens = NO_TOKENS
    """Tokens of the turn that a conversation goes on from."""
    delivery: Delivery = field(default_factory=Delivery)
    wants_receipt: bool = False
    """True if the end has a receipt."""
    pooled: PoolingRequest | None = None
    """None continues the prompt."""

    @property
    def task(self) -> str:
        """Task of the models that can answer the request, as in `ServedModel.task`."""
        return "generate" if self.pooled is None else self.pooled.task

    @property
    def may_owe(self) -> bool:
        """True if the request is not refused because a key's tokens are used up."""
        return self.pooled is not None and not self.pooled.is_first


def timeout_ns(time_remaining: TimeRemaining) -> int | None:
    """Returns the nanoseconds left. Raises DeadlineExceeded if there are none."""
    remaining_s = time_remaining()
    if remaining_s is None:
        return None
    if remaining_s <= 0:
        raise DeadlineExceeded("the deadline has passed")
    return min(max(1, int(remaining_s * 1e9)), MAX_TIMEOUT_NS)


def now_ns() -> int:
    """Returns the current time on the clock of `arrived_ns`."""
    return time.monotonic_ns()
