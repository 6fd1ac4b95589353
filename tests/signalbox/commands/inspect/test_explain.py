"""What `signalbox explain` shows of a scheduler's answer."""

import io

from rich.console import Console

from signalbox.commands.inspect.explain import render
from signalbox_protos.scheduler.v1 import explain_pb2 as pb

MS = 1_000_000


def text_of(answer: pb.ExplainResponse) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        console.print(render(answer))
    return captured.get()


def test_the_words_of_the_scheduler_are_shown_with_a_bar_for_each_lane() -> None:
    answer = pb.ExplainResponse(request_id="r", state=pb.REQUEST_STATE_ENDED, age_ns=40 * MS)
    answer.text.summary.append("Prompt 9 tokens [all of them].")
    answer.text.lines.add(at_ns=9 * MS, event="fetched", details="4 blocks from host:7")
    for lane, begin, end in (("new", 0, 40), ("decode", 20, 30), ("decode", 30, 40)):
        answer.text.spans.add(lane=lane, begins_at_ns=begin * MS, ends_at_ns=end * MS)
    lines = [" ".join(line.split()) for line in text_of(answer).splitlines()]
    assert lines[:2] == ["r ended after 0.040 s", "Prompt 9 tokens [all of them]."]
    assert f"decode {'█' * 18} 0.020 s" in lines
    assert f"new {'█' * 36} 0.040 s" in lines
    assert "0.009 s fetched 4 blocks from host:7" in lines


def test_the_role_of_its_worker_is_named_if_that_has_one() -> None:
    answer = pb.ExplainResponse(state=pb.REQUEST_STATE_RUNNING, worker="host:7", role="decode")
    assert "on host:7 (decode)" in text_of(answer)
    answer.role = ""
    assert "(" not in text_of(answer).splitlines()[0]
