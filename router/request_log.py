"""A line of the log for each request that ends, and its prompt for those who ask for that."""

import logging

from router.admission import Asked, TextPrompt, TokensPrompt
from router.config import LoggedRequests
from router.outputs import End
from router.request import GenerationRequest

logger = logging.getLogger(__name__)


class RequestLog:
    """Says of requests what the operator wants to know."""

    def __init__(self, logged: LoggedRequests = LoggedRequests.NONE) -> None:
        self._logged = logged

    def begun(self, asked: Asked) -> None:
        """Says what was asked, if prompts are to be logged."""
        if self._logged is LoggedRequests.PROMPTS:
            logger.info("asked: %s", _prompt(asked))

    def ended(self, request: GenerationRequest, end: End, *, duration_ns: int) -> None:
        """Says how a request ended well."""
        if self._logged is LoggedRequests.NONE:
            return
        reason = request.finish_reason
        logger.info(
            "ended by %s: %d prompt tokens (%d cached), %d output tokens,"
            " %.3f s queued, %.3f s to the first token, %.3f s in all",
            reason.name.lower() if reason else "nothing",
            end.usage.prompt_tokens,
            end.usage.cached_tokens,
            end.usage.completion_tokens,
            end.timings.queued_ns / 1e9,
            (end.time_to_first_token_ns or 0) / 1e9,
            duration_ns / 1e9,
        )

    def failed(self, code: str) -> None:
        """Says with what status a request ended that failed, was cancelled or refused."""
        if self._logged is not LoggedRequests.NONE:
            logger.info("ended with %s", code)


def _prompt(asked: Asked) -> str:
    match asked.prompt:
        case TextPrompt(text=text):
            return repr(text)
        case TokensPrompt(token_ids=token_ids):
            return f"token ids {token_ids}"
        case conversation:
            return repr([(message.role, message.content) for message in conversation.messages])
