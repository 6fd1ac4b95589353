"""The client for programs that wait for their answers; may be used by several threads."""

from collections.abc import Iterator
from typing import Any, Self

import grpc

from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc
from signalbox_client.answers import Answer
from signalbox_client.channels import Connection
from signalbox_client.errors import request_error
from signalbox_client.requests import Messages, chat_request, generate_request


class Stream:
    """The pieces of an answer's text as they come; leaving it early aborts the request."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.answer = Answer()
        """What has come so far, of all `n` sequences."""
        self.is_cancelled = False

    def __iter__(self) -> Iterator[str]:
        """Yields text of the first sequence. Raises RequestError."""
        try:
            for response in self._call:
                if piece := self.answer.add(response):
                    yield piece
        except grpc.RpcError as error:
            if not self.is_cancelled:
                raise request_error(error) from None
        finally:
            self._call.cancel()  # no-op once it has ended

    def cancel(self) -> None:
        """Aborts the request, from any thread; the iteration ends."""
        self.is_cancelled = True
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.cancel()


class Client:
    """Calls a router at "host:port".

    Options of a request are the fields of GenerateRequest or ChatRequest and of SamplingParams by
    their names, such as `max_tokens`, and `json_schema`, a schema that the text is to conform to.
    """

    def __init__(self, address: str, connection: Connection | None = None, **settings: Any) -> None:
        """`settings` are those of Connection: api_key, tls_ca, tls_cert, tls_key."""
        connection = connection or Connection(**settings)
        self._metadata = connection.metadata
        self._channel = connection.open(address)
        make_stub: Any = inference_pb2_grpc.InferenceServiceStub  # generated without types
        self._stub = make_stub(self._channel)

    def generate(self, prompt: str, *, timeout_s: float | None = None, **options: Any) -> Answer:
        """Continues a prompt. Raises RequestError."""
        return _all_of(self.stream_generate(prompt, timeout_s=timeout_s, **options))

    def chat(self, messages: Messages, *, timeout_s: float | None = None, **options: Any) -> Answer:
        """Answers a conversation. Raises RequestError."""
        return _all_of(self.stream_chat(messages, timeout_s=timeout_s, **options))

    def stream_generate(
        self, prompt: str, *, timeout_s: float | None = None, **options: Any
    ) -> Stream:
        request = generate_request(prompt, options)
        return Stream(self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata))

    def stream_chat(
        self, messages: Messages, *, timeout_s: float | None = None, **options: Any
    ) -> Stream:
        request = chat_request(messages, options)
        return Stream(self._stub.Chat(request, timeout=timeout_s, metadata=self._metadata))

    def model_name(self, *, timeout_s: float | None = 10) -> str:
        """Returns the name of the served model. Raises RequestError."""
        request = pb.GetModelRequest()
        try:
            answer = self._stub.GetModel(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise request_error(error) from None
        return str(answer.name)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _all_of(stream: Stream) -> Answer:
    for _ in stream:
        pass
    return stream.answer
