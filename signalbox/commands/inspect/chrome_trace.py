"""Turns spans into Chrome's trace events, which ui.perfetto.dev and chrome://tracing open.

Each service and each worker is a process. A request is a thread in the processes of its router and
scheduler, the steps of a worker are one, and so is each pipeline stage. Events of a thread have to
nest, or Perfetto drops them: a span that overlaps another goes to a second thread of that name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from signalbox.commands.inspect.span_file import KIND_CLIENT, NotATrace, SpanRecord

REQUEST_ID = "gen_ai.response.id"
STEP = "ExecuteModel"
_ADDRESS = "server.address"

Event = dict[str, Any]


def chrome_trace(spans: Sequence[SpanRecord]) -> dict[str, Any]:
    """Returns the file's content; times are whole microseconds since the first span."""
    return {"displayTimeUnit": "ms", "traceEvents": _Events(spans).sorted_by_time()}


def spans_of_request(spans: Sequence[SpanRecord], name: str) -> list[SpanRecord]:
    """Returns the spans of requests, with the steps that they asked for.

    Args:
        name: id of a request; else a part of it, since gateways and the HTTP API lengthen a
            client's own; else its trace id.

    Raises NotATrace if there is none.
    """
    requests = [span for span in spans if REQUEST_ID in span.attributes]
    ids = {str(span.attributes[REQUEST_ID]) for span in requests}
    wanted = {name} & ids or {one for one in ids if name and name in one}
    chosen = {
        span.span_id
        for span in requests
        if str(span.attributes[REQUEST_ID]) in wanted or span.trace_id == name
    }
    if not chosen:
        raise NotATrace(f"no span of request {name!r}; there are {_some(sorted(ids))}")
    below: dict[str, list[str]] = {}
    for span in spans:
        asking = [link.span_id for link in span.links] if _is_sent_step(span) else []
        for parent_id in (span.parent_id, *asking):
            below.setdefault(parent_id, []).append(span.span_id)
    to_visit = list(chosen)
    while to_visit:
        found = [one for one in below.get(to_visit.pop(), ()) if one not in chosen]
        chosen.update(found)
        to_visit += found
    return [span for span in spans if span.span_id in chosen]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(names[:5]) or "none") + more


def _is_sent_step(span: SpanRecord) -> bool:
    """Returns whether it is a step as the scheduler sees it; its links lead to requests."""
    return span.name == STEP and span.kind == KIND_CLIENT


class _Track(NamedTuple):
    """Names of a process and of a thread."""

    process: str
    thread: str


@dataclass(slots=True, eq=False)
class _Thread:
    """A thread, with the spans that are open at the time that the caller has reached."""

    pid: int
    tid: int
    open: list[SpanRecord] = field(default_factory=list)

    def close(self, now_ns: int) -> None:
        while self.open and self.open[-1].end_ns <= now_ns:
            self.open.pop()


