"""Logs a line for each request that ends, and its prompt if the operator enables that.

In JSON format, `signalbox bench --replay` reads the lines with prompts.
"""

import logging

from signalbox_router.config import LoggedRequests
from signalbox_router.requests.active_request import ActiveRequest
from signalbox_router.requests.api_request import ApiRequest, PromptPair, PromptText, PromptTokens
from signalbox_router.requests.request_output import End

logger = logging.getLogger(__name__)

MAX_REASON_CHARS = 300
_ENDED = (
    "request ended: %(finish_reason)s, %(prompt_tokens)d prompt tokens (%(cached_tokens)d cached),"
    " %(output_tokens)d output tokens, %(queued_s).3f s queued,"
    " %(time_to_first_token_s).3f s to the first token, %(duration_s).3f s in all"
)


class RequestLog:
    """Writes the log lines of requests, as detailed as the setting asks for."""

    def __init__(self, logged: LoggedRequests = LoggedRequests.NONE) -> None:
        self._logged = logged

    def begun(self, api_request: ApiRequest) -> None:
        """Logs the prompt, if prompts are to be logged."""
        if self._logged is LoggedRequests.PROMPTS:
            prompt = _prompt(api_request)
            shown = ", ".join(f"{name} {value!r}" for name, value in prompt.items())
            logger.info(
                "request began: %(shown)s",
                {"shown": shown, **prompt, "sampling": _sampling(api_request)},
                extra={"is_whole": True},
            )

    def ended(self, request: ActiveRequest, end: End, *, duration_ns: int) -> None:
        if self._logged is LoggedRequests.NONE:
            return
        reason = request.finish_reason
        logger.info(
            _ENDED,
            {
                "finish_reason": reason.name.lower() if reason else "none",
                "prompt_tokens": end.usage.prompt_tokens,
                "cached_tokens": end.usage.cached_tokens,
                "output_tokens": end.usage.completion_tokens,
                "queued_s": round(end.timings.queued_ns / 1e9, 6),
                "time_to_first_token_s": round((end.time_to_first_token_ns or 0) / 1e9, 6),
                "duration_s": round(duration_ns / 1e9, 6),
            },
        )

    def failed(self, code: str, reason: str) -> None:
        """Logs the status of a request that failed, was cancelled or refused, and why.

        Args:
            reason: the message that the client gets; cut to `MAX_REASON_CHARS`.
        """
        if self._logged is LoggedRequests.NONE:
            return
        if len(reason) > MAX_REASON_CHARS:
            reason = reason[:MAX_REASON_CHARS] + "..."
        logger.info("request failed: %(code)s, %(reason)s", {"code": code, "reason": reason})


def _prompt(api_request: ApiRequest) -> dict[str, object]:
    """Returns the prompt under its name in OpenAI's API."""
    match api_request.prompt:
        case PromptText(text=text):
            return {"prompt": text}
        case PromptTokens(token_ids=token_ids):
            return {"prompt": token_ids}
        case PromptPair(query=query, document=document):
            return {"query": query, "document": document}
        case conversation:
            messages = conversation.messages
            return {"messages": [{"role": one.role, "content": one.text} for one in messages]}


def _sampling(api_request: ApiRequest) -> dict[str, object]:
    """Returns the scalar sampling parameters (numbers, flags, texts) as the client set them."""
    return {
        name: value
        for name, value in api_request.sampling.items()
        if isinstance(value, int | float | str)
        or (isinstance(value, list | tuple) and all(isinstance(one, str) for one in value))
    }
