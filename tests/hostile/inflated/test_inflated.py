"""Any field of the public API long, deep, wide, repeated, slow or unfinished: what it costs.

CPU seconds and peak memory of the router are bounded by the bytes that a request and its answer
have. FUZZ_REQUESTS is the number of requests, as in tests/integration/fuzzing/test_any_request.py.
`make test-alone` sends every shape of every field.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from smg_grpc_proto import vllm_engine_pb2

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference.servicer import SERVICE_NAME
from tests.hostile import usage
from tests.hostile.case import Answer, Options, Target
from tests.hostile.inflated.inflated_bodies import inflated_bodies
from tests.hostile.inflated.inflated_fields import Inflated, chosen
from tests.hostile.inflated.inflated_heads import inflated_heads
from tests.hostile.inflated.inflated_messages import inflated_messages
from tests.hostile.sending import send
from tests.hostile.stack import HostileStack
from tests.integration.fuzzing.bad_values import make_chat, make_rich
from tests.router.apis.openai.clients import BODIES

NUM_REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "1500")) // 50
"""For each service and each path."""
NUM_BYTES = 256 << 10
HONEST_CPU_S = 0.2
"""CPU seconds of the router for each MiB of the dearest honest request; texts, prompts of ids,
/tokenize and /detokenize of a MiB took 0.05 to 0.2."""
MARGIN = 4
"""Times the honest CPU time that any request may take, on a busy or a slower machine."""
FREE_CPU_S = 0.4
"""What any request may take: the start of a process that long texts have, which reads a tokenizer
of 256,000 tokens in 0.3 s, some ticks of the clock (10 ms), a generation."""
PEAK_PER_BYTE = 160
"""Bytes of memory for each byte of the dearest honest request: a text whose tokens are bytes, of
which the tokenizer keeps about 150 bytes each."""
FREE_BYTES = 16 * usage.MIB
MAX_REFUSAL_BYTES = 4 << 10
"""A refusal does not repeat what was sent."""
FAULTS_SHOWN = 20
BATCH = 200
"""Requests that are sent on one connection."""
FAULT_CODES = {"500", "INTERNAL", "UNKNOWN", "HUNG"}
"""Of a bug, or of an answer that does not come."""
BASES: dict[str, Message] = {
    "Generate": make_rich(),
    "Chat": make_chat(),
    "Tokenize": pb.TokenizeRequest(text="Hello"),
    "Detokenize": pb.DetokenizeRequest(token_ids=[72, 105]),
    "Embed": pb.EmbedRequest(inputs=[pb.PoolingInput(text="Hello")]),
}
HELLO = [{"role": "user", "content": "Hello"}]
RANKED = {"query": "Hello", "documents": ["Hello"]}
HTTP_BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hello", "max_tokens": 1},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 1},
    "/v1/responses": {"input": HELLO, "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": HELLO},
    "/v1/messages": {"messages": HELLO, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [72, 105]},
    "/v1/load_lora_adapter": {"lora_name": "sql", "lora_path": "sql"},
    "/v1/unload_lora_adapter": {"lora_name": "sql"},
    **{path: {"input": ["Hello"]} for path in ("/v1/embeddings", "/pooling", "/classify")},
    "/v1/embed": {"texts": ["Hello"], "truncate": "END"},
    "/v2/embed": {"texts": ["Hello"], "input_type": "search_query", "embedding_types": ["float"]},
    **{path: {"text_1": "Hello", "text_2": ["Hello"]} for path in ("/v1/score", "/score")},
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), RANKED),
}
DETOKENIZE = f"/{SERVICE_NAME}/Detokenize"
WARM_UP: tuple[tuple[str, object], ...] = (
    ("/tokenize", {"prompt": "a" * (128 << 10)}),
    ("/v1/chat/completions", HTTP_BASES["/v1/chat/completions"] | {"chat_template": "{{ 1 }}"}),
)
PRODUCTS = "64 prompts"
MANY_PROMPTS = {"prompt": ["Hello"] * 64, "max_tokens": 1}
"""What is done for each prompt is done 64 times. It costs 0.05 s by itself."""
SERVICES: dict[str, ServiceDescriptor] = {
    service.full_name: service
    for file in (pb, vllm_engine_pb2, health_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
}
HEADS = "heads"
HEAD_BYTES = 24 << 10
"""Within what a head may have, so that it is read."""
WHATS = (*SERVICES, *BODIES, PRODUCTS, HEADS)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request took of the router."""

    answer: Answer
    num_bytes: int
    """Of the request and of its answer."""
    cpu_s: float
    peak_bytes: int
    """Of the router above what was resident before; other processes have limits of their own."""

    def faults(self) -> Iterator[str]:
        """Yields what is more than the bytes allow."""
        mib = self.num_bytes / usage.MIB
        if self.cpu_s > (most_s := FREE_CPU_S + MARGIN * HONEST_CPU_S * mib):
            yield f"{self.cpu_s:.2f} s of CPU time for {mib:.2f} MiB, over {most_s:.2f}"
        if self.peak_bytes > (most := FREE_BYTES + PEAK_PER_BYTE * self.num_bytes):
            peak = f"{self.peak_bytes / usage.MIB:.0f} MiB of memory"
            yield f"{peak} for {mib:.2f} MiB, over {most / usage.MIB:.0f}"
        is_refusal = self.answer.code not in ("OK", "200", "SAID")
        if is_refusal and self.answer.num_bytes > MAX_REFUSAL_BYTES:
            yield f"a refusal of {self.answer.num_bytes} bytes"
        is_cut_off = self.answer.code == "CLOSED" and bool(self.answer.message)
        if self.answer.code in FAULT_CODES or is_cut_off:
            yield f"{self.answer.code}: {self.answer.message[:200]}"


