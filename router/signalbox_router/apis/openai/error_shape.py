"""The shape of an API's errors. By default it is OpenAI's, with `errors` as its rules.

An error may arise before the application knows the path's handler: a key that is not known, a
server that is shutting down. So `signalbox_router.http.paths` sets the shape in each request's
scope, and `ErrorResponse` (`streaming`) looks there.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response
from starlette.types import Scope

from signalbox_contract.errors import RpcError
from signalbox_router.apis.openai.requests.errors import error_body, error_headers, status_of
from signalbox_router.apis.openai.requests.types import Body
from signalbox_router.apis.openai.response_fields import to_json

SCOPE_KEY = "signalbox.error_shape"
"""Key of a scope: the shape of the errors of the API that the path belongs to."""


class ErrorWriter(Protocol):
    """Writes the errors of one API."""

    def response(self, error: RpcError, body: Body | None, scope: Scope) -> Response:
        """Returns the answer to a request that fails; `body` is its own, if it could be read."""
        ...


class ErrorShape(ErrorWriter, Protocol):
    """Writes the errors of an API whose errors are JSON below HTTP's status."""

    answer: type[BaseModel]
    """Type of an error's body, for /openapi.json."""

    def response(self, error: RpcError, body: Body | None, scope: Scope) -> Response:
        headers = {**error_headers(error), **self.headers(scope)}
        content = to_json(self.body(error, body, scope))
        return Response(content, status_of(error), headers, media_type="application/json")

    def body(self, error: RpcError, body: Body | None, scope: Scope) -> Mapping[str, Any]:
        """Returns an error's body; `body` is the request's, if it could be read."""
        ...

    def headers(self, scope: Scope) -> Mapping[str, str]:
        """Returns the headers of an error that are the API's own."""
        ...


class ErrorDetail(BaseModel):
    """An error, in OpenAI's format."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    message: str
    """Description of the error for people."""
    type: str
    """Kind of error, such as invalid_request_error."""
    param: str | None
    """Name of the invalid field, as the client wrote it."""
    code: str | None
    """Code for programs, such as context_length_exceeded or model_not_found."""


class ErrorAnswer(BaseModel):
    """Body of every answer that is not a success."""

    error: ErrorDetail


class OpenAiErrors(ErrorShape):
    """OpenAI's errors."""

    answer: type[BaseModel] = ErrorAnswer

    def body(self, error: RpcError, body: Body | None, scope: Scope) -> Mapping[str, Any]:
        return error_body(error, body)

    def headers(self, scope: Scope) -> Mapping[str, str]:
        return {}


OPENAI_ERRORS = OpenAiErrors()
