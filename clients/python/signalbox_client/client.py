"""The client for programs that wait for their answers.

`python -m scripts.sync_client` makes this file of aio.py; change that one.
"""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Self

import grpc

from signalbox_client.answers import Answer, Chunk, read_chunk
from signalbox_client.channels import UNARY_TIMEOUT_S, Connection, deadline_s
from signalbox_client.errors import request_error, stream_errors
from signalbox_client.requests import (
    Messages,
    Prompt,
    chat_request,
    detokenize_request,
    embed_request,
    generate_request,
    tokenize_request,
)
from signalbox_client.served import Load, Model, Token, read_load, read_model, read_tokens
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc


class Stream:
    """The pieces of an answer's text as they arrive.

    Use `with`, or cancel(), to abort a request whose iteration is left early.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self.answer = Answer()
        """The output so far, of all `n` sequences."""
        self.is_cancelled = False

    def __iter__(self) -> Iterator[str]:
        """Yields text of the first sequence. Raises RequestError."""
        with contextlib.closing(self.chunks()) as chunks:
            for chunk in chunks:
                if chunk.text:
                    yield chunk.text

    def chunks(self) -> Generator[Chunk]:
        """Yields the output of all sequences, instead of the text of one. Raises RequestError."""
        try:
            with stream_errors(lambda: self.is_cancelled):
                for response in self._call:
                    chunk = read_chunk(response)
                    self.answer.add(chunk)
                    yield chunk
        finally:
            self._call.cancel()  # no-op once it has ended

    def cancel(self) -> None:
        """Aborts the request; its iteration ends, in another thread too."""
        self.is_cancelled = True
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.cancel()


class Client:
    """Calls a router at "host:port"; may be used by several threads.

    Options of a request are the fields of GenerateRequest or ChatRequest and of SamplingParams by
    their names, such as `max_tokens`, and `json_schema`, a schema that the text must conform to.
    """

    def __init__(
        self,
        address: str,
        connection: Connection | None = None,
        *,
        channel: grpc.Channel | None = None,
        **settings: Any,
    ) -> None:
        """Opens a channel.

        Args:
            channel: replaces the client's own, such as one with interceptors; closed with it.
            settings: fields of Connection, such as api_key and tls_ca.
        """
        connection = connection or Connection(**settings)
        self.address = address
        self._metadata = connection.metadata
        self._channel = channel or connection.open(address)
        make_stub: Any = inference_pb2_grpc.InferenceServiceStub  # generated without types
        self._stub = make_stub(self._channel)

    def generate(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Any
    ) -> Answer:
        """Continues a prompt. Raises RequestError."""
        return _all_of(self.stream_generate(prompt, timeout_s=timeout_s, **options))

    def chat(
        self, messages: Messages, *, timeout_s: float | None = None, **options: Any
    ) -> Answer:
        """Answers a conversation. Raises RequestError."""
        return _all_of(self.stream_chat(messages, timeout_s=timeout_s, **options))

    def stream_generate(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Any
    ) -> Stream:
        request = generate_request(prompt, options)
        return Stream(
            self._stub.Generate(request, timeout=deadline_s(timeout_s), metadata=self._metadata)
        )

    def stream_chat(
        self, messages: Messages, *, timeout_s: float | None = None, **options: Any
    ) -> Stream:
        request = chat_request(messages, options)
        return Stream(
            self._stub.Chat(request, timeout=deadline_s(timeout_s), metadata=self._metadata)
        )

    def model_name(self, *, timeout_s: float | None = UNARY_TIMEOUT_S) -> str:
        """Returns the name of the model that `model` describes. Raises RequestError."""
        return (self.model(timeout_s=timeout_s)).name

    def model(self, name: str = "", *, timeout_s: float | None = UNARY_TIMEOUT_S) -> Model:
        """Describes a served model. Raises RequestError.

        Args:
            name: one of its names; empty is the only model that generates, else the only one.
        """
        request = pb.GetModelRequest(model=name)
        return read_model(self._ask(self._stub.GetModel, request, timeout_s))

    def models(self, *, timeout_s: float | None = UNARY_TIMEOUT_S) -> list[Model]:
        """Describes all served models. Raises RequestError."""
        answer = self._ask(self._stub.ListModels, pb.ListModelsRequest(), timeout_s)
        return [read_model(one) for one in answer.models]

    def load(self, *, timeout_s: float | None = UNARY_TIMEOUT_S) -> Load:
        """Returns the load of the router. Raises RequestError."""
        return read_load(self._ask(self._stub.GetLoad, pb.GetLoadRequest(), timeout_s))

    def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        model: str = "",
        timeout_s: float | None = UNARY_TIMEOUT_S,
    ) -> list[Token]:
        """Returns the tokens of a text. Raises RequestError."""
        request = tokenize_request(text, add_special_tokens=add_special_tokens, model=model)
        return read_tokens(self._ask(self._stub.Tokenize, request, timeout_s))

    def embed(
        self,
        texts: Sequence[str],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> list[list[float]]:
        """Returns a vector for each of up to 2,048 texts. Raises RequestError.

        Args:
            dimensions: elements of each vector, if the model declares that length; None is all.
            prompt_name: name of the model's prompt before each text; None is its default.
            truncate: whether texts that are too long are cut.
            model: name of the model; empty is the only one that embeds.
        """
        request = embed_request(
            texts, dimensions=dimensions, prompt_name=prompt_name, truncate=truncate, model=model
        )
        answer = self._ask(self._stub.Embed, request, timeout_s)
        return [list(one.values) for one in answer.embeddings]

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        model: str = "",
        timeout_s: float | None = UNARY_TIMEOUT_S,
    ) -> str:
        """Returns the text of tokens. Raises RequestError."""
        request = detokenize_request(
            token_ids, skip_special_tokens=skip_special_tokens, model=model
        )
        return str((self._ask(self._stub.Detokenize, request, timeout_s)).text)

    def _ask(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        try:
            return method(request, timeout=deadline_s(timeout_s), metadata=self._metadata)
        except grpc.RpcError as error:
            raise request_error(error) from None

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _all_of(stream: Stream) -> Answer:
    with stream:
        for _ in stream:
            pass
    return stream.answer
