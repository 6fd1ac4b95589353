"""Bodies that /docs offers to try, by their types. They name no model: what is served answers."""

from collections.abc import Mapping
from typing import Any

from signalbox_router.apis.messages.types import CountTokensBody, MessagesBody
from signalbox_router.apis.openai.requests.adapter_types import LoadAdapterBody, UnloadAdapterBody
from signalbox_router.apis.openai.requests.chat_types import ChatBody, DetokenizeBody, TokenizeBody
from signalbox_router.apis.openai.requests.pooling_types import (
    ClassifyBody,
    CohereEmbedBody,
    EmbeddingBody,
    PoolingEndpointBody,
    RerankBody,
    ScoreBody,
)
from signalbox_router.apis.openai.requests.types import Body, CompletionBody
from signalbox_router.apis.responses.types import InputTokensBody, ResponsesBody
from signalbox_router.apis.stored_responses.types import (
    StoredInputTokensBody,
    StoredResponsesBody,
)

_QUESTION = "What is the capital of South Korea?"
_CHAT = {"messages": [{"role": "user", "content": _QUESTION}]}
_TEXTS = ["The capital of South Korea is Seoul.", "Cats sleep most of the day."]

EXAMPLES: Mapping[type[Body], Mapping[str, Any]] = {
    ChatBody: {**_CHAT, "max_tokens": 64, "temperature": 0},
    ResponsesBody: {"input": _QUESTION, "max_output_tokens": 64, "temperature": 0},
    MessagesBody: {**_CHAT, "max_tokens": 64, "temperature": 0},
    CompletionBody: {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0},
    EmbeddingBody: {"input": _TEXTS},
    CohereEmbedBody: {"texts": _TEXTS},
    ScoreBody: {"text_1": _QUESTION, "text_2": _TEXTS},
    RerankBody: {"query": _QUESTION, "documents": _TEXTS},
    ClassifyBody: {"input": _TEXTS},
    PoolingEndpointBody: {"input": _TEXTS},
    TokenizeBody: {"prompt": "Once upon a time", "return_token_strs": True},
    DetokenizeBody: {"tokens": [5, 6, 7]},
    InputTokensBody: {"input": _QUESTION},
    StoredResponsesBody: {"input": _QUESTION, "max_output_tokens": 64, "temperature": 0},
    StoredInputTokensBody: {"input": _QUESTION},
    CountTokensBody: _CHAT,
    LoadAdapterBody: {"lora_name": "sql", "lora_path": "sql"},
    UnloadAdapterBody: {"lora_name": "sql"},
}
