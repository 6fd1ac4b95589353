"""The largest requests that are legal: no bound refuses them, and no other stream notices them."""

import asyncio
from typing import Any

from signalbox_protos.inference.v1 import inference_pb2 as pb
from tests.hostile.case import VOCAB_SIZE, Answer, Attack, Case, Options, Target

NUM_STREAMS = 1_000
ACCEPTS_SLOWLY = Options(constants=(("signalbox_rpc.limits.call_bounds.MAX_UNREQUESTED_S", 100),))
"""gRPC accepts one call in each turn of the event loop. A turn writes the tokens of all streams, so
that on a loaded machine a thousand calls are not accepted within the usual time."""
TEXT = 'Say "a, b", then {c: [d]}, and {{}}. '
HELLO = [{"role": "user", "content": "Hello"}]


def completion(**fields: Any) -> Attack:
    body = {"prompt": "Hello", "max_tokens": 2, **fields}
    return lambda target: target.post("/v1/completions", body)


def chat(**fields: Any) -> Attack:
    body = {"messages": HELLO, "max_tokens": 2, **fields}
    return lambda target: target.post("/v1/chat/completions", body)


def generate(*, max_tokens: int = 2, **fields: Any) -> pb.GenerateRequest:
    params = pb.SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return pb.GenerateRequest(sampling_params=params, **fields)


async def whole_vocabulary(target: Target) -> list[Answer]:
    request = generate(text="Hello")
    request.sampling_params.allowed_token_ids.extend(range(VOCAB_SIZE))
    over_http = completion(allowed_token_ids=list(range(VOCAB_SIZE)))
    return [
        await target.grpc("Generate", request.SerializeToString()),
        await _one(over_http, target),
    ]


async def longest_prompt(target: Target) -> list[Answer]:
    ids = [number % VOCAB_SIZE for number in range(131_071)]
    request = generate(token_ids=pb.TokenIds(ids=ids)).SerializeToString()
    return [await target.grpc("Generate", request), await _one(completion(prompt=ids), target)]


async def longest_texts(target: Target) -> list[Answer]:
    """Sends texts of 4 MiB over HTTP, and one less long: a gRPC message has other fields too."""
    text = (TEXT * ((4 << 20) // len(TEXT) + 1))[: 4 << 20]
    request = generate(text=text[:-1024], truncate_prompt_tokens=100).SerializeToString()
    over_http = completion(prompt=text, truncate_prompt_tokens=100)
    asked = (_one(over_http, target) for _ in range(2))
    return list(await asyncio.gather(target.grpc("Generate", request), *asked))


async def gateway(target: Target) -> list[Answer]:
    request = generate(text="Hello", max_tokens=20).SerializeToString()
    return list(
        await asyncio.gather(*(target.grpc("Generate", request) for _ in range(NUM_STREAMS)))
    )


async def _one(attack: Attack, target: Target) -> Answer:
    answer = await attack(target)
    assert isinstance(answer, Answer)
    return answer


def tools() -> list[dict[str, Any]]:
    properties = {f"p{number}": {"type": "string", "description": "about"} for number in range(8)}
    parameters = {"type": "object", "properties": properties}
    return [
        {"type": "function", "function": {"name": f"f{number}", "parameters": parameters}}
        for number in range(128)
    ]


def schema() -> dict[str, Any]:
    """Returns a schema of nearly 64 KiB of JSON."""
    described = {"type": "string", "description": "x" * 580}
    return {"type": "object", "properties": {f"property {i}": described for i in range(100)}}


def legal(name: str, attack: Attack, *codes: str, **fields: Any) -> Case:
    return Case(name=name, attack=attack, codes=frozenset(codes), **fields)


CASES = (
    legal("allowed-tokens-of-a-whole-vocabulary", whole_vocabulary, "OK", "200"),
    legal("a-prompt-of-131071-ids", longest_prompt, "OK", "200"),
    legal("texts-of-4-MiB-at-once", longest_texts, "OK", "200"),
    legal("1024-prompts", completion(prompt=["Hello"] * 1024), "200", max_answer_bytes=1 << 20),
    legal("1024-biases", completion(logit_bias={str(token): 1 for token in range(1024)}), "200"),
    legal("128-tools", chat(tools=tools()), "200"),
    legal(
        "a-schema-of-64-KiB",
        chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": schema()},
            }
        ),
        "200",
    ),
    legal("1000-streams-of-one-connection", gateway, "OK", options=ACCEPTS_SLOWLY),
)
