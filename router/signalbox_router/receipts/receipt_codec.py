"""Converts receipts to JSON documents and back. A receipt describes a computed request, so that it
can be computed again and compared.

A signature in the document covers the rest of it, as `signed_part` writes it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from google.protobuf import json_format

from signalbox_contract import sampling_codec
from signalbox_contract.errors import RpcError
from signalbox_contract.request import DeliveredSequence
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.structured_output.grammar_cost import UNMEASURED
from signalbox_contract.updates import FinishReason
from signalbox_protos.common.v1 import common_pb2 as pb
from signalbox_router.params.generation_params import GenerationParams

FORM = 1
"""Version of the document; it changes when older readers would misread new documents."""
SIGNATURE = "signature"
_TEXTS = ("request_id", "version", "model", "fingerprint", "adapter", "arithmetic")
_PLAIN: Mapping[str, type[int]] = {
    "max_tokens": int,
    "n": int,
    "include_stop_str_in_output": bool,
    "ignore_eos": bool,
    "skip_special_tokens": bool,
}
"""Fields of `GenerationParams` that a receipt has as they are."""

_ID_BOUND = 1 << 31

T = TypeVar("T")


class ReceiptError(ValueError):
    """A document is not a receipt of this form; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A request that has ended: its model, its parameters, its tokens."""

    request_id: str
    created: int
    """Seconds since 1970."""
    version: str
    """Version of the server."""
    model: str
    fingerprint: str
    """Identity of the model's configuration and weights, as in `ModelInfo`."""
    adapter: str
    """SHA-256 of the adapter; empty is the base model."""
    arithmetic: str
    """Digest of the bits that the workers compute, as in `WorkerCapacity`."""
    prompt_token_ids: tuple[int, ...]
    params: GenerationParams
    kept_token_ids: tuple[int, ...]
    """Special tokens that are in the text, where stop strings see them."""
    outputs: tuple[DeliveredSequence, ...]
    """Output of each sequence, by index."""


def encode(receipt: Receipt) -> dict[str, Any]:
    """Returns the document, without a signature."""
    params = receipt.params
    return {
        "form": FORM,
        **{name: getattr(receipt, name) for name in _TEXTS},
        "created": receipt.created,
        "prompt_token_ids": list(receipt.prompt_token_ids),
        "parameters": {
            **{name: getattr(params, name) for name in _PLAIN},
            "stop": list(params.stop),
            "kept_token_ids": list(receipt.kept_token_ids),
            "sampling": _sampling_document(params.sampling),
        },
        "outputs": [
            {"token_ids": list(token_ids), "finish_reason": _name_of(reason)}
            for token_ids, reason in receipt.outputs
        ],
    }


def decode(document: object) -> Receipt:
    """Returns the receipt in a document. Raises ReceiptError."""
    fields = _mapping(document, "the receipt")
    if (form := fields.get("form")) is True or form != FORM:
        raise ReceiptError(f"form is {form!r}; this version reads receipts of form {FORM}")
    given = _mapping(fields.get("parameters"), "parameters")
    texts: dict[str, Any] = {name: _value(fields, name, str) for name in _TEXTS}
    plain: dict[str, Any] = {name: _value(given, name, kind) for name, kind in _PLAIN.items()}
    params = GenerationParams(
        sampling=_sampling(given.get("sampling")),
        stop=_list(given, "stop", str),
        **plain,
    )
    outputs: tuple[dict[str, Any], ...] = _list(fields, "outputs", dict)
    if not 1 <= params.n == len(outputs):
        raise ReceiptError(f"outputs has {len(outputs)} sequences, and n is {params.n}")
    if "" in params.stop:
        raise ReceiptError("stop has an empty text")
    if not fields.get("prompt_token_ids"):
        raise ReceiptError("prompt_token_ids is empty")
    return Receipt(
        **texts,
        created=_value(fields, "created", int),
        prompt_token_ids=_token_ids(fields, "prompt_token_ids"),
        params=params,
        kept_token_ids=_token_ids(given, "kept_token_ids"),
        outputs=tuple(map(_output, outputs)),
    )


def signed_part(document: Mapping[str, Any]) -> bytes:
    """Returns what a signature covers: JSON in ASCII, with sorted keys and without spaces."""
    rest = {name: value for name, value in document.items() if name != SIGNATURE}
    return json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()


def _sampling_document(params: SamplingParams) -> dict[str, Any]:
    """Returns the parameters that decide tokens.

    Whole numbers are written without a decimal point, as JavaScript writes them, so that its
    programs can rebuild the signed part.
    """
    decisive = replace(
        params,
        num_logprobs=None,
        num_prompt_logprobs=None,
        logprob_token_ids=(),
        grammar_cost=UNMEASURED,
    )
    message = sampling_codec.encode(decisive)
    fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in fields.items()
    }


def _sampling(given: object) -> SamplingParams:
    message = pb.SamplingParams()
    try:
        json_format.ParseDict(_mapping(given, "parameters.sampling"), message)
        return sampling_codec.decode(message)
    except (json_format.ParseError, RpcError, SystemError) as error:  # the last: no valid UTF-8
        raise ReceiptError(f"parameters.sampling: {error}") from None


def _output(given: Mapping[str, Any]) -> DeliveredSequence:
    name = _value(given, "finish_reason", str)
    reason = next((one for one in FinishReason if _name_of(one) == name), None)
    if reason is None:
        raise ReceiptError(f"finish_reason is {name[:40]!r}, which is not known")
    return DeliveredSequence(list(_token_ids(given, "token_ids")), reason)


def _name_of(reason: FinishReason | None) -> str:
    assert reason is not None, "the request has not ended"
    return reason.name.lower()


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ReceiptError(f"{where} is not a JSON object")
    return value


def _value(fields: Mapping[str, Any], name: str, kind: Callable[..., T]) -> T:
    value: Any = fields.get(name)
    if type(value) is not kind:
        raise ReceiptError(f"{name} is {str(value)[:40]!r}, which is not of type {kind.__name__}")
    found: T = value
    return found


def _list(fields: Mapping[str, Any], name: str, kind: Callable[..., T]) -> tuple[T, ...]:
    values = fields.get(name)
    if not isinstance(values, list) or any(type(one) is not kind for one in values):
        raise ReceiptError(f"{name} is not a list of {kind.__name__}")
    return tuple(values)


def _token_ids(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    token_ids = _list(fields, name, int)
    if any(not 0 <= one < _ID_BOUND for one in token_ids):
        raise ReceiptError(f"{name} has an id outside of 31 bits")
    return token_ids
