"""What the scheduler says of a request's history, in words and as spans."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison
from signalbox_rpc.metrics.sample import Sample
from signalbox_rpc.telemetry import tracing
from signalbox_scheduler.audits.finding import AuditEnd, AuditFinding, AuditSource, TokenBits
from signalbox_scheduler.insight.explain import Explanation, History, RequestState
from signalbox_scheduler.insight.history_spans import spans_of
from signalbox_scheduler.insight.history_words import (
    audit_event,
    details_of,
    lines_of,
    summary_of,
)
from signalbox_scheduler.insight.request_spans import write_audit
from signalbox_scheduler.requests.stage_use import NO_STAGES
from signalbox_scheduler.requests.timeline import EventKind, TimelineEvent
from signalbox_scheduler.requests.wait_accounting import Wait, WaitReason
from tests.scheduler_svc.make import make_arrival, make_request

K = EventKind
MOVED = {"num_blocks": 4, "num_bytes": 4000, "seconds": 0.002}
BEGINNING = (
    TimelineEvent(K.QUEUED, 0),
    TimelineEvent(K.SCHEDULED, 1),
    TimelineEvent(K.PREFILL, 1, step_id=1, num_tokens=8),
    TimelineEvent(K.PREFILL, 2, step_id=2, num_tokens=4),
    TimelineEvent(K.FIRST_TOKEN, 3),
)


def make_explanation(**fields: object) -> Explanation:
    given = {
        "request_id": "r",
        "request_number": 1,
        "state": RequestState.RUNNING,
        "worker": "host:8",
        "arrival": 0.0,
        "as_of": 10.0,
        **dict.fromkeys(("num_prompt_tokens", "num_cached_tokens", "num_output_tokens"), 0),
        **dict.fromkeys(("max_tokens", "num_preemptions", "num_dropped_events"), 0),
        **dict.fromkeys(("queued_s", "prefill_s", "decode_s", "preempted_s"), 0.0),
        "num_sequences": 1,
        "events": (),
        "samples": (),
        "stages": NO_STAGES.use(),
    }
    return Explanation(**{**given, **fields})  # type: ignore[arg-type]


def said_of(block_size: int = 0, **fields: object) -> list[str]:
    return list(summary_of(make_explanation(**fields), block_size=block_size))


def spans(*events: TimelineEvent) -> list[tuple[str, float, float]]:
    return [(lane, begin, end) for lane, begin, end, _ in spans_of(events, as_of=10.0)]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"source": "host:7"}, "4 blocks, 4,000 bytes in 0.002 s from host:7"),
        (
            {"store": "shared", "detail": "cancelled"},
            "4 blocks, 4,000 bytes in 0.002 s from the shared store: cancelled",
        ),
        ({"kind": K.STORED, "store": "disk"}, "4 blocks, 4,000 bytes in 0.002 s to the disk"),
    ],
)
def test_blocks_that_came_or_were_stored_are_told_with_bytes_time_and_place(
    fields: dict[str, object], words: str
) -> None:
    event = TimelineEvent(K.FETCHED, 9.0)._replace(**MOVED)._replace(**fields)
    assert details_of(event) == words


def test_waits_are_told_by_their_reasons() -> None:
    waits = (Wait(WaitReason.LOADING, 0.008, 1), Wait(WaitReason.BLOCKS, 0.001, 1))
    reasons = "its prefix to be fetched 0.008 s, KV blocks 0.001 s"
    scheduled = TimelineEvent(K.SCHEDULED, 1, worker="host:8", step_id=3, waits=waits)
    assert details_of(scheduled) == f"by host:8, step 3; waited for {reasons}"
    assert f"It waits behind 2, for {reasons}." in said_of(waits=waits, num_ahead=2)


def test_masks_that_take_long_and_what_has_no_words_are_told() -> None:
    dear = TimelineEvent(K.DEAR_MASKS, 1, step_id=7, seconds=0.01234)
    assert details_of(dear).startswith("the mask of a token takes 12.3 ms: sits steps out")
    assert details_of(dear._replace(seconds=0.0)).startswith("the masks of its payer's requests")
    assert details_of(TimelineEvent(K.POOLED, 1, num_blocks=3, store="new")) == (
        "num blocks 3, store new"
    )
    assert details_of(TimelineEvent(K.FIRST_TOKEN, 1)) == ""


def test_the_summary_has_counts_and_what_parts_have_counted() -> None:
    samples = (
        Sample("counter", "a", "Steps that it sat out.", 41, {}),
        Sample("gauge", "b", "Blocks that a new part has of it.", 1200, {}),
    )
    assert said_of(
        num_prompt_tokens=9, num_cached_tokens=8, num_output_tokens=1, num_preemptions=2,
        num_sequences=3, samples=samples, num_dropped_events=1,
    ) == [
        "Prompt 9 tokens (8 cached), output 1 token in 3 sequences, preempted twice.",
        "Steps that it sat out: 41.",
        "Blocks that a new part has of it: 1,200.",
        "1 event between the first and the last are not kept.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("num_prompt_tokens", "num_cached_tokens", "block_size", "words"),
    [
        (100, 96, 16, "Nothing broke its prefix: all its blocks of 16 before the last token"),
        (96, 80, 16, "Nothing broke its prefix: all its blocks of 16 before the last token"),
        (16, 0, 16, "Its prompt fills no block of 16"),
        (100, 32, 16, "Its prefix broke after 32 tokens. The block with tokens 33 to 48 "),
        (100, 32, 0, "Its prefix broke after 32 tokens. What follows token 32 "),
    ],
)
def test_the_cause_of_a_broken_prefix_is_told_from_a_prompt_cached_as_far_as_can_be(
    num_prompt_tokens: int, num_cached_tokens: int, block_size: int, words: str
) -> None:
    tokens = {"num_prompt_tokens": num_prompt_tokens, "num_cached_tokens": num_cached_tokens}
    assert said_of(block_size, events=BEGINNING, **tokens)[1].startswith(words)
    assert len(said_of(block_size, events=BEGINNING[:1], **tokens)) == 1


@pytest.mark.parametrize(("num_prompt_tokens", "left"), [(97, "1 token"), (112, "16 tokens")])
def test_tokens_behind_the_last_whole_block_are_told_as_computed(
    num_prompt_tokens: int, left: str
) -> None:
    tokens = {"num_prompt_tokens": num_prompt_tokens, "num_cached_tokens": 96}
    assert said_of(16, events=BEGINNING, **tokens)[1].endswith(f"which left {left} to compute.")


def test_a_prefix_of_recurrent_layers_is_told_to_end_at_a_snapshot() -> None:
    """Blocks of what follows may be cached, and are of no use without a state."""
    tokens = {"num_prompt_tokens": 100, "num_cached_tokens": 32}
    known = make_explanation(events=BEGINNING, **tokens)
    _, words = summary_of(known, block_size=16, has_states=True)
    assert words.startswith("Its prefix broke after 32 tokens. No snapshot of the states of its ")
    assert "none left a snapshot there" in words


def test_the_wait_for_a_model_that_was_loaded_first_is_told() -> None:
    for wait_ns, told in ((0, False), (1_234_000_000, True)):
        group = make_arrival([1, 2], arrival=0.0, model_wait_ns=wait_ns)
        said = said_of(samples=tuple(group.samples()))
        words = "Milliseconds that it waited before, until its model was loaded: 1,234."
        assert (words in said) is told


def test_the_chunks_of_a_prefill_are_one_line() -> None:
    at, event, details = list(lines_of(BEGINNING))[2]
    assert (at, event) == (1, "prefill")
    assert details == "12 tokens in 2 chunks, steps 1 to 2"


def test_a_request_waits_computes_its_prompt_in_chunks_and_decodes() -> None:
    beginning = [("queue", 0, 1), ("prefill", 1, 2), ("prefill", 2, 3)]
    assert spans(*BEGINNING, TimelineEvent(K.ENDED, 10)) == [*beginning, ("decode", 3, 10)]
    assert spans(BEGINNING[0]) == [("queue", 0, 10)]
    fetched = TimelineEvent(K.FETCHED, 1, seconds=0.5)
    assert spans(BEGINNING[0], fetched) == [("queue", 0, 10), ("fetched", 0.5, 1)]


def test_what_is_swapped_out_decodes_on_when_it_is_back() -> None:
    preempted = TimelineEvent(K.PREEMPTED, 5, is_swap=True)
    assert spans(*BEGINNING, preempted, TimelineEvent(K.RESUMED, 7, is_swap=True))[3:] == [
        ("decode", 3, 5),
        ("preempted", 5, 7),
        ("decode", 7, 10),
    ]


def test_what_is_recomputed_decodes_behind_the_last_chunk_of_successive_steps() -> None:
    events = (
        TimelineEvent(K.PREEMPTED, 5),
        TimelineEvent(K.QUEUED, 5),
        TimelineEvent(K.RESUMED, 6, step_id=9),
        TimelineEvent(K.PREFILL, 6, step_id=9),
        TimelineEvent(K.PREFILL, 7, step_id=10),
        TimelineEvent(K.PREFILL, 9, step_id=20),
    )
    assert spans(*BEGINNING, *events)[4:] == [
        ("preempted", 5, 6),
        ("prefill", 6, 7),
        ("prefill", 7, 7),
        ("decode", 7, 9),
        ("prefill", 9, 9),
        ("decode", 9, 10),
    ]


def test_a_request_whose_worker_is_lost_waits_in_the_queue_until_another_one_takes_it() -> None:
    events = (
        TimelineEvent(K.MOVED, 5, worker="host:8", detail="lost"),
        TimelineEvent(K.QUEUED, 5),
        TimelineEvent(K.RESUMED, 8),
    )
    assert spans(*BEGINNING, *events)[3:] == [
        ("decode", 3, 5),
        ("moved", 5, 5),
        ("queue", 5, 8),
        ("prefill", 8, 10),
    ]


AUDITED = TimelineEvent(K.AUDITED, 9.0, "host:2", num_tokens=12, seconds=0.25)


def test_an_audit_is_told_with_what_differs() -> None:
    assert details_of(AUDITED) == "12 tokens computed again by host:2 in 0.250 s: all equal"
    wrong = AUDITED._replace(detail="output token 3 differs")
    assert details_of(wrong).endswith("in 0.250 s: output token 3 differs")


def test_an_audit_stands_behind_the_end_of_its_request() -> None:
    history = History(1)
    group, forgotten = (make_request([1], request_id=name) for name in "ab")
    history.keep(forgotten, 4.0)
    history.keep(group, 5.0)
    for one in (group, forgotten):
        history.add_audit(one, AUDITED)
    known = history.find(group.request_id)
    assert known is not None
    assert [event.kind for event in known.events] == [K.ENDED, K.AUDITED]


@pytest.mark.parametrize("detail", ["", "output token 3 differs"])
def test_an_audit_is_a_span_in_the_trace_of_its_request(
    detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "get_tracer", lambda: provider.get_tracer("test"))
    for traceparent in ("", f"00-{'ab' * 16}-{'cd' * 8}-01"):
        group = make_arrival([1], traceparent=traceparent)
        write_audit(group, AUDITED._replace(detail=detail))
    (span,) = exporter.get_finished_spans()
    assert span.parent is not None and span.context is not None
    assert (span.parent.trace_id, span.parent.span_id) == (int("ab" * 16, 16), int("cd" * 8, 16))
    assert span.end_time - span.start_time == pytest.approx(0.25e9, rel=1e-6)
    assert (span.status.status_code is StatusCode.ERROR) is bool(detail)


@pytest.mark.parametrize(("n", "where"), [(1, ""), (2, "sequence 1, ")])
@pytest.mark.parametrize(("token_id", "what"), [(5, "logit"), (6, "token")])
def test_the_event_of_an_audit_says_what_differs(
    n: int, where: str, token_id: int, what: str
) -> None:
    finding = AuditFinding(
        request_id="r",
        branch=1,
        position=3,
        answered=TokenBits(5, 0),
        audited=TokenBits(token_id, 1),
        answered_by=("host:8",),
        audited_by="host:9",
        source=AuditSource.STORE,
        suspect="disk",
        history="",
        at=9.0,
    )
    event = audit_event(AuditEnd(make_request([1], n=n), "host:9", 4, 0.5, 9.0, finding))
    words = f"another {what} at {where}output position 3; suspected source: store disk"
    assert event == TimelineEvent(K.AUDITED, 9.0, "host:9", num_tokens=4, seconds=0.5, detail=words)
    equal = audit_event(AuditEnd(make_request([1]), "host:9", 4, 0.5, 9.0, None))
    assert equal == event._replace(detail="")


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        (
            PrefixComparison(PrefixCause.SYSTEM_CHANGED, 96, 24_480, "system"),
            "It begins with 96 tokens of an earlier request of its client, and loses 24480 tokens"
            " behind them: the system prompt has changed (system).",
        ),
        (
            PrefixComparison(PrefixCause.TURNS_DROPPED, 1, 2, is_elsewhere=True),
            "It begins with 1 token of an earlier request of its client, which another scheduler"
            " computed, and loses 2 tokens behind them: the oldest turns were left out to fit the"
            " window.",
        ),
        (
            PrefixComparison(PrefixCause.UNCHANGED, 64),
            "It begins with 64 tokens of an earlier request of its client, counted in whole blocks:"
            " nothing has changed there.",
        ),
        (
            PrefixComparison(PrefixCause.NOT_FOUND),
            "Its router does not know the request that the client compares it with.",
        ),
    ],
)
def test_what_a_router_has_compared_is_told(prefix: PrefixComparison, words: str) -> None:
    assert said_of(prefix=prefix)[-1] == words


def test_each_cause_has_words() -> None:
    for cause in PrefixCause:
        assert "_" not in said_of(prefix=PrefixComparison(cause))[-1]
