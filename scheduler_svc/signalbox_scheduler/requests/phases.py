"""The stretches of a request's time, for its trace: waiting, prefill, preempted, decode, failover.

Made of the request's timeline when it ends, so that it costs nothing while it runs. The stretches
follow each other without gaps: together they are the request's time.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from signalbox_scheduler.requests.timeline import EventKind, TimelineEvent
from signalbox_scheduler.requests.wait_accounting import Wait, WaitReason

Attribute = str | bool | int | float

_QUEUE_REASONS = {
    WaitReason.NEXT_STEP: "step",
    WaitReason.TOKENS: "tokens",
    WaitReason.NO_WORKER: "capacity",
    WaitReason.SEQUENCES: "capacity",
    WaitReason.BLOCKS: "capacity",
    WaitReason.SWAPPED_FIRST: "capacity",
    WaitReason.GRAMMAR: "grammar",
    WaitReason.SUSPECT: "capacity",
    WaitReason.LOADING: "loading",
}


@dataclass(slots=True)
class RequestPhase:
    """One stretch, in seconds of the scheduler's clock."""

    name: str
    start: float
    end: float
    attributes: dict[str, Attribute] = field(default_factory=dict)
    chunks: list[TimelineEvent] = field(default_factory=list)
    """Chunks of a prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUnit:
    """Size of a block on the workers of the request; 0 is not known."""

    tokens: int = 0
    num_bytes: int = 0


def phases_of(
    events: Iterable[TimelineEvent], *, token_times: Sequence[float], end: float, block: BlockUnit
) -> list[RequestPhase]:
    """Returns the stretches of a request's time, in order.

    Args:
        token_times: when each of its tokens was accepted, rising.
        end: when it ended, or now.
    """
    phases: list[RequestPhase] = []
    for event in events:
        _add(phases, event, block)
    if phases:
        phases[-1].end = max(end, phases[-1].start)
    split = [part for phase in phases for part in _parts(phase, token_times)]
    for phase in split:
        _describe(phase, token_times, block)
    return split


def _add(phases: list[RequestPhase], event: TimelineEvent, block: BlockUnit) -> None:
    """Lets an event begin a phase, which ends the one before, or add to the one that goes on."""
    current = phases[-1] if phases else None
    match event.kind:
        case EventKind.QUEUED if current is None:
            _begin(phases, "queue", event, depth=event.num_ahead)
        case EventKind.SCHEDULED:
            if current is not None:
                current.attributes |= _waits(event.waits)
            _begin(phases, "prefill", event)
        case EventKind.PREFILL if current is not None and current.name == "prefill":
            current.chunks.append(event)
        case EventKind.FIRST_TOKEN:
            _begin(phases, "decode", event)
        case EventKind.PREEMPTED:
            _begin(phases, "preempted", event, **_preemption(event, block))
        case EventKind.RESUMED:
            _resume(phases, event)
        case EventKind.MOVED:
            _begin(phases, "failover", event, from_worker=event.worker, reason=event.detail)


def _begin(
    phases: list[RequestPhase], name: str, event: TimelineEvent, **attributes: Attribute
) -> None:
    if phases:
        phases[-1].end = event.at
    named = {f"signalbox.{key}": value for key, value in attributes.items()}
    phases.append(RequestPhase(name, event.at, event.at, named))


def _resume(phases: list[RequestPhase], event: TimelineEvent) -> None:
    if phases:
        phases[-1].attributes |= _waits(event.waits)
        if phases[-1].name == "failover":
            phases[-1].attributes["signalbox.to_worker"] = event.worker
    has_prefilled = any(phase.name == "decode" for phase in phases)
    if event.is_swap and has_prefilled:
        _begin(phases, "decode", event)
    elif has_prefilled:
        _begin(phases, "prefill", event, is_recompute=True)
    else:
        _begin(phases, "prefill", event)


def _preemption(event: TimelineEvent, block: BlockUnit) -> dict[str, Attribute]:
    moved_bytes = event.num_blocks * block.num_bytes if event.is_swap else 0
    return {
        "mode": "swap" if event.is_swap else "recompute",
        "blocks": event.num_blocks,
        "bytes": moved_bytes,
        "preempted_by": event.other_request_id,
    }


def _waits(waits: tuple[Wait, ...]) -> dict[str, Attribute]:
    """Returns the reason waited for longest as one word, and the seconds of each reason."""
    if not waits:
        return {}
    each: dict[str, Attribute] = {
        f"signalbox.wait.{wait.reason.name.lower()}_s": wait.seconds for wait in waits
    }
    return {"signalbox.reason": _QUEUE_REASONS[waits[0].reason], **each}


def _parts(phase: RequestPhase, token_times: Sequence[float]) -> list[RequestPhase]:
    """Splits a prefill that computes again where its first new token comes: decode goes on."""
    if "signalbox.is_recompute" not in phase.attributes:
        return [phase]
    index = bisect_right(token_times, phase.start)
    if index == len(token_times) or token_times[index] >= phase.end:
        return [phase]
    decode = RequestPhase("decode", token_times[index], phase.end)
    phase.end = decode.start
    return [phase, decode]


def _describe(phase: RequestPhase, token_times: Sequence[float], block: BlockUnit) -> None:
    if phase.name == "prefill":
        phase.attributes |= _prefill(phase.chunks, block)
    elif phase.name == "decode":
        first = bisect_left(token_times, phase.start)
        last = bisect_right(token_times, phase.end)
        phase.attributes |= _decode(token_times[first:last])


def _prefill(chunks: list[TimelineEvent], block: BlockUnit) -> dict[str, Attribute]:
    cached = sum(chunk.num_cached_tokens for chunk in chunks)
    computed = sum(chunk.num_tokens for chunk in chunks)
    num_blocks = math.ceil((cached + computed) / block.tokens) if block.tokens else 0
    return {
        "signalbox.chunks": len(chunks),
        "signalbox.cached_tokens": cached,
        "signalbox.computed_tokens": computed,
        "signalbox.blocks": num_blocks,
    }


def _decode(times: Sequence[float]) -> dict[str, Attribute]:
    """Several tokens at the same time are those of several branches in one step."""
    step_times = list(dict.fromkeys(times))
    gaps = sorted(after - before for before, after in pairwise(step_times))
    found: dict[str, Attribute] = {
        "signalbox.steps": len(step_times),
        "signalbox.tokens": len(times),
    }
    if gaps:
        found["signalbox.time_per_token.mean_s"] = sum(gaps) / len(gaps)
        found["signalbox.time_per_token.p99_s"] = gaps[math.ceil(0.99 * len(gaps)) - 1]
    return found
