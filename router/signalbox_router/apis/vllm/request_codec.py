"""Converts requests of vllm.grpc.engine to plain data.

Proto3 scalars without presence are unset if they are 0, which is an invalid top_p and
repetition_penalty; if a model has a default top_k or min_p, a gateway cannot set 0. Fields that are
not served are refused by name. Error messages use the protocol's names of fields, not ours.
"""

from typing import Any

from smg_grpc_proto import vllm_engine_pb2 as pb

from signalbox_contract.errors import InvalidArgument, Unimplemented
from signalbox_router.params.token_validation import MAX_ITEMS, as_list, check_counts
from signalbox_router.requests.api_request import ApiRequest, PromptText, PromptTokens
from signalbox_router.requests.output_buffer import Delivery, OutputKind

TOKENS_FIELD = "tokenized.input_ids"
_PREFIX = "sampling_params"
_UINT64 = (1 << 64) - 1

_AS_THEY_ARE = (
    "frequency_penalty",
    "presence_penalty",
    "min_tokens",
    "skip_special_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
)
_UNLESS_ZERO = ("top_p", "top_k", "min_p", "repetition_penalty", "n")
_IF_SET = ("temperature", "max_tokens", "logprobs", "prompt_logprobs")
_NOT_SERVED = (
    "mm_inputs",
    "extra_mm_inputs",
    "media_refs",
    "kv_transfer_params",
    "kv_transfer_params_json",
)


def generate_api_request(request: pb.GenerateRequest, *, max_model_len: int) -> ApiRequest:
    """Returns the request. Raises InvalidArgument or Unimplemented."""
    _check_served(request)
    params = request.sampling_params
    kind = OutputKind.DELTA if request.stream else OutputKind.FINAL_ONLY
    return ApiRequest(
        request_id=request.request_id,
        prompt=_prompt(request),
        sampling=_sampling(params),
        truncate_prompt_tokens=_truncation(params, max_model_len),
        delivery=Delivery(kind=kind),
    )


def _check_served(request: pb.GenerateRequest) -> None:
    is_set = {field.name for field, _ in request.ListFields()}
    for name in _NOT_SERVED:
        if name in is_set and not _is_empty(getattr(request, name)):
            raise Unimplemented(f"{name} is not served")
    if request.data_parallel_rank:
        allowed = "0 or unset: there is one engine"
        raise InvalidArgument("data_parallel_rank", request.data_parallel_rank, allowed)


def _is_empty(value: Any) -> bool:
    """Returns whether the parameters of a KV transfer, which are set, ask for none."""
    if isinstance(value, str):
        return value.strip() in ("", "{}", "null")
    return isinstance(value, pb.KvTransferParams) and not value.ListFields()


def _prompt(request: pb.GenerateRequest) -> PromptText | PromptTokens:
    match request.WhichOneof("input"):
        case "text":
            return PromptText(request.text, add_special_tokens=True)
        case "tokenized":
            return PromptTokens(as_list(request.tokenized.input_ids), TOKENS_FIELD)
    raise InvalidArgument("input", None, "exactly one of tokenized and text")


def _sampling(params: pb.SamplingParams) -> dict[str, Any]:
    """Returns fields under the names of inference.proto.

    `spaces_between_special_tokens` concerns text, which the gateway makes of the tokens.
    `grammar_from_first_token` asks for the only behaviour that there is.
    """
    check_counts({name: len(getattr(params, name, ())) for name in MAX_ITEMS})
    fields: dict[str, Any] = {name: getattr(params, name) for name in _AS_THEY_ARE}
    fields |= {name: value for name in _UNLESS_ZERO if (value := getattr(params, name))}
    fields |= {name: getattr(params, name) for name in _IF_SET if params.HasField(name)}
    fields |= {"stop": list(params.stop), "stop_token_ids": list(params.stop_token_ids)}
    if params.HasField("seed"):
        fields["seed"] = params.seed & _UINT64  # negative seeds are valid too
    if params.logit_bias:
        fields["logit_bias"] = sorted(params.logit_bias.items())
    if (constraint := _constraint(params)) is not None:
        fields["structured_output"] = constraint
    return fields


def _constraint(params: pb.SamplingParams) -> tuple[str, ...] | None:
    """Returns the request's structured output in the form of
    `signalbox_contract.structured_output`."""
    match params.WhichOneof("constraint"):
        case None:
            return None
        case "json_object":
            return ("json_object",) if params.json_object else None
        case "choice":
            return ("choice", *params.choice.choices)
        case "structural_tag":
            raise Unimplemented(
                f"{_PREFIX}.structural_tag is not served; send a json_schema, regex or grammar"
            )
        case kind:
            return (kind, getattr(params, kind))


def _truncation(params: pb.SamplingParams, max_model_len: int) -> int | None:
    """Returns the truncation; -1 keeps the tokens that leave room for max_tokens in the window."""
    if not params.HasField("truncate_prompt_tokens"):
        return None
    if params.truncate_prompt_tokens == -1:
        return max(1, max_model_len - (params.max_tokens or 1))
    return int(params.truncate_prompt_tokens)
