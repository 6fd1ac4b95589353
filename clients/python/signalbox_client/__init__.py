"""A client of Signalbox: text in, text out, over gRPC.

    from signalbox_client import Client

    with Client("127.0.0.1:50051") as client:
        print(client.chat("What is the capital of South Korea?", temperature=0).text)
        for piece in client.stream_chat("Tell me a story.", max_tokens=100):
            print(piece, end="", flush=True)

`AsyncClient` is the same with `await` and `async for`. A stream's `chunks()` are the output of all
`n` sequences. A failed call raises `RequestError`.
"""

from signalbox_client.aio import AsyncClient, AsyncStream
from signalbox_client.answers import Answer, Chunk, Delta, Output, Usage
from signalbox_client.channels import Connection
from signalbox_client.client import Client, Stream
from signalbox_client.errors import FieldViolation, RequestError
from signalbox_client.served import DefaultSamplingParams, Load, Model, Token

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Chunk",
    "Client",
    "Connection",
    "DefaultSamplingParams",
    "Delta",
    "FieldViolation",
    "Load",
    "Model",
    "Output",
    "RequestError",
    "Stream",
    "Token",
    "Usage",
]
