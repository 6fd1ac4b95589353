"""The harness sees what it is for: it fails where a case is not as it should be."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.hostile import usage
from tests.hostile.case import Answer, Case, Options, Target
from tests.hostile.judge import check, longest_gap_s
from tests.hostile.launch import replace as replace_constant
from tests.hostile.stack import HostileStack
from tests.integration.fuzzing.bad_values import make_request

pytestmark = pytest.mark.xdist_group("hostile")  # the stacks

STOPPED_S = 1.0
HELD_BYTES = 64 * usage.MIB


async def honest(target: Target) -> list[Answer]:
    request = make_request().SerializeToString()
    body = {"prompt": "Hello", "max_tokens": 3}
    return [await target.grpc("Generate", request), await target.post("/v1/completions", body)]


async def freeze(target: Target) -> list[Answer]:
    """What a loop that is blocked looks like from outside."""
    os.kill(target.router_pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)  # noqa: ASYNC251 (nothing else is to happen here)
    os.kill(target.router_pid, signal.SIGCONT)
    return await honest(target)


async def kill(target: Target) -> list[Answer]:
    os.kill(target.router_pid, signal.SIGKILL)
    return []


HONEST = Case(name="honest", attack=honest, codes=frozenset({"OK", "200"}))


def test_an_honest_request_passes(stack_of: Callable[[Options], HostileStack]) -> None:
    check(stack_of(Options()), HONEST)


def test_another_code_fails(stack_of: Callable[[Options], HostileStack]) -> None:
    with pytest.raises(AssertionError, match="answered"):
        check(stack_of(Options()), replace(HONEST, codes=frozenset({"OK", "400"})))


def test_a_long_answer_fails(stack_of: Callable[[Options], HostileStack]) -> None:
    with pytest.raises(AssertionError, match="bytes came back"):
        check(stack_of(Options()), replace(HONEST, max_answer_bytes=10))


def test_a_frozen_router_is_a_gap(stack_of: Callable[[Options], HostileStack]) -> None:
    frozen = replace(HONEST, attack=freeze)
    assert longest_gap_s(stack_of(Options()), frozen) >= STOPPED_S / 2


def test_a_router_that_dies_fails_and_is_started_again(
    stack_of: Callable[[Options], HostileStack],
) -> None:
    stack = stack_of(Options())
    with pytest.raises(AssertionError):
        check(stack, replace(HONEST, attack=kill, codes=frozenset()))
    check(stack, HONEST)


def test_memory_is_counted_at_its_peak_and_as_it_stays() -> None:
    pid = os.getpid()
    usage.reset_peak(pid)
    before, peak_before = usage.resident_bytes(pid), usage.peak_bytes(pid)
    held = bytearray(os.urandom(1)) * HELD_BYTES
    assert usage.resident_bytes(pid) - before > HELD_BYTES * 0.9
    del held
    assert usage.peak_bytes(pid) - peak_before > HELD_BYTES * 0.9
    usage.reset_peak(pid)
    assert usage.peak_bytes(pid) - peak_before < HELD_BYTES * 0.5


def test_cpu_time_is_counted() -> None:
    before, ends = usage.cpu_seconds(os.getpid()), time.process_time() + 0.2
    while time.process_time() < ends:
        pass
    assert usage.cpu_seconds(os.getpid()) - before >= 0.15


def test_a_constant_that_is_gone_is_told() -> None:
    with pytest.raises(SystemExit, match="NOTHING"):
        replace_constant("signalbox_router.apis.openai.bodies.unknown_fields.NOTHING", 1)
