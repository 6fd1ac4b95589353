"""Reads a request of the Responses API together with the turn that it continues."""

from dataclasses import replace
from typing import NamedTuple

from signalbox_router.apis.openai.bodies.body_parser import parse
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.response_fields import to_json
from signalbox_router.apis.responses.input_codec import ReadInput, read_input
from signalbox_router.apis.responses.request_codec import api_request
from signalbox_router.apis.stored_responses.context_items import put_before
from signalbox_router.apis.stored_responses.stored_response import StoredResponse
from signalbox_router.apis.stored_responses.types import StoredResponsesBody
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.kept_tokens import NO_TOKENS
from signalbox_router.requests.api_request import ApiRequest
from signalbox_router.requests.output_buffer import OutputKind

_GOES_ON = ("completed", "incomplete")
"""Statuses of responses that may be continued."""


class Turn(NamedTuple):
    """A request, and the part of its response that is known before the model answers."""

    body: StoredResponsesBody
    read: ReadInput
    request: ApiRequest
    draft: StoredResponse
    model: ServedModel


def turn_of(
    body: StoredResponsesBody,
    draft: StoredResponse,
    *,
    request_id: str,
    model: ServedModel,
    previous: StoredResponse | None = None,
) -> Turn:
    """Returns the turn of a body, whose input is moved out.

    Args:
        draft: the response with its id and its tenant.
        previous: the response that it continues.
    """
    if body.background:
        fields = body.model_dump_json(exclude={"input"}, exclude_unset=True, by_alias=True)
        draft = replace(draft, request=fields.encode())
    kept = NO_TOKENS if previous is None else previous.kept
    draft = replace(draft, items=put_before(body, previous), kept=kept)
    return _turn(body, draft, request_id=request_id, model=model)


def repeated(response: StoredResponse) -> StoredResponsesBody:
    """Returns the request body of a response that runs again, with its whole context as input."""
    fields = to_json(response.request_fields)
    return parse(b'{"input":%b,%b' % (response.items, fields[1:]), StoredResponsesBody)


def turn_again(body: StoredResponsesBody, response: StoredResponse, model: ServedModel) -> Turn:
    """Returns the turn of a response that runs again; its request has the response's id. It belongs
    to no session, since the API key that a session belongs to is not kept."""
    turn = _turn(body, response, request_id=response.id, model=model)
    return turn._replace(request=replace(turn.request, session_name=""))


def check_goes_on(previous: StoredResponse) -> None:
    """Raises BadRequest for a response that has no answer to continue."""
    status = previous.fields["status"]
    if status not in _GOES_ON:
        param = "previous_response_id"
        raise BadRequest(f"{param}: {previous.id} is {status}, and has no answer", param)


def _turn(
    body: StoredResponsesBody, draft: StoredResponse, *, request_id: str, model: ServedModel
) -> Turn:
    read = read_input(body)
    request = api_request(body, read, request_id=request_id, answer_id=draft.id, model=model)
    if body.background:  # a client may read its events at any time
        request = replace(request, delivery=replace(request.delivery, kind=OutputKind.DELTA))
    return Turn(body, read, replace(request, kept_tokens=draft.kept), draft, model)
