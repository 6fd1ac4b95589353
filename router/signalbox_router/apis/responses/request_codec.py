"""Converts bodies of the Responses API to `ApiRequest`."""

from collections.abc import Sequence
from dataclasses import replace

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference import generate_codec
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.requests.field_setters import set_field
from signalbox_router.apis.openai.requests.request_codec import set_common, set_truncation
from signalbox_router.apis.responses.input_codec import ReadInput
from signalbox_router.apis.responses.types import ENCRYPTED, LOGPROBS, ResponsesBody
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.requests.api_request import ApiRequest, PrefixQuery
from signalbox_router.requests.output_buffer import Delivery

INCLUDABLE = (
    ENCRYPTED, LOGPROBS, "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
)  # fmt: skip
"""Values of include. All but the first two are of hosted tools, which no answer calls."""


def api_request(
    body: ResponsesBody, read: ReadInput, *, request_id: str, answer_id: str, model: ServedModel
) -> ApiRequest:
    """Returns the request for a body whose conversation was read. Raises InvalidArgument."""
    check_include(body.include or ())
    request = pb.ChatRequest(request_id=request_id)
    set_common(request, body, model)
    params = request.sampling_params
    set_field(params, "max_tokens", body.max_output_tokens)
    if body.shows_logprobs:
        set_field(params, "logprobs", body.top_logprobs or 0, param="top_logprobs")
    set_truncation(request, body, model)
    asked = generate_codec.conversation_api_request(request, read.conversation)
    delivery = replace(asked.delivery, keeps_order=True)
    if body.shows_logprobs:  # pieces, because each token belongs to reasoning, text or a call
        delivery = Delivery(stream_interval=delivery.stream_interval)
    asked = replace(asked, delivery=delivery)
    cuts_end = body.truncation_side == "right"
    query = PrefixQuery(
        answer_id,
        body.is_compared,
        body.compared_id,
        "input" if isinstance(body.input, str) else "input[{}]",
        "instructions",
        read.places,
    )
    return replace(asked, truncate_end=cuts_end, drops_turns=read.drops_turns, prefix_query=query)


def check_include(names: Sequence[str]) -> None:
    """Raises BadRequest for a name that OpenAI's API does not have."""
    for i, name in enumerate(names):
        if name not in INCLUDABLE:
            allowed = f"one of {', '.join(INCLUDABLE)}, and not {name[:100]!r}"
            raise BadRequest(f"include[{i}]: {allowed}", f"include[{i}]")
