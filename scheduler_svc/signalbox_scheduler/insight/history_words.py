"""Words for the history of one request, which `signalbox explain` and the console's Why show."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from signalbox_contract.cache_groups import CacheGroup, describe_groups, is_one_full_group
from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison
from signalbox_contract.wording import counted
from signalbox_scheduler.audits.finding import AuditEnd
from signalbox_scheduler.insight.explain import Explanation
from signalbox_scheduler.requests.timeline import EventKind, TimelineEvent
from signalbox_scheduler.requests.wait_accounting import Wait, WaitReason

_REASONS = {
    WaitReason.NEXT_STEP: "the next step",
    WaitReason.NO_WORKER: "a worker that takes it",
    WaitReason.TOKENS: "the token budget",
    WaitReason.SEQUENCES: "a place among the sequences",
    WaitReason.BLOCKS: "KV blocks",
    WaitReason.SWAPPED_FIRST: "swapped requests to go first",
    WaitReason.GRAMMAR: "its structured output to be compiled",
    WaitReason.SUSPECT: "a suspect to compute alone",
    WaitReason.LOADING: "its prefix to be fetched",
}
_CHANGED = {
    PrefixCause.MODEL_CHANGED: "the model, its adapter or the cache salt is another one",
    PrefixCause.TOOLS_CHANGED: "the tools have changed",
    PrefixCause.SYSTEM_CHANGED: "the system prompt has changed",
    PrefixCause.MESSAGE_CHANGED: "a message has changed",
    PrefixCause.ANSWER_CHANGED: "the earlier answer was not sent back as it was",
    PrefixCause.REASONING_LEFT_OUT: "the earlier answer was sent back without its reasoning",
    PrefixCause.SETTINGS_CHANGED: "the chat template or its variables have changed",
    PrefixCause.REASONING_DROPPED: "the chat template leaves out reasoning of an earlier turn",
    PrefixCause.ARGUMENTS_RESPELLED: "the arguments of a call are spelled otherwise",
    PrefixCause.TURNS_DROPPED: "the oldest turns were left out to fit the window",
    PrefixCause.RENDERED_ANEW: "an earlier turn is written with other spaces or tokens",
}
_WITHOUT_WORDS = {"kind", "at", "worker", "waits"}


class HistoryLine(NamedTuple):
    """One thing that happened, at a time of the scheduler's clock."""

    at: float
    event: str
    details: str


def summary_of(
    known: Explanation,
    *,
    block_size: int,
    held: Sequence[tuple[CacheGroup, int]] = (),
    has_states: bool = False,
) -> Iterator[str]:
    """Yields sentences on the whole.

    Args:
        block_size: tokens of a block of its worker; 0 if that has left.
        held: the groups of layers of its worker, each with the blocks that the request holds.
        has_states: whether layers of its worker are recurrent.
    """
    cached = f" ({known.num_cached_tokens} cached)" if known.num_cached_tokens else ""
    branches = f" in {known.num_sequences} sequences" if known.num_sequences > 1 else ""
    times = {0: "never", 1: "once", 2: "twice"}
    yield (
        f"Prompt {counted(known.num_prompt_tokens, 'token')}{cached},"
        f" output {counted(known.num_output_tokens, 'token')}{branches}, preempted"
        f" {times.get(known.num_preemptions, f'{known.num_preemptions} times')}."
    )
    if any(event.kind is EventKind.PREFILL for event in known.events):
        yield _prefix(
            known.num_prompt_tokens, known.num_cached_tokens, block_size, has_states=has_states
        )
    if known.prefix is not None:
        yield _compared(known.prefix)
    if held and not is_one_full_group([group for group, _ in held]):
        yield _held(held)
    if known.waits:
        yield f"It waits behind {known.num_ahead}, for {_waits(known.waits)}."
    for sample in known.samples:
        if isinstance(sample.value, int | float):
            yield f"{sample.meaning.rstrip('.')}: {sample.value:,.0f}."
    if known.num_dropped_events:
        events = counted(known.num_dropped_events, "event")
        yield f"{events} between the first and the last are not kept."


