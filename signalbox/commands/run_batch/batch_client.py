"""Sends the requests of a batch to an HTTP API, several at a time, and repeats failed ones."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from signalbox.bench.http_stream import HttpAnswer, HttpStatusError, exchange, get
from signalbox.bench.http_target import endpoint_of
from signalbox.client.connection import Connection
from signalbox.commands.run_batch.answer_file import AnswerFile
from signalbox.commands.run_batch.batch_file import BatchRequest, read_request

MOST_ATTEMPTS = 8
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_REPEATED = frozenset({408, 429, 502, 503, 504})
"""Statuses after which a request is sent again."""
_CHECK_S = 60.0
"""Seconds that a server may take to answer anything at all."""
_NO_ANSWER = (OSError, ValueError, asyncio.IncompleteReadError)
"""Errors of a call whose answer does not arrive, or is incomplete."""


class Progress(NamedTuple):
    """Counts of one run."""

    num_answered: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0


class BatchClient:
    """Requests of one batch to one server."""

    def __init__(self, url: str, how: Connection, *, timeout_s: float) -> None:
        """Makes a client. Raises ValueError.

        Args:
            url: of the server, with or without /v1.
            timeout_s: most seconds until the complete answer to a request.
        """
        self._url = url
        self._endpoint, path = endpoint_of(url, how)
        self._root = path.removesuffix("/v1")
        self._timeout_s = timeout_s
        self.first_wait_s, self.check_s = _FIRST_WAIT_S, _CHECK_S
        self.progress = Progress()

    async def answer_all(
        self,
        file: Path,
        requests: Sequence[BatchRequest],
        answers: AnswerFile,
        *,
        concurrency: int,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """Writes an answer or an error for each request. Raises RuntimeError if the server is
        gone; requests in flight have no line then."""
        pending = iter(requests)

        async def work() -> None:
            for request in pending:
                path, body = read_request(file, request)
                try:
                    answer = await self._answer(path, body)
                except _NO_ANSWER as error:
                    await self._check_server(error)
                    told = {"code": "no_answer", "message": _reason(error)}
                    answers.add(request.custom_id, None, told)
                    self._count(failed=True)
                else:
                    content = _content(answer)
                    answers.add(request.custom_id, _response(answer, content))
                    self._count(failed=answer.status != 200, usage=content.get("usage"))
                on_progress(self.progress)

        workers = [asyncio.ensure_future(work()) for _ in range(min(concurrency, len(requests)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _answer(self, path: str, body: dict[str, Any]) -> HttpAnswer:
        """Returns the answer; after MOST_ATTEMPTS, even one that asks to try again. Raises
        _NO_ANSWER; TimeoutError at once, since the next attempt may take as long."""
        wait_s = self.first_wait_s
        for attempt in range(1, MOST_ATTEMPTS + 1):
            is_last = attempt == MOST_ATTEMPTS
            try:
                async with asyncio.timeout(self._timeout_s) as deadline:
                    answer = await exchange(self._endpoint, self._root + path, body)
                if is_last or not _may_be_answered_later(answer):
                    return answer
                wait_s = max(wait_s, _retry_after_s(answer))
            except _NO_ANSWER:
                if deadline.expired():
                    raise TimeoutError(f"no answer within {self._timeout_s:g} s") from None
                if is_last:
                    raise
            await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))
            wait_s *= 2
        raise AssertionError("the last attempt returns or raises")

    async def _check_server(self, error: Exception) -> None:
        """Raises RuntimeError if the server does not answer any request."""
        try:
            async with asyncio.timeout(self.check_s):
                await get(self._endpoint, f"{self._root}/v1/models")
        except HttpStatusError:
            return
        except _NO_ANSWER:
            told = f"nothing answers at {self._url}: {_reason(error)}"
            raise RuntimeError(f"{told}; run the same command later to continue") from None

    def _count(self, *, failed: bool, usage: Any = None) -> None:
        before, prompt, generated = self.progress, *_tokens(usage)
        self.progress = Progress(
            before.num_answered + (not failed),
            before.num_failed + failed,
            before.num_prompt_tokens + prompt,
            before.num_generated_tokens + generated,
        )


def _may_be_answered_later(answer: HttpAnswer) -> bool:
    return answer.status in _REPEATED and answer.headers.get("x-should-retry") != "false"


def _retry_after_s(answer: HttpAnswer) -> float:
    try:
        return float(answer.headers.get("retry-after", ""))
    except ValueError:  # it is not there, or is a date
        return 0.0


def _content(answer: HttpAnswer) -> dict[str, Any]:
    """Returns the JSON object of an answer, or an error with its text if it is not one."""
    try:
        content = json.loads(answer.body)
        if isinstance(content, dict):
            return content
    except ValueError:
        pass
    return {"error": {"message": answer.body.decode(errors="replace")}}


def _response(answer: HttpAnswer, content: Mapping[str, Any]) -> dict[str, Any]:
    request_id = answer.headers.get("x-request-id", "")
    return {"status_code": answer.status, "request_id": request_id, "body": content}


def _tokens(usage: Any) -> tuple[int, int]:
    """Returns the tokens of a prompt and of its answer, by OpenAI's and Anthropic's names."""
    if not isinstance(usage, dict):
        return 0, 0
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    generated = usage.get("completion_tokens", usage.get("output_tokens"))
    return prompt or 0, generated or 0


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
