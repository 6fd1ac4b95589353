"""Any OpenAI endpoint as the target of a load: ours, vLLM's, llama.cpp's, ..."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import urlsplit

from signalbox.bench.http_stream import HttpAddress, HttpStatusError, get, post, post_for_events
from signalbox.bench.load_loops import RequestFailed
from signalbox.bench.measurements import Measured
from signalbox.bench.workload import BenchRequest
from signalbox.client.connection import Connection


class HttpTarget:
    """Posts to /chat/completions, /completions and /embeddings below a URL such as
    http://HOST:PORT/v1."""

    def __init__(
        self,
        url: str,
        connection: Connection,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Sends requests to `model`, or to the first model served. Raises ValueError."""
        self.url = url
        self._endpoint, self._path = endpoint_of(url, connection)
        self._model = model
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Does nothing: connections end with their requests."""

    async def model(self) -> str:
        """Returns the model name for requests. Raises RuntimeError with a message of one line."""
        if self._model is None:
            try:
                answer = await get(self._endpoint, f"{self._path}/models")
                self._model = str(answer["data"][0]["id"])
            except OSError as error:
                reason = error.strerror or str(error)
                raise RuntimeError(f"nothing answers at {self.url}: {reason}") from None
            except (HttpStatusError, ValueError, LookupError, TypeError) as error:
                raise RuntimeError(
                    f"{self.url} lists no models ({error}); give its base, such as"
                    " http://127.0.0.1:8000/v1, or name one with --model"
                ) from None
        return self._model

    async def send(self, ask: BenchRequest, measured: Measured) -> AsyncIterator[int]:
        """Yields the number of tokens in each event. Raises RequestFailed."""
        if ask.texts:
            await self._embed(ask.texts, measured)
            return
        path = "completions" if ask.prompt is not None else "chat/completions"
        events = post_for_events(self._endpoint, f"{self._path}/{path}", await self._body(ask))
        counter = TokenCounter()
        with _failures():
            async with asyncio.timeout(self._timeout_s):
                async for event in events:
                    yield counter.new_tokens(event)
        measured.num_prompt_tokens += counter.num_prompt_tokens
        measured.num_tokens += counter.num_uncounted

    async def embeddings(self, texts: Sequence[str]) -> dict[str, Any]:
        """Returns the answer with the vectors in base64. Raises RequestFailed."""
        body = {"model": await self.model(), "input": list(texts), "encoding_format": "base64"}
        with _failures():
            async with asyncio.timeout(self._timeout_s):
                answer: dict[str, Any] = await post(
                    self._endpoint, f"{self._path}/embeddings", body
                )
        num_vectors = len(answer.get("data", ()))
        if num_vectors != len(texts):
            raise RequestFailed(f"{num_vectors} vectors of {len(texts)} texts")
        return answer

    async def _embed(self, texts: Sequence[str], measured: Measured) -> None:
        answer = await self.embeddings(texts)
        measured.num_texts += len(texts)
        measured.num_prompt_tokens += answer.get("usage", {}).get("prompt_tokens", 0)

    async def _body(self, ask: BenchRequest) -> dict[str, Any]:
        body = {
            **ask.sampling,
            "model": await self.model(),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if ask.prompt is not None:
            return {**body, "prompt": ask.prompt}
        return {**body, "messages": [{"role": r, "content": text} for r, text in ask.messages]}


@contextmanager
def _failures() -> Iterator[None]:
    """Converts what a call can raise to RequestFailed."""
    try:
        yield
    except TimeoutError:
        raise RequestFailed("timeout") from None
    except HttpStatusError as error:
        raise RequestFailed(error.status, _message(error.body)) from error
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise RequestFailed(f"connection: {type(error).__name__}") from error


def _message(body: str) -> str:
    """Returns what the body of a refusal says, in OpenAI's form or any other."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body


class TokenCounter:
    """Counts an answer's tokens. An event either has the count so far, or counts as one token if
    it has text; the usage at the end corrects the total."""

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self._num_tokens = 0
        self._num_in_all: int | None = None

    @property
    def num_uncounted(self) -> int:
        """Tokens that were not counted one by one, because they came together with others."""
        return 0 if self._num_in_all is None else self._num_in_all - self._num_tokens

    def new_tokens(self, event: dict[str, Any]) -> int:
        """Returns the tokens that the event adds. Raises RequestFailed if it is an error."""
        if "error" in event:
            error = event["error"]
            kind = error.get("type") if isinstance(error, dict) else None
            raise RequestFailed(f"error event: {kind or 'unknown'}")
        if usage := event.get("usage"):
            self.num_prompt_tokens = usage.get("prompt_tokens", 0)
            self._num_in_all = usage.get("completion_tokens")
        choices = event.get("choices") or ()
        if choices and usage and self._num_in_all is not None:
            new = max(0, self._num_in_all - self._num_tokens)
        else:
            new = sum(_has_text(choice) for choice in choices)
        self._num_tokens += new
        return new


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content"))


def endpoint_of(url: str, connection: Connection) -> tuple[HttpAddress, str]:
    """Returns the address of a --url, and the path in it. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"--url is {url!r}; give one such as http://127.0.0.1:8000/v1")
    is_tls = parts.scheme == "https"
    headers = {"authorization": f"Bearer {connection.api_key}"} if connection.api_key else {}
    endpoint = HttpAddress(
        host=parts.hostname,
        port=parts.port or (443 if is_tls else 80),
        headers=headers,
        tls=_tls(connection) if is_tls else None,
        server_name=connection.server_name if is_tls else None,
    )
    return endpoint, parts.path.rstrip("/")


def _tls(connection: Connection) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=connection.tls.ca)
    if connection.tls.cert:
        context.load_cert_chain(connection.tls.cert, connection.tls.key)
    return context