def _prefix(
    num_prompt_tokens: int, num_cached_tokens: int, block_size: int, *, has_states: bool
) -> str:
    """Says how much of the prompt was found, and why not more."""
    if block_size and num_cached_tokens >= (num_prompt_tokens - 1) // block_size * block_size:
        if not num_cached_tokens:
            return (
                f"Its prompt fills no block of {block_size} before the last token, so none could"
                " be cached."
            )
        rest = counted(num_prompt_tokens - num_cached_tokens, "token")
        return (
            f"Nothing broke its prefix: all its blocks of {block_size} before the last token were"
            f" cached, which left {rest} to compute."
        )
    broke = f"Its prefix broke after {counted(num_cached_tokens, 'token')}."
    stranger = "no request of its tenant had these tokens behind the same beginning"
    if has_states:
        return (
            f"{broke} No snapshot of the states of its recurrent layers was found further on:"
            f" {stranger}, none left a snapshot there, or it was evicted."
        )
    missing = f"What follows token {num_cached_tokens}"
    if block_size:
        first, last = num_cached_tokens + 1, num_cached_tokens + block_size
        missing = f"The block with tokens {first} to {last}"
    return f"{broke} {missing} was not in the cache: {stranger}, or they were evicted."


def _compared(prefix: PrefixComparison) -> str:
    """Says how the prompt begins in comparison with an earlier one of its client."""
    if prefix.cause is PrefixCause.NOT_FOUND:
        return "Its router does not know the request that the client compares it with."
    kept = counted(prefix.num_kept_tokens, "token")
    elsewhere = ", which another scheduler computed" if prefix.is_elsewhere else ""
    same = f"It begins with {kept} of an earlier request of its client{elsewhere}"
    if prefix.cause not in _CHANGED:
        return f"{same}, counted in whole blocks: nothing has changed there."
    place = f" ({prefix.path})" if prefix.path else ""
    lost = counted(prefix.num_lost_tokens, "token")
    return f"{same}, and loses {lost} behind them: {_CHANGED[prefix.cause]}{place}."


def _held(held: Sequence[tuple[CacheGroup, int]]) -> str:
    """Says how many blocks it holds, of groups that are alike in sum."""
    alike: dict[str, list[tuple[CacheGroup, int]]] = {}
    for group, count in held:
        alike.setdefault(str(group), []).append((group, count))
    parts = [
        f"{sum(count for _, count in some):,} of {describe_groups([group for group, _ in some])}"
        for some in alike.values()
    ]
    return f"It holds KV blocks of its worker's groups of layers: {', '.join(parts)}."


def lines_of(events: Iterable[TimelineEvent]) -> Iterator[HistoryLine]:
    """Yields a line for each event; the chunks of a prefill are one."""
    for kind, run_of_events in groupby(events, key=lambda event: event.kind):
        chunks = list(run_of_events)
        if kind is EventKind.PREFILL and len(chunks) > 1:
            yield HistoryLine(chunks[0].at, name_of(kind), _chunks(chunks))
        else:
            for event in chunks:
                yield HistoryLine(event.at, name_of(kind), details_of(event))


def name_of(kind: EventKind) -> str:
    return kind.name.replace("_", " ").lower()


def _chunks(events: list[TimelineEvent]) -> str:
    tokens = counted(sum(event.num_tokens for event in events), "token")
    steps = f"steps {events[0].step_id} to {events[-1].step_id}"
    return f"{tokens} in {len(events)} chunks{_cached(events[0])}, {steps}"


def _cached(event: TimelineEvent) -> str:
    return f" behind {event.num_cached_tokens} cached ones" if event.num_cached_tokens else ""


