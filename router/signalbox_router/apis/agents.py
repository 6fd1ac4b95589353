"""Handlers and codecs that the Responses and the Messages API share.

A client sends the reasoning of earlier answers back in a field that only the server reads. Here
that is the text itself in an encoding without a key, so any router reads it, after any restart.
"""

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from signalbox_router.apis.openai.bodies.body_reader import ignored_header
from signalbox_router.apis.openai.bodies.unknown_fields import escaped, listed
from signalbox_router.apis.openai.generating_api import GeneratingApi
from signalbox_router.apis.openai.requests.types import BodyWithTools
from signalbox_router.limits.tenants import Caller
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.tokenization.kept_tokens import NO_TOKENS, KeptTokens
from signalbox_router.requests.api_request import ApiRequest
from signalbox_router.schedulers.served_models import GENERATING
from signalbox_rpc.http.disconnection import until_disconnected

OMITTED_HEADER = "x-signalbox-omitted-tools"
"""Header that lists the tools that were offered and that the model was not told of."""
_PREFIX = "sb1-"
_SUM_BYTES = 4


def encode_reasoning(text: str) -> str:
    """Returns a text of ASCII that `decode_reasoning` reads; a third longer."""
    content = text.encode("utf-8", "replace")
    summed = zlib.crc32(content).to_bytes(_SUM_BYTES) + content
    return _PREFIX + base64.urlsafe_b64encode(summed).decode()


def decode_reasoning(encoded: str) -> str | None:
    """Returns the reasoning; None if another server has encoded it, or it is damaged."""
    if not encoded.startswith(_PREFIX):
        return None
    try:
        summed = base64.b64decode(encoded.removeprefix(_PREFIX), b"-_", validate=True)
        content = summed[_SUM_BYTES:]
        is_whole = summed[:_SUM_BYTES] == zlib.crc32(content).to_bytes(_SUM_BYTES)
        return content.decode() if is_whole else None
    except ValueError:
        return None


def omitted_text(names: Sequence[str]) -> str:
    """Returns the names of tools that were left out as one text, which a header can hold."""
    return listed([escaped(name) for name in names])


def omitted_header(names: Sequence[str]) -> dict[str, str]:
    """Returns the header that names the tools that were left out; empty if there are none."""
    return {OMITTED_HEADER: omitted_text(names)} if names else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConversation:
    """The conversation of a body, and what was left out of it."""

    conversation: Conversation
    omitted: Sequence[str]
    """Names or types of the tools that the model is not told of."""
    input_transformations: Sequence[Mapping[str, str]]
    """Entries of the answer's field: reasoning that this server cannot read."""
    places: Sequence[int] = ()
    """Index of each message of the conversation in the body, -1 of a system prompt that is no
    message there."""
    drops_turns: bool = False
    """True if the oldest turns are left out of a conversation that does not fit the window."""


def answer_headers(request: Request, read: ReadConversation) -> dict[str, str]:
    """Returns the headers that list what was ignored or left out."""
    return {**ignored_header(request), **omitted_header(read.omitted)}


B = TypeVar("B", bound=BodyWithTools)
R = TypeVar("R", bound=ReadConversation)


class AgentsApi(GeneratingApi):
    """Base class of the handlers of both APIs."""

    async def _count_tokens(
        self, request: Request, kind: type[B], read: Callable[[B], R]
    ) -> tuple[B, R, int]:
        """Returns a body, its conversation and the number of tokens of the prompt."""

        def checked(body: B) -> R:
            found = read(body)
            found.conversation.check()
            return found

        caller = self._callers.identify(request)
        self._generator.models.all()  # raises Unavailable
        body, found = await self._bodies.read(request, kind, into=checked)
        return body, found, await self._count(request, caller, body, found)

    async def _count(
        self,
        request: Request,
        caller: Caller,
        body: BodyWithTools,
        found: ReadConversation,
        kept: KeptTokens = NO_TOKENS,
    ) -> int:
        """Returns the number of tokens of a conversation's prompt."""
        until_left = partial(until_disconnected, request.receive)
        named = body.model or ""
        async with self._generator.place(caller, named, GENERATING, until_left=until_left) as place:
            asked = ApiRequest(
                prompt=found.conversation, drops_turns=found.drops_turns, kept_tokens=kept
            )
            encode = self._generator.admission.encode(asked, place.model, caller.payer)
            num_tokens = len((await until_disconnected(request.receive, encode)).token_ids)
            place.spend(num_tokens)
        return num_tokens
