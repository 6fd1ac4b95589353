"""A request whose prompt is compared with an earlier one, and is kept for later ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison
from signalbox_router.prompt.chat.conversation import Message
from signalbox_router.prompt.prefix.comparison import PromptRecord
from signalbox_router.prompt.prefix.prompt_digest import BLOCK_TOKENS, DigestKey, answer_digest
from signalbox_router.prompt.prefix.prompt_records import OwnerRecords

MAX_UNFOUND_TOKENS = 64
"""Kept tokens that a cache may lack without a cause: it has whole blocks, and recurrent layers
leave snapshots here and there."""
_UNFOUND_SHARE = 8
"""One of so many kept tokens may be missing, too."""


@dataclass(slots=True, kw_only=True)
class PrefixWatch:
    """The comparison of one request, and its own record."""

    key: DigestKey
    records: OwnerRecords
    name: str
    """Name of the record among those of its owner."""
    record: PromptRecord
    comparison: PrefixComparison | None
    """None if there was nothing to compare with."""
    previous_scheduler: str = ""
    """Address of the scheduler of the earlier request; empty if it is unknown."""
    scheduler: str = ""
    """Address of the scheduler that the request was sent to last."""

    def send_to(self, scheduler: str) -> None:
        """Takes note of the scheduler that the request is sent to next."""
        self.scheduler = scheduler
        if self.comparison is not None:
            is_elsewhere = self.previous_scheduler not in ("", scheduler)
            self.comparison = self.comparison._replace(is_elsewhere=is_elsewhere)

    def ended(self, *, num_cached_tokens: int) -> None:
        """Names the cause if the prompt's tokens were the same and the scheduler has not found
        them."""
        found = self.comparison
        if found is None or found.cause is not PrefixCause.UNCHANGED:
            return
        kept = found.num_kept_tokens
        missing = kept - num_cached_tokens
        if missing > MAX_UNFOUND_TOKENS + kept // _UNFOUND_SHARE:
            cause = PrefixCause.OTHER_SCHEDULER if found.is_elsewhere else PrefixCause.EVICTED
            self.comparison = found._replace(
                cause=cause, num_kept_tokens=num_cached_tokens, num_lost_tokens=missing
            )

    def keep(
        self,
        prompt_token_ids: Sequence[int],
        answer_token_ids: Sequence[int],
        answer: Message | None,
        *,
        num_reasoning_tokens: int,
    ) -> None:
        """Adds the answer to the record. `answer` is None if it is several or there is none."""
        start = len(prompt_token_ids) // BLOCK_TOKENS * BLOCK_TOKENS
        record = replace(self.record, scheduler=self.scheduler)
        if answer is not None:
            record = replace(
                record,
                answer_blocks=self.key.blocks([*prompt_token_ids[start:], *answer_token_ids]),
                num_answer_tokens=len(answer_token_ids),
                num_reasoning_tokens=num_reasoning_tokens,
                answer=answer_digest(answer, self.key),
            )
        self.records.add(self.name, record)