def details_of(event: TimelineEvent) -> str:
    """Says what the numbers of an event mean; "" of one that has none."""
    match event.kind:
        case EventKind.QUEUED:
            return f"behind {event.num_ahead}" if event.num_ahead else "first in the queue"
        case EventKind.SCHEDULED | EventKind.RESUMED:
            return _resumed(event)
        case EventKind.PREFILL:
            tokens = counted(event.num_tokens, "token")
            return f"{tokens}{_cached(event)}, step {event.step_id}"
        case EventKind.PREEMPTED:
            return _preempted(event)
        case EventKind.FORKED:
            return f"{event.num_sequences} sequences"
        case EventKind.SEQUENCE_FINISHED:
            return f"sequence {event.branch}: {event.detail.lower()}"
        case EventKind.MOVED:
            return f"the worker {event.worker} was {event.detail}"
        case EventKind.SUSPECTED:
            return f"it was in flight: computes alone for {counted(event.num_tokens, 'token')}"
        case EventKind.CLEARED:
            return f"it was not the cause: computes with others, step {event.step_id}"
        case EventKind.FETCHED | EventKind.STORED:
            return _moved(event)
        case EventKind.MIGRATED:
            return f"to {event.worker}, {_moved(event)} without a token"
        case EventKind.DEAR_MASKS:
            return _dear(event)
        case EventKind.AUDITED:
            return _audited(event)
        case EventKind.ENDED:
            return event.detail.lower() if event.detail.isupper() else event.detail
        case _:
            return _fields(event)


def _fields(event: TimelineEvent) -> str:
    """Returns what is set of an event that has no words of its own here."""
    fields = event._asdict().items()
    named = {name: value for name, value in fields if value and name not in _WITHOUT_WORDS}
    return ", ".join(f"{name.replace('_', ' ')} {named[name]}" for name in sorted(named))


def _resumed(event: TimelineEvent) -> str:
    text = f"by {event.worker}, step {event.step_id}"
    if event.is_swap:
        text += f", {counted(event.num_blocks, 'block')} swapped in"
    return text + (f"; waited for {_waits(event.waits)}" if event.waits else "")


def _dear(event: TimelineEvent) -> str:
    what = "the masks of its payer's requests take long"
    if event.seconds:
        what = f"the mask of a token takes {event.seconds * 1e3:.1f} ms"
    return f"{what}: sits steps out while others run, step {event.step_id}"


def audit_event(end: AuditEnd) -> TimelineEvent:
    """Returns the event of an audit, with what differs in words."""
    detail, found = "", end.finding
    if found is not None:
        what = "logit" if found.is_logit_alone else "token"
        branch = f"sequence {found.branch}, " if end.group.request.num_sequences > 1 else ""
        detail = (
            f"another {what} at {branch}output position {found.position};"
            f" suspected source: {found.source} {found.suspect}"
        )
    return TimelineEvent(
        EventKind.AUDITED,
        end.at,
        end.worker,
        num_tokens=end.num_tokens,
        seconds=end.seconds,
        detail=detail,
    )


def _audited(event: TimelineEvent) -> str:
    tokens = counted(event.num_tokens, "token")
    text = f"{tokens} computed again by {event.worker} in {event.seconds:.3f} s"
    return f"{text}: {event.detail or 'all equal'}"


def _moved(event: TimelineEvent) -> str:
    blocks = counted(event.num_blocks, "block")
    text = f"{blocks}, {event.num_bytes:,} bytes in {event.seconds:.3f} s"
    if event.store:
        store = "disk" if event.store == "disk" else f"{event.store} store"
        text += f" {'to' if event.kind is EventKind.STORED else 'from'} the {store}"
    elif event.source:
        text += f" from {event.source}"
    return f"{text}: {event.detail}" if event.detail else text


def _preempted(event: TimelineEvent) -> str:
    how = "swapped out" if event.is_swap else "given up, to be recomputed"
    blocks = counted(event.num_blocks, "block")
    return f"{blocks} {how}, for {event.other_request_id}, step {event.step_id}"


def _waits(waits: Iterable[Wait]) -> str:
    return ", ".join(f"{_REASONS[wait.reason]} {wait.seconds:.3f} s" for wait in waits)
