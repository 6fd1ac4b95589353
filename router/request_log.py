"""Logs a line for each request that ends, and its prompt if the operator asks for prompts.

In JSON the lines of prompts are what `signalbox bench --replay` reads.
"""

import logging

from router.admission import Asked, TextPrompt, TokensPrompt
from router.config import LoggedRequests
from router.outputs import End
from router.request import GenerationRequest

logger = logging.getLogger(__name__)

MAX_REASON_CHARS = 300
_ENDED = (
    "request ended: %(finish_reason)s, %(prompt_tokens)d prompt tokens (%(cached_tokens)d cached),"
    " %(output_tokens)d output tokens, %(queued_s).3f s queued,"
    " %(time_to_first_token_s).3f s to the first token, %(duration_s).3f s in all"
)


class RequestLog:
    """Says of requests what the operator wants to know."""

    def __init__(self, logged: LoggedRequests = LoggedRequests.NONE) -> None:
        self._logged = logged

    def begun(self, asked: Asked) -> None:
        """Says what was asked, if prompts are to be logged."""
        if self._logged is LoggedRequests.PROMPTS:
            prompt = _prompt(asked)
            shown = ", ".join(f"{name} {value!r}" for name, value in prompt.items())
            logger.info(
                "request began: %(shown)s", {"shown": shown, **prompt, "sampling": _sampling(asked)}
            )

    def ended(self, request: GenerationRequest, end: End, *, duration_ns: int) -> None:
        """Says how a request ended well."""
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


def _prompt(asked: Asked) -> dict[str, object]:
    """Returns the prompt under the name that OpenAI's API has for it."""
    match asked.prompt:
        case TextPrompt(text=text):
            return {"prompt": text}
        case TokensPrompt(token_ids=token_ids):
            return {"prompt": token_ids}
        case conversation:
            messages = conversation.messages
            return {"messages": [{"role": one.role, "content": one.text} for one in messages]}


def _sampling(asked: Asked) -> dict[str, object]:
    """Returns the sampling parameters that are numbers, flags or texts, as the client set them."""
    return {
        name: value
        for name, value in asked.sampling.items()
        if isinstance(value, int | float | str)
        or (isinstance(value, list | tuple) and all(isinstance(one, str) for one in value))
    }
