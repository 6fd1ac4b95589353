"""Tokenize and Detokenize of more than is taken at a time."""

import asyncio
import json
from typing import Any

import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.limits import list_pieces
from signalbox_router.prompt.tokenization import long_texts
from signalbox_router.prompt.tokenization.tokenizer import LONG_DECODE_TOKENS, LONG_TEXT_CHARS
from tests.grpc_errors import code_of
from tests.router.apis.openai.clients import Http, make_http
from tests.router.fakes import BOS, token
from tests.waiting import EVENT_S, eventually

TEXT = 'a "b" \\ 東京 😀\n' * (LONG_TEXT_CHARS // 8)
MAX_MODEL_LEN = 1 << 20


async def post(http: Http, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await http.raw.post(path, json=body)
    assert answer.status_code == 200, answer.text
    read: dict[str, Any] = answer.json()
    return read


async def test_a_long_answer_is_whole() -> None:
    assert len(TEXT) > LONG_TEXT_CHARS > list_pieces.PIECE
    async with make_http(max_model_len=MAX_MODEL_LEN) as http:
        tokenizer = http.stack.router.generator.models.of().tokenizer
        ids = tokenizer.encode_blocking(TEXT, add_special_tokens=True)
        body = {"prompt": TEXT, "return_token_strs": True}
        answer = await post(http, "/tokenize", body)
        strings = [tokenizer.vocabulary.entry(one) for one in ids]
        expected = {"count": len(ids), "max_model_len": MAX_MODEL_LEN, "tokens": ids}
        assert answer == {**expected, "token_strs": strings}
        assert len(ids) > LONG_DECODE_TOKENS
        answer = await post(http, "/detokenize", {"tokens": ids})
        assert answer == {"prompt": BOS + TEXT}
        asked = pb.TokenizeRequest(text=TEXT, return_texts=True)
        tokenized = await http.stack.client.Tokenize(asked)
        assert list(tokenized.token_ids) == ids
        assert list(tokenized.texts) == [tokenizer.vocabulary.token_text(one) for one in ids]
        detokenized = await http.stack.client.Detokenize(pb.DetokenizeRequest(token_ids=ids))
        assert detokenized.text == TEXT


@pytest.mark.parametrize("tokens", [[], [5], [5, 6]])
async def test_a_short_answer_is_whole(http: Http, tokens: list[int]) -> None:
    tokenizer = http.stack.router.generator.models.of().tokenizer
    text = await tokenizer.decode(tokens, skip_special_tokens=False)
    assert await post(http, "/detokenize", {"tokens": tokens}) == {"prompt": text}


async def test_a_token_that_does_not_exist_is_found_far_behind(http: Http) -> None:
    ids = [5] * (list_pieces.PIECE * 2)
    for wrong in (-1, 10**6):
        answer = await http.raw.post("/detokenize", json={"tokens": [*ids, wrong]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")
    request = pb.DetokenizeRequest(token_ids=[*ids, 10**6])
    assert (await code_of(http.stack.client.Detokenize(request))).name == "INVALID_ARGUMENT"


async def test_decoded_text_has_a_bound(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"tokens": [token("ĠParis")] * (LONG_DECODE_TOKENS + 1)}
    await post(http, "/detokenize", body)  # by the bound as it is
    monkeypatch.setattr(long_texts, "MAX_DECODED_BYTES", 6 * LONG_DECODE_TOKENS)
    answer = await http.raw.post("/detokenize", json=body)
    assert answer.status_code == 400
    assert "MiB of text" in answer.json()["error"]["message"]


async def test_a_client_that_leaves_ends_its_tokenising(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    async def endless(*_: object, **__: object) -> list[int]:
        try:
            return await asyncio.Future[list[int]]()
        finally:
            ended.set()

    monkeypatch.setattr(http.stack.router.generator.models.of().tokenizer, "encode", endless)
    host, port = http.stack.router.http.address.split(":")  # type: ignore[union-attr]
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"prompt": "Hi"}).encode()
    head = f"POST /tokenize HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await eventually(lambda: http.stack.router.live.num_live == 1)
    writer.close()
    await asyncio.wait_for(ended.wait(), EVENT_S)
    await eventually(lambda: not http.stack.router.live.num_live)
