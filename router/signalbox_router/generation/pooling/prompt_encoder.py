"""Turns what is to be pooled into tokens that fit the model, or says why they do not."""

from signalbox_contract.errors import FailedPrecondition, InvalidArgument
from signalbox_contract.wording import counted
from signalbox_router.generation.pooling.pair_encoder import PairEncoder
from signalbox_router.generation.pooling.text_encoder import PooledPrompt, TextEncoder
from signalbox_router.limits.payers import Payer
from signalbox_router.params import params_validation
from signalbox_router.params.token_validation import check_token_ids
from signalbox_router.prompt.chat.length_errors import ContextOverflow
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.requests.api_request import (
    ApiRequest,
    PoolingRequest,
    PromptPair,
    PromptText,
    PromptTokens,
)

ENTIRE = -1
"""truncate_prompt_tokens that keeps as many tokens as the model takes."""


def check_kind(pooled: PoolingRequest | None, model: ServedModel) -> None:
    """Raises FailedPrecondition for a request that is not of the served model's kind."""
    check_task("generate" if pooled is None else pooled.task, model)


def check_task(asked: str, model: ServedModel) -> None:
    """Raises FailedPrecondition for a task that the model does not do."""
    makes_token_vectors = model.pooling is not None and model.pooling.num_token_outputs > 0
    serves = model.task
    if asked == serves or (asked == "token_embed" and makes_token_vectors):
        return
    uses = {
        "generate": "generates text: use Generate or Chat, over HTTP /v1/chat/completions",
        "embed": "makes embeddings: use Embed or Score, over HTTP /v1/embeddings or /v1/score",
        "token_embed": "makes vectors of tokens: use Embed with the task TOKEN_EMBED, over HTTP"
        " /pooling",
        "classify": "classifies: use Classify or Score, over HTTP /classify or /v1/score",
    }
    raise FailedPrecondition(f"model {model.name!r} cannot {asked}; it {uses[serves]}")


def check_truncation(asked: int | None, model: ServedModel) -> None:
    field = "pooling_params.truncate_prompt_tokens"
    params_validation.check_truncation(asked, model, field=field, or_all=True)


def texts_of(prompt: object, pooled: PoolingRequest) -> list[tuple[str, str]]:
    """Returns the fields of a prompt's texts, and the texts. Raises InvalidArgument if one is
    empty."""
    match prompt:
        case PromptText(text=text, field=field):
            texts = [(field, text)]
        case PromptPair(query=query, document=document):
            texts = [(prompt.query_field, query), (prompt.document_field, document)]
        case _:
            return []
    for field, text in texts:
        if not text:
            raise InvalidArgument(field, text, "a text that is not empty")
    field, text = texts[0]
    return [(field, pooled.prefix + text), *texts[1:]]


async def encode_prompt(
    api_request: ApiRequest, model: ServedModel, *, max_bytes: int, payer: Payer
) -> PooledPrompt:
    """Returns the tokens, which fit the model. Raises InvalidArgument if they do not.

    Args:
        max_bytes: of the longest text that is made of a query and a document.
    """
    pooled, prompt = api_request.pooled, api_request.prompt
    assert pooled is not None
    most = _most_tokens(api_request, model)
    encoder = TextEncoder(model, pooled, max_tokens=most, payer=payer)
    match prompt:
        case PromptText():
            encoded = await encoder.text(prompt)
        case PromptPair():
            pairs = PairEncoder(model, pooled, max_tokens=most, max_bytes=max_bytes, payer=payer)
            encoded = await pairs.pair(prompt)
        case PromptTokens(token_ids=token_ids, field=field):
            check_token_ids(token_ids, field=field, model=model)
            encoded = PooledPrompt(encoder.cut(token_ids), field)
        case _:
            raise AssertionError("a conversation is not pooled")
    _check_length(encoded, model)
    if pooled.task != "token_embed":
        return encoded
    _check_vectors(encoded, model)
    return encoded._replace(params=encoded.params._replace(is_per_token=True))


def _most_tokens(api_request: ApiRequest, model: ServedModel) -> int | None:
    """Returns the tokens to which a prompt is cut; None does not cut."""
    asked, most = api_request.truncate_prompt_tokens, model.window
    if asked is None:
        return None
    return most if asked == ENTIRE else min(asked, most)


def _check_length(prompt: PooledPrompt, model: ServedModel) -> None:
    num_tokens, most = len(prompt.token_ids), model.max_model_len
    if num_tokens < 1:
        raise InvalidArgument(prompt.field, "a prompt of 0 tokens", "at least 1 token")
    if num_tokens > most:
        allowed = f"at most {most}, or truncate_prompt_tokens"
        found = f"a prompt of {counted(num_tokens, 'token')}"
        raise ContextOverflow(prompt.field, found, allowed, window=most)


def _check_vectors(prompt: PooledPrompt, model: ServedModel) -> None:
    """Raises InvalidArgument for a prompt whose tokens have too many vectors."""
    most = 0 if model.pooling is None else model.pooling.max_vector_tokens
    if len(prompt.token_ids) > most:
        found = f"vectors of {counted(len(prompt.token_ids), 'token')}"
        raise InvalidArgument(prompt.field, found, f"at most {most}, or truncate_prompt_tokens")


def check_one_output(model: ServedModel) -> None:
    """Raises FailedPrecondition if a classifier gives a pair more than one score."""
    pooling = model.pooling
    if pooling is not None and pooling.task == "classify" and pooling.num_outputs != 1:
        raise FailedPrecondition(
            f"model {model.name!r} has {pooling.num_outputs} classes, and a score is of one;"
            " use Classify, over HTTP /classify"
        )
