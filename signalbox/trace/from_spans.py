"""Draws a request from its spans: router, phases, and the steps and workers that served it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from signalbox.trace.span_file import KIND_CLIENT, NotATrace, SpanRecord
from signalbox.trace.timeline_drawing import (
    PHASES,
    Drawing,
    Note,
    Row,
    Segment,
    in_words,
    longest,
    phase_rows,
    seconds,
    shares,
)

REQUEST_ID = "gen_ai.response.id"
REQUEST = "scheduler.request"
STEP = "ExecuteModel"
_PARTS = ("swap", "forward", "sample")


def draw_traced(spans: Sequence[SpanRecord], request_id: str | None) -> Drawing:
    """Draws one request of a file, the slowest of those that match. Raises NotATrace."""
    roots = _roots(spans)
    if request_id is not None:
        roots = _chosen(roots, request_id)
    if not roots:
        raise NotATrace("there are spans, but none of a request")
    return _Request(spans, max(roots, key=lambda root: root.duration_ns)).drawing(of=len(roots))


def _roots(spans: Iterable[SpanRecord]) -> list[SpanRecord]:
    """Returns the first span of each request: the router's, or the scheduler's."""
    found: dict[tuple[str, str], SpanRecord] = {}
    for span in spans:
        if REQUEST_ID in span.attributes:
            key = span.trace_id, str(span.attributes[REQUEST_ID])
            if key not in found or span.name != REQUEST:
                found[key] = span
    return list(found.values())


def _chosen(roots: Sequence[SpanRecord], name: str) -> list[SpanRecord]:
    """Returns the last request with that id; else those whose id contains it or whose trace id
    it is.

    Gateways and the HTTP API make an id longer than the client's own.
    """
    exact = [root for root in roots if root.attributes[REQUEST_ID] == name]
    similar = [
        root
        for root in roots
        if name == root.trace_id or (name and name in str(root.attributes[REQUEST_ID]))
    ]
    if not similar:
        raise NotATrace(f"no span of request {name!r}; there are {_some(roots)}")
    return exact[-1:] or similar


def _some(roots: Sequence[SpanRecord]) -> str:
    names = [str(root.attributes[REQUEST_ID]) for root in roots]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(names[:5]) or "none") + more


class _Request:
    """The spans of one request, in its trace and linked from others."""

    def __init__(self, spans: Sequence[SpanRecord], root: SpanRecord) -> None:
        self._root = root
        self._below: dict[str, list[SpanRecord]] = {}
        for span in sorted(spans, key=lambda span: span.start_ns):
            self._below.setdefault(span.parent_id, []).append(span)
        below = self._below.get(root.span_id, [])
        self._requests = [root] if root.name == REQUEST else _named(below, REQUEST)
        own = {request.span_id for request in self._requests}
        self._steps = [
            span
            for span in sorted(spans, key=lambda span: span.start_ns)
            if span.name == STEP
            and span.kind == KIND_CLIENT
            and any(link.span_id in own for link in span.links)
        ]
        self._own = own

    def drawing(self, *, of: int) -> Drawing:
        phases = phase_rows(
            (segment for span in self._phases() for segment in self._chunks(span)), indent=2
        )
        error = self._root.error and f"ended with {self._root.error}"
        others = of > 1 and f"the slowest of {of} requests; --request shows another"
        lines = [
            error,
            shares(phases, duration_ns=self._root.duration_ns),
            longest(phases),
            self._tokens(),
            self._stages_in_words(),
            others,
        ]
        return Drawing(
            title=str(self._root.attributes[REQUEST_ID]),
            lines=tuple(filter(None, map(str, filter(None, lines)))),
            duration_ns=self._root.duration_ns,
            rows=(*self._head(), *phases, *self._fetch_rows(), *self._step_rows()),
            notes=tuple(sorted(self._notes())),
            is_error=bool(error),
        )

    def _tokens(self) -> str:
        attributes = self._root.attributes
        parts = [
            (attributes.get("gen_ai.usage.input_tokens"), "tokens in"),
            (attributes.get("gen_ai.usage.cache_read.input_tokens"), "of them cached"),
            (attributes.get("gen_ai.usage.output_tokens"), "out"),
        ]
        return ", ".join(f"{value} {what}" for value, what in parts if value)

    def _head(self) -> list[Row]:
        below = self._below.get(self._root.span_id, [])
        rows = []
        if self._root.name != REQUEST:
            rows = [Row(self._root.name, (self._segment(self._root, "router"),))]
            for name in ("tokenize", "route"):
                parts = [self._segment(span, "router") for span in _named(below, name)]
                rows += [Row(name, tuple(parts), 1)] if parts else []
        requests = [self._segment(request, "scheduler") for request in self._requests]
        return [*rows, Row("scheduler", tuple(requests), 1)] if requests else rows

    def _phases(self) -> list[SpanRecord]:
        return self._parts(*PHASES)

    def _parts(self, *names: str) -> list[SpanRecord]:
        """Returns the spans right below the request's with one of these names."""
        found = [
            span for request in self._requests for span in self._below.get(request.span_id, [])
        ]
        return _named(found, *names)

    def _fetch_rows(self) -> list[Row]:
        segments = [self._segment(span, "fetch") for span in self._parts("fetch")]
        return [Row("fetch", tuple(segments), 2)] if segments else []

    def _chunks(self, phase: SpanRecord) -> list[Segment]:
        """Returns a prefill's chunks one by one, and any other phase unchanged."""
        starts = [event.at_ns for event in phase.events if event.name == "chunk"]
        if len(starts) < 2:
            return [self._segment(phase, phase.name)]
        edges = [phase.start_ns, *starts[1:], phase.end_ns]
        return [
            Segment(
                self._at(start),
                self._at(end),
                phase.name,
                f"chunk of {phase.name}, {seconds(end - start)}, {in_words(event.attributes)}",
            )
            for (start, end), event in zip(pairwise(edges), phase.events, strict=False)
        ]

    def _step_rows(self) -> list[Row]:
        parts = [self._segment(part, part.name) for part in self._worker_parts()]
        steps = [self._segment(step, "step") for step in self._steps]
        rows = [Row("its steps", tuple(steps), 2)] if steps else []
        if parts:
            rows.append(Row("on the worker", tuple(parts), 3))
        for number, spans in self._stages().items():
            segments = [self._segment(span, "stage") for span in spans]
            rows.append(Row(f"stage {number}", tuple(segments), 4))
        return rows

    def _worker_parts(self) -> list[SpanRecord]:
        workers = [span for step in self._steps for span in self._below.get(step.span_id, [])]
        return [
            part
            for worker in workers
            for part in _named(self._below.get(worker.span_id, []), *_PARTS)
        ]

    def _stages(self) -> dict[int, list[SpanRecord]]:
        """Returns the spans of each pipeline stage in the steps."""
        found: dict[int, list[SpanRecord]] = {}
        for part in self._worker_parts():
            for span in _named(self._below.get(part.span_id, []), "stage"):
                found.setdefault(int(span.attributes.get("signalbox.stage", 0)), []).append(span)
        return dict(sorted(found.items()))

    def _stages_in_words(self) -> str:
        return ", ".join(_stage_in_words(number, spans) for number, spans in self._stages().items())

    def _notes(self) -> Iterable[Note]:
        for phase in self._parts(*PHASES, "fetch"):
            text = ", ".join(filter(None, [seconds(phase.duration_ns), in_words(phase.attributes)]))
            yield Note(self._at(phase.start_ns), phase.name, text)
        for step in self._steps:
            why = [
                str(link.attributes["signalbox.why"])
                for link in step.links
                if link.span_id in self._own and "signalbox.why" in link.attributes
            ]
            text = f"{', '.join(why)}: {seconds(step.duration_ns)}, {in_words(step.attributes)}"
            yield Note(self._at(step.start_ns), "step", text)
        for request in self._requests:
            for event in request.events:
                what = event.name.replace("_", " ")
                yield Note(self._at(event.at_ns), what, in_words(event.attributes))

    def _segment(self, span: SpanRecord, kind: str) -> Segment:
        parts = [span.name, seconds(span.duration_ns), span.error, in_words(span.attributes)]
        text = ", ".join(filter(None, parts))
        return Segment(self._at(span.start_ns), self._at(span.end_ns), kind, text)

    def _at(self, ns: int) -> int:
        return max(0, ns - self._root.start_ns)


def _named(spans: Iterable[SpanRecord], *names: str) -> list[SpanRecord]:
    return [span for span in spans if span.name in names]


def _stage_in_words(number: int, spans: Sequence[SpanRecord]) -> str:
    """Returns the place of a stage, and its time in the steps that have spans."""
    host = spans[0].attributes.get("host.name", "")
    waited_ns = sum(int(span.attributes.get("signalbox.wait_ns", 0)) for span in spans)
    place = f" on {host}" if host else ""
    computed = seconds(sum(span.duration_ns for span in spans))
    return f"stage {number}{place}: {computed} computed, {seconds(waited_ns)} waited"
