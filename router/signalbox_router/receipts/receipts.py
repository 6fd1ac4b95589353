"""Makes the receipts of requests that have ended."""

import time
from collections.abc import Mapping
from typing import Any

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.updates import FinishReason
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.receipts.receipt_codec import SIGNATURE, Receipt, encode, signed_part
from signalbox_router.receipts.receipt_key import ReceiptKey
from signalbox_router.requests.active_request import ActiveRequest
from signalbox_router.requests.request_output import End

UNAVAILABLE = "unavailable"
"""The only field of a document in place of a receipt: the reason why there is none."""
_NO_ARITHMETIC = (
    "the bits that its worker computes depend on the batch, or it continued on a worker that"
    " computes other bits"
)


def check_receipt(fields: Mapping[str, Any]) -> None:
    """Raises InvalidArgument if only the best sequences are returned.

    Args:
        fields: sampling fields that are set, by proto name.
    """
    is_ranked = (fields.get("best_of") or 0) > fields.get("n", 1)
    if is_ranked or "beam_search" in fields:
        raise InvalidArgument("receipt", True, "false with beam search and best_of")


class Receipts:
    """Makes receipts, and signs them if there is a key."""

    def __init__(self, *, version: str = "unknown", key: ReceiptKey | None = None) -> None:
        """Args: version: that of the server."""
        self._version, self._key = version, key

    def of(
        self,
        model: ServedModel,
        request: ActiveRequest,
        end: End,
        *,
        kept_token_ids: frozenset[int],
    ) -> dict[str, Any]:
        """Returns the receipt's document, or one that says why there is no receipt.

        Args:
            kept_token_ids: special tokens that are in the text.
        """
        outputs = request.delivered
        if any(reason is FinishReason.ERROR for _, reason in outputs):
            return {UNAVAILABLE: "one of its sequences has failed"}
        if not end.arithmetic:
            return {UNAVAILABLE: _NO_ARITHMETIC}
        document = encode(
            Receipt(
                request_id=request.request_id,
                created=int(time.time()),
                version=self._version,
                model=model.name,
                fingerprint=model.fingerprint,
                adapter=request.adapter,
                arithmetic=end.arithmetic,
                prompt_token_ids=tuple(request.prompt_token_ids),
                params=request.params,
                kept_token_ids=tuple(sorted(kept_token_ids)),
                outputs=outputs,
            )
        )
        if self._key is not None:
            document[SIGNATURE] = self._key.sign(signed_part(document))
        return document
