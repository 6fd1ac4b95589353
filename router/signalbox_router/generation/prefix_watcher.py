"""Compares prompts with earlier ones of the same tenant and API key, to say what broke a prefix.

A request takes part if it belongs to a session, or if its client asks. It is compared with the one
that the client names, or, of the last few of its session, with the one that it has most in common
with: an agent's helpers send requests of their own between its turns.
"""

from collections.abc import Sequence
from typing import NamedTuple

from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison
from signalbox_router.limits.api_keys import ApiKey
from signalbox_router.parsers.reasoning_reader import ReasoningReader
from signalbox_router.parsers.tool_call_reader import ToolCallReader
from signalbox_router.prompt.chat.conversation import (
    INPUT,
    Conversation,
    Message,
    ToolCall,
    arguments_of,
)
from signalbox_router.prompt.prefix.comparison import (
    PrefixDifference,
    PromptRecord,
    compare,
    num_kept,
)
from signalbox_router.prompt.prefix.prompt_digest import DigestKey, PromptDigest, digest_of
from signalbox_router.prompt.prefix.prompt_records import OwnerRecords, PromptRecords
from signalbox_router.requests.active_request import ActiveRequest, Update
from signalbox_router.requests.api_request import ApiRequest, PrefixQuery
from signalbox_router.requests.output_sequence import make_branches
from signalbox_router.requests.prefix_watch import PrefixWatch
from signalbox_router.requests.request_output import Delta, Finish, FinishReason

_PATHS = {PrefixCause.MODEL_CHANGED: "model", PrefixCause.TOOLS_CHANGED: "tools"}
_PROMPT = "prompt"
"""Path of a prompt that is no conversation."""


class SentPrompt(NamedTuple):
    """A prompt as it goes to a scheduler."""

    token_ids: Sequence[int]
    opening: str
    """Text at its end that begins the answer."""
    model: Sequence[str]
    """Names of model, adapter and cache salt: requests that share a prefix have them in common."""
    session: bytes


class PrefixWatcher:
    """The hashes of the last prompts of a router."""

    def __init__(self) -> None:
        self._records = PromptRecords()

    def watch(
        self, api_request: ApiRequest, prompt: SentPrompt, *, tenant: str, key: ApiKey | None
    ) -> PrefixWatch:
        """Compares a prompt, and keeps its hashes for later requests of its owner."""
        digest_key = DigestKey(tenant.encode(), b"" if key is None else key.sha256)
        records = self._records.of(digest_key.owner)
        conversation = api_request.prompt if isinstance(api_request.prompt, Conversation) else None
        digest = digest_of(
            conversation, prompt.token_ids, prompt.opening, model=prompt.model, key=digest_key
        )
        earlier = _earlier(api_request.prefix_query, digest, prompt.session, records)
        comparison = None
        if earlier is not None:
            found = compare(
                digest,
                earlier,
                conversation.messages if conversation is not None else (),
                key=digest_key,
                is_cut=api_request.drops_turns or bool(api_request.truncate_prompt_tokens),
            )
            comparison = _comparison(found, api_request.prefix_query, conversation is not None)
        elif api_request.prefix_query.is_asked and api_request.prefix_query.compared_id is not None:
            comparison = PrefixComparison(PrefixCause.NOT_FOUND)
        record = PromptRecord(prompt=digest, session=prompt.session)
        return PrefixWatch(
            key=digest_key,
            records=records,
            name=records.add(api_request.prefix_query.answer_id, record),
            record=record,
            comparison=comparison,
            previous_scheduler="" if earlier is None else earlier.scheduler,
        )


def _earlier(
    query: PrefixQuery, digest: PromptDigest, session: bytes, records: OwnerRecords
) -> PromptRecord | None:
    """Returns the record to compare with, the last one of several that are alike."""
    if query.compared_id is not None:
        named = records.find(query.compared_id)
        if named is not None or query.is_asked:
            return named
    known = records.of_session(session) if session else ()
    return max(known, key=lambda record: num_kept(digest, record), default=None)


def _comparison(
    found: PrefixDifference, query: PrefixQuery, is_conversation: bool
) -> PrefixComparison:
    path = _PATHS.get(found.cause, "")
    if found.message is not None:
        path = query.path_of(found.message)
    elif found.cause is PrefixCause.MESSAGE_CHANGED and not is_conversation:
        path = _PROMPT
    return PrefixComparison(found.cause, found.num_kept_tokens, found.num_lost_tokens, path)


def keep(
    request: ActiveRequest,
    readers: Sequence[ReasoningReader | ToolCallReader],
    kept_token_ids: frozenset[int],
) -> None:
    """Keeps the hashes of the answer of a watched request that has ended.

    Args:
        readers: readers that have read nothing.
        kept_token_ids: special tokens that the text always shows.
    """
    assert request.watch is not None
    token_ids, answer = request.answer_token_ids, None
    if token_ids and request.finish_reason is not None:
        answer = _answer(request, readers, kept_token_ids)
    request.watch.keep(
        request.prompt_token_ids,
        token_ids,
        answer,
        num_reasoning_tokens=sum(reader.num_reasoning_tokens for reader in readers),
    )


def _answer(
    request: ActiveRequest,
    readers: Sequence[ReasoningReader | ToolCallReader],
    kept_token_ids: frozenset[int],
) -> Message:
    """Reads an answer another time, as a whole, so that a token costs nothing while it is
    generated."""
    (branch,) = make_branches(
        request.params,
        prompt_token_ids=request.prompt_token_ids,
        tokenizer=request.tokenizer,
        kept_token_ids=kept_token_ids,
    )
    branch.add(list(request.answer_token_ids), [])
    branch.end(Finish(request.finish_reason or FinishReason.STOP))
    delta = branch.read() or Delta(index=0)
    for reader in readers:
        reader.read(Update(request, [delta], None))
    return Message("assistant", delta.text, tool_calls=_calls(delta), reasoning=delta.reasoning)


def _calls(delta: Delta) -> list[ToolCall]:
    names: dict[int, str] = {}
    arguments: dict[int, list[str]] = {}
    for call in delta.tool_calls:
        names.setdefault(call.index, call.name)
        arguments.setdefault(call.index, []).append(call.arguments)
    return [_call(name, "".join(arguments[index])) for index, name in names.items()]


def _call(name: str, arguments: str) -> ToolCall:
    try:
        return ToolCall("", name, arguments_of(arguments))
    except ValueError:
        return ToolCall("", name, {INPUT: arguments})
