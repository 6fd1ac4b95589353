"""Finds where a prompt stops being what an earlier one was, and why.

The tokens decide whether anything broke, and the caller's own messages say what: a change that the
tokens do not show costs nothing. Where several things changed, the first of these is named: model,
tools, system prompt, message, settings. What the caller did not change, the template did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from signalbox_contract.prefix_comparison import PrefixCause
from signalbox_router.prompt.chat.conversation import Message
from signalbox_router.prompt.prefix.prompt_digest import (
    BLOCK_TOKENS,
    HASH_BYTES,
    AnswerDigest,
    DigestKey,
    PromptDigest,
    answer_digest,
    num_common,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecord:
    """The hashes of a request that was sent, and of its answer."""

    prompt: PromptDigest
    answer_blocks: bytes = b""
    """Hashes of the blocks that follow those of the prompt, which its last tokens begin."""
    num_answer_tokens: int = 0
    num_reasoning_tokens: int = 0
    answer: AnswerDigest | None = None
    """None if the answer is not there, or is several."""
    session: bytes = b""
    scheduler: str = ""
    """Address of the scheduler that computed it; empty before it has ended."""

    @property
    def blocks(self) -> bytes:
        return self.prompt.blocks + self.answer_blocks

    @property
    def num_tokens(self) -> int:
        return self.prompt.num_tokens + self.num_answer_tokens

    @property
    def num_bytes(self) -> int:
        return self.prompt.num_bytes + len(self.answer_blocks)


class PrefixDifference(NamedTuple):
    """The result of a comparison."""

    cause: PrefixCause
    num_kept_tokens: int = 0
    num_lost_tokens: int = 0
    message: int | None = None
    """Index of the message of the later request that has changed; None if none has."""


def num_kept(prompt: PromptDigest, record: PromptRecord) -> int:
    """Returns how many tokens a prompt begins with as the earlier one and its answer do, in whole
    blocks."""
    if prompt.model != record.prompt.model:
        return 0
    return num_common(prompt.blocks, record.blocks) * BLOCK_TOKENS


def compare(
    prompt: PromptDigest,
    record: PromptRecord,
    messages: Sequence[Message],
    *,
    key: DigestKey,
    is_cut: bool,
) -> PrefixDifference:
    """Compares a prompt with an earlier one.

    Args:
        messages: the messages of the prompt; none if it is no conversation.
        is_cut: True if a part of the prompt may be left out to fit the window.
    """
    kept, shared = num_kept(prompt, record), min(prompt.num_tokens, record.num_tokens)
    comparable = shared
    if _is_continued(prompt, record.prompt):  # the opening of its answer follows what is shared
        comparable = min(shared, prompt.num_tokens - prompt.num_opening_tokens)
    if kept + BLOCK_TOKENS > comparable and prompt.model == record.prompt.model:
        return PrefixDifference(PrefixCause.UNCHANGED, kept)
    cause, message = _PromptPair(prompt, record, messages, key, kept, is_cut).cause()
    return PrefixDifference(cause, kept, shared - kept, message)


def _is_continued(prompt: PromptDigest, earlier: PromptDigest) -> bool:
    """Returns whether one of the conversations is the beginning of the other."""
    shorter = min(prompt.num_messages, earlier.num_messages)
    common = num_common(prompt.messages, earlier.messages)
    return prompt.tools == earlier.tools and common == shorter > 0


_Cause = tuple[PrefixCause, int | None]


class _PromptPair(NamedTuple):
    """Two prompts that differ."""

    prompt: PromptDigest
    record: PromptRecord
    messages: Sequence[Message]
    key: DigestKey
    kept: int
    is_cut: bool

    def cause(self) -> _Cause:
        """Returns the cause, and the index of the message that it is about."""
        prompt, earlier = self.prompt, self.record.prompt
        if prompt.model != earlier.model:
            return PrefixCause.MODEL_CHANGED, None
        if prompt.tools != earlier.tools:
            return PrefixCause.TOOLS_CHANGED, None
        if not _is_continued(prompt, earlier):
            return self._changed(num_common(prompt.messages, earlier.messages))
        opening = earlier.num_tokens - earlier.num_opening_tokens
        if self.kept + BLOCK_TOKENS > opening:
            return self._in_answer(earlier.num_messages)
        if prompt.settings != earlier.settings:
            return PrefixCause.SETTINGS_CHANGED, None
        return self._rendered()

    def _changed(self, message: int) -> _Cause:
        """Returns the cause if the caller's messages differ from this one on."""
        prompt, earlier = self.prompt, self.record.prompt
        if message >= len(self.messages):  # no conversation
            return PrefixCause.MESSAGE_CHANGED, None
        if message < max(prompt.num_system, earlier.num_system):
            return PrefixCause.SYSTEM_CHANGED, message
        value = slice(message * HASH_BYTES, (message + 1) * HASH_BYTES)
        if prompt.values[value] == earlier.values[value]:
            return PrefixCause.ARGUMENTS_RESPELLED, message
        return PrefixCause.MESSAGE_CHANGED, message

    def _in_answer(self, message: int) -> _Cause:
        """Returns the cause if the prompts differ where the earlier one's answer is."""
        if message >= len(self.messages):
            return PrefixCause.ANSWER_CHANGED, None
        sent, was = self.messages[message], self.record.answer
        if sent.role != "assistant":
            return PrefixCause.ANSWER_CHANGED, message
        if was is None:
            return PrefixCause.RENDERED_ANEW, message
        now = answer_digest(sent, self.key)
        if (now.text, now.calls) != (was.text, was.calls):
            return PrefixCause.ANSWER_CHANGED, message
        if was.reasoning and not now.reasoning:
            return PrefixCause.REASONING_LEFT_OUT, message
        end_of_reasoning = self.record.prompt.num_tokens + self.record.num_reasoning_tokens
        if was.reasoning and self.kept < end_of_reasoning:
            return PrefixCause.REASONING_DROPPED, message
        if now.calls:
            return PrefixCause.ARGUMENTS_RESPELLED, message
        return PrefixCause.RENDERED_ANEW, message

    def _rendered(self) -> _Cause:
        """Returns the cause if the template writes what the caller has not changed otherwise.

        Templates leave out the reasoning of all turns before the last message of the user.
        """
        if self.is_cut:
            return PrefixCause.TURNS_DROPPED, None
        earlier = self.record.prompt
        for i in range(earlier.last_query + 1, min(earlier.num_messages, len(self.messages))):
            if self.messages[i].reasoning:
                return PrefixCause.REASONING_DROPPED, i
        return PrefixCause.RENDERED_ANEW, None
