"""Receipts in the answers of each API; the scheduler is a fake."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.receipts.receipt_codec import decode, signed_part
from signalbox_router.receipts.receipt_key import check_signature, read_public_key
from tests.router.apis.openai.clients import HI, make_http
from tests.router.fakes import finished, ids_of, request_finished, step
from tests.router.receipts.test_receipt_key import write_key
from tests.router.stack import Outputs, make_stack

DIGEST = "ab" * 32
ASKED = {"receipt": True}


def computed(add: scheduler_pb2.Request, arithmetic: str = DIGEST) -> Outputs:
    """Answers each sequence with "one" in two steps."""
    ends = finished(add.handle, num_sequences=add.num_sequences)
    ends["requests"] = [request_finished(add.handle, arithmetic=arithmetic)]
    (first, *rest) = ids_of("one")
    runs = [(add.handle, index, rest) for index in range(add.num_sequences)]
    yield step(*((handle, index, [first]) for handle, index, _ in runs))
    yield step(*runs, **ends)


def not_computed_alike(add: scheduler_pb2.Request) -> Outputs:
    yield from computed(add, arithmetic="")


async def test_whole_answers_and_last_events_have_the_receipt() -> None:
    async with make_http(computed) as http:
        fields: dict[str, Any] = {"extra_body": ASKED, "seed": 5, "n": 2}
        answers = [
            await http.complete("Hi", **fields),
            await http.chat(**fields),
            (await http.completion_chunks("Hi", **fields))[-1],
            (await http.chat_chunks(**fields))[-1],
            (await http.chat_chunks(**fields, stream_options={"include_usage": True}))[-1],
        ]
        asked = http.stack.scheduler.added
    assert answers[-1].usage is not None
    for answer, request in zip(answers, asked, strict=True):
        receipt = decode(answer.receipt)
        assert receipt.arithmetic == DIGEST
        assert receipt.prompt_token_ids == tuple(request.prompt_token_ids)
        assert receipt.params.sampling.seed == request.sampling_params.seed == 5
        assert [one.token_ids for one in receipt.outputs] == [ids_of("one")] * 2
        assert answer.id in receipt.request_id


async def test_answers_have_none_unless_it_is_asked_for() -> None:
    async with make_http(computed) as http:
        assert not hasattr(await http.complete("Hi"), "receipt")
        assert not hasattr(await http.chat(extra_body={"receipt": False}), "receipt")
        chunks = await http.chat_chunks()
        assert all(chunk.choices and not hasattr(chunk, "receipt") for chunk in chunks)


async def test_responses_have_the_receipt() -> None:
    async with make_http(computed) as http:
        body = {"model": "tiny", "input": "Hi", **ASKED}
        answer = (await http.raw.post("/v1/responses", json=body)).json()
        assert decode(answer["receipt"]).outputs[0].token_ids == ids_of("one")
        stream = (await http.raw.post("/v1/responses", json=body | {"stream": True})).text
        last = json.loads(stream.rpartition("data: ")[2])
        assert decode(last["response"]["receipt"]).outputs[0].token_ids == ids_of("one")


async def test_a_receipt_says_why_there_is_none() -> None:
    async with make_http(not_computed_alike) as http:
        answer: Any = await http.complete("Hi", extra_body=ASKED)
    assert answer.choices[0].text == "one"
    assert "depend on the batch" in answer.receipt["unavailable"]


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [("Hi", {"use_beam_search": True}), ("Hi", {"best_of": 2}), (["Hi", "Ho"], {})],
)
async def test_what_has_no_receipt_is_refused(prompt: Any, fields: dict[str, Any]) -> None:
    async with make_http(computed) as http:
        with pytest.raises(openai.BadRequestError, match="receipt"):
            await http.complete(prompt, extra_body=ASKED | fields)


async def test_messages_of_grpc_have_the_receipt_at_the_end() -> None:
    async with make_stack(computed) as stack:
        *others, last = await stack.generate(receipt=True)
        assert not any(one.receipt for one in others)
        assert decode(json.loads(last.receipt)).outputs[0].token_ids == ids_of("one")
        chat = pb.ChatRequest(
            messages=[pb.ChatMessage(role=pb.CHAT_ROLE_USER, content=[pb.ContentPart(text="Hi")])],
            receipt=True,
        )
        answers = [one async for one in stack.client.Chat(chat)]
        assert decode(json.loads(answers[-1].receipt)).arithmetic == DIGEST


async def test_a_router_with_a_key_signs(tmp_path: Path) -> None:
    key = write_key(tmp_path / "key")
    async with make_http(computed, receipt_key=str(key)) as http:
        answer: Any = await http.chat(HI, extra_body=ASKED)
    public = read_public_key(str(key.with_suffix(".pub")))
    receipt = answer.receipt
    assert check_signature(receipt["signature"], signed_part(receipt), public_key=public)
