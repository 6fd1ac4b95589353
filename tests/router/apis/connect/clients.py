"""A client of each form of a call, made of the protocols' documents."""

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httpx2
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import status_pb2

from signalbox_contract.errors import Code
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference.servicer import SERVICE_NAME

SERVICE = pb.DESCRIPTOR.services_by_name["InferenceService"]
PATH = f"/{SERVICE_NAME}"


def enclosed(data: bytes, flags: int = 0) -> bytes:
    return bytes([flags]) + len(data).to_bytes(4) + data


def parts_of(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the flags and the bytes of each message in a body."""
    while body:
        end = 5 + int.from_bytes(body[1:5])
        assert len(body) >= end
        yield body[0], body[5:end]
        body = body[end:]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call has answered."""

    messages: list[Any]
    code: Code = Code.OK
    message: str = ""
    details: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """A form of calls, by the type of their bodies; `{}` in it is for "connect+" of a stream."""

    media_type: str

    @property
    def is_json(self) -> bool:
        return self.media_type.endswith("json")

    @property
    def is_text(self) -> bool:
        return "-text" in self.media_type

    @property
    def is_web(self) -> bool:
        return "grpc-web" in self.media_type

    def type_of(self, method: str) -> str:
        is_stream = SERVICE.methods_by_name[method].server_streaming
        return self.media_type.replace("{}", "connect+" if is_stream else "")

    def body(self, request: Message | bytes, method: str, *, compress: bool = False) -> bytes:
        """Returns the body of a call; bytes are those of a message."""
        data = request
        if isinstance(data, Message):
            text = json_format.MessageToJson(data).encode() if self.is_json else b""
            data = text or data.SerializeToString()
        if self.is_web or "connect+" in self.type_of(method):
            data = enclosed(gzip.compress(data), 1) if compress else enclosed(data)
        elif compress:
            data = gzip.compress(data)
        return base64.b64encode(data) if self.is_text else data

    def coding_header(self, method: str) -> str:
        if self.is_web:
            return "grpc-encoding"
        return ("connect-" if "connect+" in self.type_of(method) else "") + "content-encoding"

    def accepting_header(self, method: str) -> str:
        before, _, _ = self.coding_header(method).rpartition("encoding")
        return before.replace("content-", "") + "accept-encoding"

    def read(self, answer: httpx2.Response, method: str) -> Answer:
        """Returns what an answer says; `Content-Encoding` is decoded already."""
        kind = _class_of(SERVICE.methods_by_name[method].output_type.name)
        if not self.is_web and "connect+" not in self.type_of(method):
            if answer.status_code != 200:
                return _failure(answer.json(), [])
            return Answer([self._message(answer.content, kind)])
        assert (answer.status_code, answer.headers["content-type"]) == (200, self.type_of(method))
        body = answer.content
        if self.is_text:
            quads = (body[i : i + 4] for i in range(0, len(body), 4))
            body = b"".join(base64.b64decode(quad) for quad in quads)
        *parts, (flags, end) = parts_of(body)
        data = [gzip.decompress(one) if compressed else one for compressed, one in parts]
        messages = [self._message(one, kind) for one in data]
        if not self.is_web:
            assert flags == 2
            ended = json.loads(end)
            return _failure(ended["error"], messages) if "error" in ended else Answer(messages)
        assert flags == 0x80
        lines = end.decode().splitlines()
        return _by_trailers(dict(line.split(": ", 1) for line in lines), messages)

    def _message(self, data: bytes, kind: Any) -> Any:
        return json_format.Parse(data, kind()) if self.is_json else kind.FromString(data)


FORMS = [
    Form("application/{}proto"),
    Form("application/{}json"),
    Form("application/grpc-web+proto"),
    Form("application/grpc-web+json"),
    Form("application/grpc-web-text"),
]


def _class_of(name: str) -> Any:
    return getattr(pb, name)


def _failure(error: dict[str, Any], messages: list[Any]) -> Answer:
    code = Code[error["code"].upper().replace("CANCELED", "CANCELLED")]
    details = (
        f"type.googleapis.com/{one['type']}".encode() + base64.b64decode(one["value"] + "==")
        for one in error.get("details", ())
    )
    return Answer(messages, code, error["message"], tuple(details))


def _by_trailers(trailers: dict[str, str], messages: list[Any]) -> Answer:
    code = Code(int(trailers["grpc-status"]))
    details: tuple[bytes, ...] = ()
    if packed := trailers.get("grpc-status-details-bin"):
        status = status_pb2.Status.FromString(base64.b64decode(packed + "=="))
        assert status.code == code
        details = details_of(status)
    return Answer(messages, code, unquote(trailers.get("grpc-message", "")), details)


def details_of(status: status_pb2.Status) -> tuple[bytes, ...]:
    return tuple(one.type_url.encode() + one.value for one in status.details)


async def call(
    raw: httpx2.AsyncClient,
    form: Form,
    method: str,
    request: Message | bytes,
    **headers: str,
) -> Answer:
    """Makes a call; headers are written with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await raw.post(
        f"{PATH}/{method}",
        content=form.body(request, method),
        headers={"content-type": form.type_of(method), **named},
    )
    return form.read(answer, method)