class _Events:
    """The events of some spans, made in the order of time."""

    def __init__(self, spans: Sequence[SpanRecord]) -> None:
        self._spans = {span.span_id: span for span in spans}
        self._start_ns = min((span.start_ns for span in spans), default=0)
        self._numbers = count(1)
        self._tracks: dict[str, _Track] = {}
        self._pids: dict[str, int] = {}
        self._threads: dict[_Track, list[_Thread]] = {}
        self._thread_of: dict[str, _Thread] = {}
        self._events: list[Event] = []
        ordered = sorted(spans, key=self._by_time)
        for span in ordered:
            thread = self._thread_of[span.span_id] = self._free_thread(span)
            thread.open.append(span)
        for span in ordered:  # an arrow binds to the last span of its thread before it in the file
            self._events += [*self._of_span(span), *self._arrows(span)]

    def sorted_by_time(self) -> list[Event]:
        """Returns the events; those of one time stay in order, the outer span first."""
        return sorted(self._events, key=lambda event: int(event["ts"]))

    def _by_time(self, span: SpanRecord) -> tuple[int, int, int]:
        """Orders spans by start; of those with one start, the outer one is first."""
        return span.start_ns, -span.end_ns, len(list(self._above(span)))

    def _above(self, span: SpanRecord) -> Iterator[SpanRecord]:
        """Yields the parent, its parent and so on."""
        seen = {span.span_id}
        while (parent := self._spans.get(span.parent_id)) and parent.span_id not in seen:
            seen.add(parent.span_id)
            yield parent
            span = parent

    def _of_span(self, span: SpanRecord) -> Iterator[Event]:
        thread, start = self._thread_of[span.span_id], self._us(span.start_ns)
        event = self._event(thread, "X", start, name=span.name, cat=span.service)
        event |= {"dur": self._us(span.end_ns) - start, "args": _args(span)}
        if span.error:  # Perfetto colours by name, chrome://tracing by cname
            event |= {"name": f"ERROR {span.name}", "cat": "error", "cname": "terrible"}
        yield event
        for one in span.events:
            instant = self._event(thread, "i", self._us(one.at_ns), name=one.name, s="t")
            yield instant | {"args": dict(one.attributes)}

    def _free_thread(self, span: SpanRecord) -> _Thread:
        """Returns the parent's thread if the span nests there; else one where no span is open."""
        track = self._track(span)
        threads = self._threads.setdefault(track, [])
        for thread in threads:
            thread.close(span.start_ns)
        home = self._thread_of.get(span.parent_id)
        if home in threads and home.open and home.open[-1].end_ns >= span.end_ns:
            return home
        free = next((thread for thread in threads if not thread.open), None)
        return free or self._new_thread(track, threads)

    def _new_thread(self, track: _Track, threads: list[_Thread]) -> _Thread:
        if track.process not in self._pids:
            pid = self._pids[track.process] = next(self._numbers)
            self._name("process", pid, pid, track.process)
        pid = self._pids[track.process]
        thread = _Thread(pid, next(self._numbers))  # Perfetto knows threads by tid alone
        threads.append(thread)
        number = f" ({len(threads)})" if len(threads) > 1 else ""
        self._name("thread", pid, thread.tid, f"{track.thread}{number}")
        return thread

    def _name(self, kind: str, pid: int, tid: int, name: str) -> None:
        """Names a process or thread, and lets it stand behind those that began before."""
        for what, value in (("name", name), ("sort_index", tid)):
            event = self._event(_Thread(pid, tid), "M", 0, name=f"{kind}_{what}")
            self._events.append(event | {"args": {what: value}})

    def _track(self, span: SpanRecord) -> _Track:
        """Returns the names of process and thread; a span without its own has its parent's."""
        if span.span_id not in self._tracks:
            self._tracks[span.span_id] = _Track(span.service, f"trace {span.trace_id}")
            parent = self._spans.get(span.parent_id)
            above = self._track(parent) if parent else None
            self._tracks[span.span_id] = self._own_track(span, parent, above)
        return self._tracks[span.span_id]

    def _own_track(
        self, span: SpanRecord, parent: SpanRecord | None, above: _Track | None
    ) -> _Track:
        attributes = span.attributes
        if _is_sent_step(span):
            return _Track(span.service, f"steps of {attributes.get(_ADDRESS, 'a worker')}")
        if span.name == STEP:
            address = parent.attributes.get(_ADDRESS, "") if parent else ""
            return _Track(f"{span.service} {address}".strip(), "steps")
        if span.name == "stage" and above:
            host = attributes.get("host.name", "")
            number = attributes.get("signalbox.stage", "")
            return above._replace(thread=f"stage {number}{host and f' on {host}'}")
        if REQUEST_ID in attributes:
            return _Track(span.service, f"request {attributes[REQUEST_ID]}")
        if above and parent and parent.service == span.service:
            return above
        return self._tracks[span.span_id]

    def _arrows(self, span: SpanRecord) -> Iterator[Event]:
        """Yields an arrow from the parent, or from each request that asked for a step."""
        sources = {span.parent_id: span.name}
        if _is_sent_step(span) and span.links:
            sources = {
                link.span_id: str(link.attributes.get("signalbox.why", span.name))
                for link in span.links
            }
        there = self._thread_of[span.span_id]
        for span_id, name in sources.items():
            here = self._thread_of.get(span_id)
            if here is None or here is there:
                continue
            leaves = self._within(self._spans[span_id], self._us(span.start_ns))
            ends = self._within(span, leaves)
            if leaves <= ends:
                same = {"id": next(self._numbers), "name": name, "cat": "arrow"}
                yield self._event(here, "s", leaves, **same)
                yield self._event(there, "f", ends, bp="e", **same)

    def _within(self, span: SpanRecord, at: int) -> int:
        """Returns the time of a span closest to another: clocks of hosts differ."""
        return min(max(at, self._us(span.start_ns)), self._us(span.end_ns))

    def _event(self, thread: _Thread, phase: str, at: int, **fields: Any) -> Event:
        return {"ph": phase, "ts": at, "pid": thread.pid, "tid": thread.tid, **fields}

    def _us(self, ns: int) -> int:
        """Returns whole microseconds: what nests in nanoseconds also does so rounded down."""
        return max(0, ns - self._start_ns) // 1000


def _args(span: SpanRecord) -> dict[str, Any]:
    """Returns what is shown of a span that is selected."""
    error = {"error": span.error} if span.error else {}
    return {**error, **span.attributes, "trace_id": span.trace_id}
