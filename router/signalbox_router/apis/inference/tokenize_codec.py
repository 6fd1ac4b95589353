"""Converts messages of Tokenize and Detokenize, in pieces because lists may be long."""

from collections.abc import Sequence

from signalbox_contract.errors import InvalidArgument
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference import chat_codec
from signalbox_router.apis.inference.generate_codec import value_or
from signalbox_router.limits.list_pieces import in_pieces
from signalbox_router.params.token_validation import check_token_ids
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer


def add_special_tokens(request: pb.TokenizeRequest) -> bool:
    return value_or(request, "add_special_tokens", True)


def conversation(request: pb.TokenizeRequest) -> Conversation:
    """Returns the conversation to render and tokenise instead of a text."""
    if request.text:
        raise InvalidArgument("chat", "a conversation", "unset beside text")
    asked = chat_codec.conversation(request.chat)
    asked.check()
    return asked


def skip_special_tokens(request: pb.DetokenizeRequest) -> bool:
    return value_or(request, "skip_special_tokens", True)


async def tokens(
    request: pb.TokenizeRequest, token_ids: Sequence[int], tokenizer: Tokenizer
) -> pb.TokenizeResponse:
    """Returns the answer, with the tokens' texts if requested."""
    response = pb.TokenizeResponse()
    async for piece in in_pieces(token_ids):
        response.token_ids.extend(piece)
        if request.return_texts:
            response.texts.extend(map(tokenizer.vocabulary.token_text, piece))
    return response


async def token_ids(request: pb.DetokenizeRequest, model: ServedModel) -> list[int]:
    """Returns the tokens to decode. Raises InvalidArgument for an id outside the vocabulary."""
    found: list[int] = []
    async for piece in in_pieces(request.token_ids):
        check_token_ids(piece, field="token_ids", model=model)
        found += piece
    return found
