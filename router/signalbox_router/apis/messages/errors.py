"""Errors in the shape of the Messages API."""

import uuid
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from starlette.types import Scope

from signalbox_contract.errors import InvalidArgument, RpcError
from signalbox_router.apis.openai.error_shape import ErrorShape
from signalbox_router.apis.openai.requests.error_params import param_of
from signalbox_router.apis.openai.requests.errors import BadRequest, NotServed, status_of
from signalbox_router.apis.openai.requests.types import Body
from signalbox_router.prompt.chat.length_errors import ContextOverflow
from signalbox_rpc.http import request_ids
from signalbox_rpc.interceptors.status import bounded

ID_HEADER = "request-id"
"""Header with the id of a request, in which this API's clients look."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""`type` of the error for each status; others are of the request below 500, else of the API."""
_NO_THREADS = {"error_code": "thread_unsupported_request"}
"""Detail of an error that tells clients which hold their conversation, too, to send all of it."""


class MessagesErrorDetail(BaseModel):
    """Kind and text of an error."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """Kind of error, such as invalid_request_error."""
    message: str
    """Description of the error for people; it begins with the invalid field."""
    details: dict[str, str] | None = None
    """The error's `error_code` for programs, if the API has one."""


class MessagesError(BaseModel):
    """Body of every answer of the Messages API that is not a success."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: Literal["error"]
    """`error`."""
    error: MessagesErrorDetail
    """The error."""
    request_id: str
    """Id of the request, as in the header request-id."""


def error_of(error: RpcError, body: Body | None) -> dict[str, Any]:
    status = status_of(error)
    fallback = "invalid_request_error" if status < 500 else "api_error"
    told = {"type": _TYPES.get(status, fallback), "message": bounded(_message(error, body))}
    is_of_thread = isinstance(error, NotServed) and error.param == "thread"
    return told | ({"details": _NO_THREADS} if is_of_thread else {})


def _message(error: RpcError, body: Body | None) -> str:
    if isinstance(error, BadRequest) or not isinstance(error, InvalidArgument):
        return error.message
    message = f"{param_of(error.field, body)}: {error.description}"
    if isinstance(error, ContextOverflow):  # clients look for these words to shorten it
        num_tokens, most = error.num_prompt_tokens, error.window - 1
        known = "" if num_tokens is None else f"{num_tokens} tokens > {most} maximum; "
        message = f"prompt is too long: {known}{message}"
    return message


class MessagesErrors(ErrorShape):
    """The errors of the Messages API, for `error_shape`."""

    answer: type[BaseModel] = MessagesError

    def body(self, error: RpcError, body: Body | None, scope: Scope) -> Mapping[str, Any]:
        return {"type": "error", "error": error_of(error, body), "request_id": id_of(scope)}

    def headers(self, scope: Scope) -> Mapping[str, str]:
        return {ID_HEADER: id_of(scope)}


def id_of(scope: Scope) -> str:
    """Returns the id that the answer has in `x-request-id`, too."""
    if label := request_ids.label_of(scope):
        return label
    state: dict[str, Any] = scope.setdefault("state", {})
    if request_ids.HEADER not in state:
        request_ids.name_request(scope, uuid.uuid4().hex)
    return str(state[request_ids.HEADER])
