"""Texts that are long to tokenise, and tokens that are many to decode."""

import asyncio

from signalbox_protos.inference.v1 import inference_pb2 as pb
from tests.hostile.case import Answer, Case, Target

NUM_TEXTS = 2
TEXT_BYTES = 3_800_000
"""Of one letter: a second to tokenise, and 600 MB."""
NUM_TOKENS = 2_000_000
SPACES_ID = 32


async def long_texts(target: Target) -> list[Answer]:
    """At once, each over both transports."""
    text = "a" * TEXT_BYTES
    params = pb.SamplingParams(max_tokens=1)
    request = pb.GenerateRequest(text=text, truncate_prompt_tokens=5, sampling_params=params)
    data = request.SerializeToString()
    body = {"prompt": text, "truncate_prompt_tokens": 5, "max_tokens": 1}
    asked = [target.grpc("Generate", data) for _ in range(NUM_TEXTS)]
    asked += [target.post("/v1/completions", body) for _ in range(NUM_TEXTS)]
    return list(await asyncio.gather(*asked))


async def texts_nobody_waits_for(target: Target) -> list[Answer]:
    """Clients that leave while their texts are tokenised."""
    text = "a" * TEXT_BYTES
    params = pb.SamplingParams(max_tokens=1)
    request = pb.GenerateRequest(text=text, truncate_prompt_tokens=5, sampling_params=params)
    data = request.SerializeToString()
    for _ in range(NUM_TEXTS * 3):
        leaving = asyncio.create_task(target.grpc("Generate", data))
        await asyncio.wait({leaving}, timeout=0.5)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    return [await target.grpc("Generate", data)]


async def many_tokens(target: Target) -> list[Answer]:
    """Decodes many, three times at once over both transports."""
    ids = [SPACES_ID] * NUM_TOKENS
    data = pb.DetokenizeRequest(token_ids=ids).SerializeToString()
    asked = [target.grpc("Detokenize", data) for _ in range(3)]
    body = {"tokens": ids}
    asked += [target.post("/detokenize", body) for _ in range(3)]
    return list(await asyncio.gather(*asked))


CASES = (
    Case(
        name="long-texts-of-one-letter",
        attack=long_texts,
        codes=frozenset({"OK", "200"}),
        unbounded={"signalbox_router.prompt.tokenization.tokenizer.LONG_TEXT_CHARS": 1 << 40},
    ),
    Case(
        name="long-texts-whose-clients-leave",
        attack=texts_nobody_waits_for,
        codes=frozenset({"OK"}),
        unbounded={"signalbox_router.prompt.tokenization.tokenizer.LONG_TEXT_CHARS": 1 << 40},
    ),
    Case(
        name="two-million-tokens-to-decode",
        attack=many_tokens,
        codes=frozenset({"OK", "200"}),
        max_answer_bytes=16 << 20,
    ),
)
