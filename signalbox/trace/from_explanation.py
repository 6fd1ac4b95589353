"""Draws a request from its scheduler's record, which has neither steps nor router spans."""

from collections.abc import Iterable

from protos.scheduler.v1 import explain_pb2 as pb
from scheduler_svc.requests.phases import BlockUnit, Phase, phases_of
from scheduler_svc.requests.timeline import Event, EventKind
from scheduler_svc.requests.wait_accounting import Wait, WaitReason
from signalbox.trace.timeline_drawing import (
    Drawing,
    Note,
    Segment,
    in_words,
    longest,
    phase_rows,
    seconds,
    shares,
)


def draw_explained(answer: pb.ExplainResponse, *, of: int = 1) -> Drawing:
    """Draws the timeline of an Explain answer, the slowest of `of` prompts."""
    events = [_event(event) for event in answer.events]
    phases = phases_of(
        events, token_times=_resumptions(events), end=answer.age_ns / 1e9, block=BlockUnit()
    )
    rows = phase_rows((_segment(phase) for phase in phases), indent=0)
    cached = f" ({answer.num_cached_tokens} cached)" if answer.num_cached_tokens else ""
    tokens = f"{answer.num_prompt_tokens} tokens in{cached}, {answer.num_output_tokens} out"
    state = pb.RequestState.Name(answer.state).removeprefix("REQUEST_STATE_").lower()
    lines = [
        answer.code and f"ended with {answer.message}",
        f"{state}, {shares(rows, duration_ns=answer.age_ns)}",
        longest(rows),
        f"{tokens}, on {answer.worker}" if answer.worker else tokens,
        answer.num_dropped_events and f"{answer.num_dropped_events} events between are not kept",
        of > 1 and f"the slowest of {of} prompts; `signalbox explain` lists the others",
    ]
    return Drawing(
        title=answer.request_id,
        lines=tuple(str(line) for line in lines if line),
        duration_ns=answer.age_ns,
        rows=tuple(rows),
        notes=tuple(_note(phase) for phase in phases),
        is_error=bool(answer.code),
    )


def _event(event: pb.Event) -> Event:
    return Event(
        EventKind[pb.EventKind.Name(event.kind).removeprefix("EVENT_KIND_")],
        event.at_ns / 1e9,
        event.worker,
        event.step_id,
        num_tokens=event.num_tokens,
        num_cached_tokens=event.num_cached_tokens,
        num_blocks=event.num_blocks,
        num_ahead=event.num_ahead,
        is_swap=event.is_swap,
        other_request_id=event.other_request_id,
        detail=event.detail,
        waits=tuple(_waits(event.waits)),
    )


def _waits(waits: Iterable[pb.Wait]) -> Iterable[Wait]:
    for wait in waits:
        name = pb.WaitReason.Name(wait.reason).removeprefix("WAIT_REASON_")
        yield Wait(WaitReason[name], wait.duration_ns / 1e9, wait.num_plans)


def _resumptions(events: Iterable[Event]) -> list[float]:
    """Returns approximate times when tokens continued after a recompute: its last chunk's plan."""
    times: list[float] = []
    last: float | None = None
    is_back = False
    for event in events:
        match event.kind:
            case EventKind.RESUMED:
                is_back = True
            case EventKind.PREFILL if is_back:
                last = event.at + 1e-9  # otherwise the chunk would have no length
            case EventKind.PREEMPTED | EventKind.MOVED | EventKind.ENDED:
                times += [] if last is None else [last]
                last, is_back = None, False
    return times if last is None else [*times, last]


def _segment(phase: Phase) -> Segment:
    text = f"{phase.name}, {_text(phase)}"
    return Segment(int(phase.start * 1e9), int(phase.end * 1e9), phase.name, text)


def _note(phase: Phase) -> Note:
    return Note(int(phase.start * 1e9), phase.name, _text(phase))


def _text(phase: Phase) -> str:
    """Returns a phase's text without token times, which a scheduler does not store."""
    attributes = {} if phase.name == "decode" else phase.attributes
    return ", ".join(filter(None, [seconds((phase.end - phase.start) * 1e9), in_words(attributes)]))
