"""What must hold of a case: no other stream notices it, and little is left of it.

`check` asserts counts, codes and bytes, which hold on any machine however busy. `longest_gap_s`
measures, and is for a machine that does nothing else.
"""

import asyncio
import time

from signalbox_protos.inference.v1 import inference_pb2 as pb
from tests.hostile import usage
from tests.hostile.case import Answer, Case, Target
from tests.hostile.stack import HostileStack
from tests.hostile.streams import NUM_STREAMS

MAX_PEAK_BYTES = 1000 * usage.MIB
"""Resident bytes of the router and its children, during an attack."""
MAX_LEFT_BYTES = 50 * usage.MIB
"""Growth of what stays resident after the second and third repeat, over the first."""
NUM_REPEATS = 3
IDLE_S = 3.0
NEXT = pb.GenerateRequest(
    text="The next one", sampling_params=pb.SamplingParams(max_tokens=3, ignore_eos=True)
)


def check(stack: HostileStack, case: Case) -> None:
    """Runs the attack once beside the streams. Raises AssertionError."""
    stack.revive()
    pid = stack.pid
    usage.reset_peak(pid)
    with stack.beside.streaming():
        answers = stack.attack(case.attack)
    peak = usage.peak_bytes(pid)
    assert not (ended := stack.ended()), "\n".join(ended)
    _check_answers(case, answers)
    report = stack.beside.report
    assert not report.wrong, report.wrong[:NUM_STREAMS]
    assert report.num_whole >= NUM_STREAMS
    assert peak < MAX_PEAK_BYTES, f"{peak / usage.MIB:.0f} MiB were resident at the peak"
    assert [one.code for one in stack.attack(_next)] == ["OK", "200"], "the next requests"
    stack.until_free()


def check_memory(stack: HostileStack, case: Case) -> None:
    """Repeats the attack, alone. Raises AssertionError if memory grows by it."""
    stack.revive()
    stack.attack(case.attack)
    bound = usage.settled_bytes(stack.pid) + MAX_LEFT_BYTES
    for number in range(2, NUM_REPEATS + 1):
        stack.attack(case.attack)
        left = usage.bytes_within(stack.pid, bound)
        grown = (left - bound + MAX_LEFT_BYTES) / usage.MIB
        assert left <= bound, f"repeat {number} left {grown:.0f} MiB more than the first"


def longest_gap_s(stack: HostileStack, case: Case | None) -> float:
    """Returns the streams' longest silence beside an attack; beside none for `IDLE_S`."""
    stack.revive()
    with stack.beside.streaming():
        if case is None:
            time.sleep(IDLE_S)
        else:
            stack.attack(case.attack)
    return stack.beside.report.longest_gap_s


def _check_answers(case: Case, answers: list[Answer]) -> None:
    codes = {answer.code for answer in answers}
    assert codes == case.codes, f"{case.name}: answered {sorted(codes)}: {answers[:3]}"
    for answer in answers:
        assert answer.num_bytes <= case.max_answer_bytes, f"{answer.num_bytes} bytes came back"
        is_refusal = answer.code not in ("OK", "200", "CLOSED")
        assert not is_refusal or case.says in answer.message, answer


async def _next(target: Target) -> list[Answer]:
    """A request over each transport, on connections of their own."""
    body = {"prompt": "The next one", "max_tokens": 3}
    return list(
        await asyncio.gather(
            target.grpc("Generate", NEXT.SerializeToString()),
            target.post("/v1/completions", body),
        )
    )