def requests_of(what: str) -> list[Inflated]:
    """Returns every shape of every field of a gRPC service, a path, `HEADS` or `PRODUCTS`."""
    if what in SERVICES:
        bases = BASES if what.startswith("signalbox") else {}
        return list(inflated_messages(SERVICES[what], bases))
    if what == HEADS:
        return list(inflated_heads())
    if what == PRODUCTS:
        path = "/v1/completions"
        several = inflated_bodies(path, BODIES[path], MANY_PROMPTS)
        return [one for one in several if one.shape in ("wide", "repeated")]
    return list(inflated_bodies(what, BODIES[what], HTTP_BASES[what]))


async def measured(target: Target, one: Inflated, num_bytes: int) -> Cost:
    pid = target.router_pid
    usage.reset_peak(pid)
    resident, cpu_s = usage.resident_bytes(pid, alone=True), usage.cpu_seconds(pid)
    answer, sent = await send(target, one, num_bytes)
    cpu_s, peak = usage.cpu_seconds(pid) - cpu_s, usage.peak_bytes(pid, alone=True) - resident
    return Cost(answer, sent + answer.num_bytes, cpu_s, peak)


def faults_of(stack: HostileStack, cases: list[Inflated], *, num_bytes: int) -> list[str]:
    """Sends the cases one after the other; returns a line for each that costs too much."""
    faults: list[str] = []

    async def send_all(target: Target) -> Answer:
        for path, body in WARM_UP:  # starts the processes that long texts and templates have
            assert (await target.post(path, body)).code == "200"
        for one in cases:
            most = HEAD_BYTES if one.is_whole else num_bytes
            if found := list((await measured(target, one, most)).faults()):
                # Once it may have cost the start of a process, on a machine that others load.
                found = list((await measured(target, one, most)).faults())
            faults.extend(f"{one.name}: {fault}" for fault in found)
        return Answer("OK")

    stack.revive()
    stack.attack(send_all)
    assert not (ended := stack.ended()), ended
    stack.until_free()
    return faults


@pytest.mark.parametrize("what", WHATS)
def test_a_request_costs_what_its_bytes_do(
    what: str, stack_of: Callable[[Options], HostileStack]
) -> None:
    cases = requests_of(what)
    share = NUM_REQUESTS // 8 if what.startswith("vllm") else NUM_REQUESTS
    faults = faults_of(stack_of(Options()), chosen(cases, share), num_bytes=NUM_BYTES)
    assert not faults, "\n".join(faults[:FAULTS_SHOWN])


def test_an_honest_request_costs_less(stack_of: Callable[[Options], HostileStack]) -> None:
    words = 'Pack my box with five dozen liquor jugs, "said" {he}. '
    ids = {"tokens": [number % 500 for number in range(600_000)]}
    detokenize = pb.DetokenizeRequest(token_ids=ids["tokens"]).SerializeToString()
    honest = [
        Inflated(
            "/tokenize", "honest", "long", "text", _of({"prompt": words * 600}), is_grpc=False
        ),
        Inflated("/detokenize", "honest", "long", "ids", _of(ids), is_grpc=False),
        Inflated(DETOKENIZE, "honest", "long", "ids", lambda _: detokenize, is_grpc=True),
    ]
    assert faults_of(stack_of(Options()), honest, num_bytes=NUM_BYTES) == []


def _of(body: object) -> Callable[[int], bytes]:
    return lambda _size: json.dumps(body).encode()


@pytest.mark.alone
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_bytes", [NUM_BYTES, 4 << 20])
@pytest.mark.parametrize("what", WHATS)
def test_every_request_costs_what_its_bytes_do(
    what: str, num_bytes: int, stack_of: Callable[[Options], HostileStack]
) -> None:
    cases = requests_of(what)
    if num_bytes > NUM_BYTES:
        cases = chosen(cases, NUM_REQUESTS)
    faults = [
        fault
        for start in range(0, len(cases), BATCH)
        for fault in faults_of(
            stack_of(Options()), cases[start : start + BATCH], num_bytes=num_bytes
        )
    ]
    assert not faults, "\n".join(faults[:FAULTS_SHOWN])
