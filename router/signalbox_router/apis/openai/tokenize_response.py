"""Answers of /tokenize and /detokenize, written in pieces because lists and texts may be long."""

from collections.abc import Callable, Sequence
from typing import Any

from signalbox_router.apis.openai.requests import conversation_codec
from signalbox_router.apis.openai.requests.chat_types import DetokenizeBody, TokenizeBody
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.response_fields import to_json
from signalbox_router.generation.generator import CallReservation
from signalbox_router.limits.list_pieces import in_pieces
from signalbox_router.limits.payers import Payer
from signalbox_router.params import params_validation
from signalbox_router.params.token_validation import check_token_ids
from signalbox_router.prompt.chat.conversation import Conversation

_TEXT_PIECE = 1 << 18
"""Characters that are written in one turn of the event loop."""


def asked_conversation(body: TokenizeBody) -> Conversation | None:
    """Returns the conversation that a /tokenize body asks to render; None for a plain prompt."""
    if (body.prompt is None) is (body.messages is None):
        raise BadRequest("prompt: exactly one of prompt and messages", "prompt")
    return conversation_codec.conversation_of(body) if body.prompt is None else None


async def tokenized(
    body: TokenizeBody,
    conversation: Conversation | None,
    place: CallReservation,
    *,
    payer: Payer,
    max_bytes: int,
) -> bytes:
    """Returns the JSON answer to a body of /tokenize and its rendered conversation."""
    model = place.model
    if conversation is None:
        token_ids = await _encoded(body, place, payer=payer, max_bytes=max_bytes)
    else:
        encode = model.tokenizer.encode_chat(conversation, max_bytes=max_bytes, payer=payer)
        token_ids = (await encode).token_ids
    place.spend(len(token_ids))
    head = to_json({"count": len(token_ids), "max_model_len": model.window})
    parts = [head[:-1], b',"tokens":[', await _items(token_ids, lambda token_id: token_id)]
    if not body.return_token_strs:
        return b"".join([*parts, b'],"token_strs":null}'])
    entries = await _items(token_ids, model.tokenizer.vocabulary.entry)
    return b"".join([*parts, b'],"token_strs":[', entries, b"]}"])


async def _encoded(
    body: TokenizeBody, place: CallReservation, *, payer: Payer, max_bytes: int
) -> Sequence[int]:
    tokenizer = place.model.tokenizer
    assert body.prompt is not None
    params_validation.check_text(body.prompt, field="prompt", max_bytes=max_bytes)
    adds = body.add_special_tokens is not False
    return await tokenizer.encode(body.prompt, add_special_tokens=adds, payer=payer)


async def _items(token_ids: Sequence[int], item_of: Callable[[int], Any]) -> bytes:
    """Returns the items of a JSON list without its brackets."""
    pieces = [to_json(list(map(item_of, piece)))[1:-1] async for piece in in_pieces(token_ids)]
    return b",".join(pieces)


async def detokenized(body: DetokenizeBody, place: CallReservation, *, payer: Payer) -> bytes:
    """Returns the JSON answer to a body of /detokenize."""
    model = place.model
    async for piece in in_pieces(body.tokens):
        check_token_ids(piece, field="tokens", model=model)
    place.spend(len(body.tokens))
    skips = bool(body.skip_special_tokens)
    text = await model.tokenizer.decode(body.tokens, skip_special_tokens=skips, payer=payer)
    pieces = [to_json(piece)[1:-1] async for piece in in_pieces(text, length=_TEXT_PIECE)]
    return b"".join([b'{"prompt":"', *pieces, b'"}'])
