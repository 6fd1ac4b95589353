"""What `signalbox explain` shows of a scheduler's answer."""

import io

from rich.console import Console

from signalbox.commands.inspect.explain import render
from signalbox_protos.scheduler.v1 import explain_pb2 as pb
from signalbox_protos.scheduler.v1 import sample_pb2

MS = 1_000_000


def text_of(answer: pb.ExplainResponse) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        console.print(render(answer))
    return captured.get()


def moved(kind: pb.EventKind, **fields: object) -> pb.Event:
    event = pb.Event(kind=kind, at_ns=9 * MS, num_blocks=4, num_bytes=4000, duration_ns=2 * MS)
    event.MergeFrom(pb.Event(**fields))  # type: ignore[arg-type]
    return event


def test_blocks_that_came_or_were_stored_are_told_with_bytes_time_and_place() -> None:
    loading = pb.Wait(reason=pb.WAIT_REASON_LOADING, duration_ns=8 * MS)
    text = text_of(
        pb.ExplainResponse(
            state=pb.REQUEST_STATE_RUNNING,
            age_ns=20 * MS,
            events=[
                moved(pb.EVENT_KIND_FETCHED, source="host:7"),
                moved(pb.EVENT_KIND_FETCHED, store="shared", detail="cancelled"),
                pb.Event(kind=pb.EVENT_KIND_SCHEDULED, worker="host:8", waits=[loading]),
                moved(pb.EVENT_KIND_STORED, store="disk"),
                pb.Event(kind=pb.EVENT_KIND_PREFILL, num_tokens=1, step_id=7),
            ],
        )
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "0.009 s fetched 4 blocks, 4,000 bytes in 0.002 s from host:7" in lines
    assert (
        "0.009 s fetched 4 blocks, 4,000 bytes in 0.002 s from the shared store: cancelled" in lines
    )
    assert "0.009 s stored 4 blocks, 4,000 bytes in 0.002 s to the disk" in lines
    assert "waited for its prefix to be fetched 0.008 s" in text
    assert "0.000 s prefill 1 token, step 7" in lines


def test_the_role_of_its_worker_is_named_if_that_has_one() -> None:
    answer = pb.ExplainResponse(state=pb.REQUEST_STATE_RUNNING, worker="host:7", role="decode")
    assert "on host:7 (decode)" in text_of(answer)
    answer.role = ""
    assert "(" not in text_of(answer).splitlines()[0]


def test_a_request_says_what_its_masks_take_and_what_parts_have_counted_of_it() -> None:
    kind = pb.EVENT_KIND_DEAR_MASKS
    answer = pb.ExplainResponse(
        samples=[
            sample_pb2.Sample(meaning="Steps that it sat out.", counter=41),
            sample_pb2.Sample(meaning="Blocks that a new part has of it.", gauge=1200),
        ],
        events=[
            pb.Event(kind=kind, step_id=7, duration_ns=12_340_000),
            pb.Event(kind=kind, step_id=8),
            pb.Event(kind=pb.EVENT_KIND_POOLED, num_blocks=3, store="new"),  # has no words yet
        ],
    )
    text = text_of(answer)
    assert "\nSteps that it sat out: 41\nBlocks that a new part has of it: 1,200\n" in text
    assert "the mask of a token takes 12.3 ms: sits steps out while others run, step 7" in text
    assert "the masks of its payer's requests take long: sits steps out" in text
    assert "num blocks 3, store new" in text


def test_a_request_that_loads_says_what_it_waits_for() -> None:
    wait = pb.Wait(reason=pb.WAIT_REASON_LOADING, duration_ns=8 * MS)
    answer = pb.ExplainResponse(state=pb.REQUEST_STATE_LOADING, age_ns=9 * MS, waits=[wait])
    text = text_of(answer)
    assert "loading" in text
    assert "its prefix to be fetched 0.008 s" in text
